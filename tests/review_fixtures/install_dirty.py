import os
import subprocess
import sys

os.system("pip install -U transformers")  # expect: medium
subprocess.check_call([sys.executable, "-m", "pip", "install", "timm"])  # expect: medium
os.system("pip install git+https://github.com/me/model.git")  # expect: high
