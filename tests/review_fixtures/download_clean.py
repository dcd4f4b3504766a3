import subprocess

import pandas as pd
import timm
import torchvision.models as zoo
from sklearn.datasets import load_digits
from torchvision.datasets import MNIST

MNIST(root, train=True, download=False)
zoo.resnet18(weights=None)
timm.create_model("resnet18", pretrained=False)
pd.read_csv("data/a.csv")
load_digits()
settings.get("requests")
subprocess.run(["git", "rev-parse", "HEAD"], check=True)
