# /// script
# dependencies = ["torch>=2.6,<3"]
# ///
import json

import torch
from torch import load as read

torch.load(path, weights_only=True)
read(path)  # the header asks for a torch whose default is safe
options = {"weights_only": True}
torch.load(path, **options)


def load(path):
    return json.loads(path)


load(path)
