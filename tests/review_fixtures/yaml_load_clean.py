import yaml

try:
    from yaml import CSafeLoader as Loader
except ImportError:
    from yaml import SafeLoader as Loader

yaml.safe_load(text)
yaml.load(text, Loader=yaml.SafeLoader)
yaml.load(text, Loader)
