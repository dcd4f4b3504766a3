import os
import subprocess
from subprocess import run

os.system(f"python train.py --rate {rate}")  # expect: medium
os.system("./prepare.sh")  # expect: low
run(command, shell=True)  # expect: medium
subprocess.check_output("nvidia-smi", shell=True)  # expect: low
os.popen(command)  # expect: medium
