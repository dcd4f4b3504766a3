import os
import subprocess

os.system("nvidia-smi")
os.system("ls -l data | head")
subprocess.run(["python", "train.py", "--rate", str(rate)], check=True)
platform.system()
