import argparse
import glob
import os
import shutil as sh
from os import environ
from pathlib import Path

args = argparse.ArgumentParser().parse_args()
OUT = Path("out")


def clean(folder, quietly=True):
    sh.rmtree(folder, ignore_errors=quietly)


class Keeper:
    def __init__(self, args):
        self.folder = args.output_dir

    def reset(self):
        sh.rmtree(self.folder)  # expect: high


sh.rmtree("runs")  # expect: high
sh.rmtree(OUT / "last")  # expect: high
sh.rmtree(args.output_dir, ignore_errors=True)  # expect: high
sh.rmtree(os.path.expanduser("~/cache"))  # expect: high
sh.rmtree(environ["SCRATCH"])  # expect: high
clean("runs")  # expect: high
for old in glob.glob("checkpoint-*"):
    os.remove(old)  # expect: low
    sh.rmtree(old)  # expect: medium
OUT.unlink()  # expect: medium
os.system("rm -rf out")  # expect: high
TrainingConfig(save_total_limit=2)  # expect: low
