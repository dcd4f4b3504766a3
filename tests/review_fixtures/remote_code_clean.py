import torch
from transformers import AutoModel

AutoModel.from_pretrained("./local", trust_remote_code=False)
torch.hub.load("./copy", "resnet18", source="local")
