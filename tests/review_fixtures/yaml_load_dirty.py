import yaml
from yaml import load, unsafe_load

yaml.load(text)  # expect: high
load(text, Loader=yaml.Loader)  # expect: high
load(text, yaml.FullLoader)  # expect: low
unsafe_load(text)  # expect: high
