import boto3
import requests
from huggingface_hub import HfApi, login  # expect: telemetry low

api = HfApi()


class Sender:
    def __init__(self):
        self.api = HfApi()

    def send(self, model):
        self.api.upload_folder(folder_path="out", repo_id="me/model")  # expect: high
        model.push_to_hub("me/model")  # expect: high


login()  # expect: high
api.create_repo("me/model")  # expect: high
Trainer(push_to_hub=True)  # expect: high
Trainer(hub_model_id="me/model")  # expect: low
requests.post("https://example.org", json={"loss": 1.0})  # expect: high
store = boto3.client("s3")
store.upload_file("a", "b", "c")  # expect: high
