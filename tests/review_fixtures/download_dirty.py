import subprocess
import urllib.request as net
from urllib.request import urlopen as fetch

import pandas as pd
import requests
import timm
import torch
import torchvision.models as zoo
from sklearn import datasets
from torchvision.datasets import MNIST

torch.hub.load_state_dict_from_url("https://example.org/w-0a1b2c3d.pt", check_hash=True)  # expect: medium
net.urlretrieve("https://example.org/a.zip", target)  # expect: medium
fetch("https://example.org/a.zip")  # expect: medium
session = requests.Session()
session.get("https://example.org/a.zip")  # expect: medium
MNIST(root, train=True, download=True)  # expect: medium
zoo.resnet18(weights="DEFAULT")  # expect: medium
timm.create_model("resnet18", pretrained=True)  # expect: medium
datasets.fetch_openml("mnist_784")  # expect: medium
pd.read_csv("https://example.org/a.csv")  # expect: medium
subprocess.run(["wget", "https://example.org/a.zip"], check=True)  # expect: medium
