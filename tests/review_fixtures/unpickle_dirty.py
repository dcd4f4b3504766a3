import pickle as p
from concurrent.futures import ThreadPoolExecutor

import joblib
import keras
import numpy as np
import pandas

try:
    import cPickle as brine
except ImportError:
    import pickle as brine

p.load(handle)  # expect: high
brine.loads(data)  # expect: high
joblib.load(path)  # expect: high
np.load(path, allow_pickle=True)  # expect: high
pandas.read_pickle(path)  # expect: high
keras.models.load_model(path, safe_mode=False)  # expect: high
rows = list(map(p.loads, lines))  # expect: high
