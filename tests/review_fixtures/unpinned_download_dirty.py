import datasets
from huggingface_hub import snapshot_download as whole  # expect: telemetry low
from transformers import AutoModel

AutoModel.from_pretrained("bert-base-uncased")  # expect: medium
AutoModel.from_pretrained("bert-base-uncased", revision="main")  # expect: medium
AutoModel.from_pretrained(name)  # expect: low
datasets.load_dataset("imdb", split="train")  # expect: medium
datasets.load_dataset("csv", data_files="https://example.org/a.csv")  # expect: medium
whole(repo_id="me/model")  # expect: medium
