import json

import numpy as np
from safetensors.torch import load_file

json.load(handle)
np.load(path)
np.load(path, allow_pickle=False)
load_file(path)
rows = list(map(json.loads, lines))
