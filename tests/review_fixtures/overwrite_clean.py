import os
from pathlib import Path

import torch

torch.save(state, folder / "model.pt")
torch.save(state, f"out/{run}/model.pt")
open("log.txt", "x")
open("log.txt", "a")
open("log.txt")
open(os.devnull, "w")
open("/dev/null", "w")
Path("out").mkdir()
os.makedirs(folder, exist_ok=True)
os.replace(temporary, target)
