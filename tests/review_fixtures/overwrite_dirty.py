import os
import shutil
from os.path import join
from pathlib import Path

import numpy as np
import torch

HERE = Path("out")
TrainingConfig(overwrite_output_dir=True)  # expect: medium
torch.save(state, "model.pt")  # expect: low
torch.save(state, HERE / "last" / "model.pt")  # expect: low
np.save(join("out", "losses.npy"), losses)  # expect: low
open("log.txt", "w")  # expect: low
with HERE.open(mode="wb") as handle:  # expect: low
    handle.write(data)
(HERE / "log.txt").write_text("done")  # expect: low
os.makedirs("out", exist_ok=True)  # expect: low
shutil.move(temporary, "out/model.pt")  # expect: low
figure.savefig(f"out/loss.png")  # expect: low
