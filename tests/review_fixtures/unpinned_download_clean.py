from datasets import load_dataset
from transformers import AutoModel, AutoTokenizer

COMMIT = "86b5e0934494bd15c9632b12f734a8a67f723594"
AutoModel.from_pretrained("bert-base-uncased", revision=COMMIT)
AutoTokenizer.from_pretrained("./saved")
AutoModel.from_pretrained(name, local_files_only=True)
load_dataset("csv", data_files="data/a.csv")
