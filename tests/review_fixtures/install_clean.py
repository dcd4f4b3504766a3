import os
import subprocess
import sys

os.system("pip install timm==1.0.9 'numpy>=2,<3'")
os.system("pip install -r requirements.txt")
subprocess.check_call([sys.executable, "-m", "pip", "install", "-e", "."])
os.system("pip install git+https://github.com/me/model.git@86b5e0934494bd15c9632b12f734a8a67f723594")
os.system("pip list")
