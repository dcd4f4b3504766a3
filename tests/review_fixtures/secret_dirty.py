import os

from huggingface_hub import login  # expect: telemetry low

HF_TOKEN = "hf_aBcDeFgHiJkLmNoPqRsTuVwX"  # expect: high
os.environ["WANDB_API_KEY"] = "0123456789abcdef0123456789abcdef01234567"  # expect: high
login("hf_aBcDeFgHiJkLmNoPqRsTuVwX")  # expect: secret high, upload high
client(api_key="sk-aBcDeFgHiJkLmNoPqRsT")  # expect: high
