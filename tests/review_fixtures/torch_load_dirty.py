import os

import torch as t
from torch import load
from torch import load as read

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # expect: high
t.load(path, weights_only=False)  # expect: high
load(path)  # expect: medium
get = getattr(t, "load")
get(path, map_location="cpu", weights_only=False)  # expect: high
read(path, weights_only=trusted)  # expect: medium
options = {"weights_only": False}
t.load(path, **options)  # expect: high
