import os

token = os.environ["HF_TOKEN"]
api_key = "<your key here>"
password = "changeme"
special = Tokenizer(token="[MASK]", pad_token="<pad>")
client(api_key=os.environ.get("API_KEY"))
digest = "0123456789abcdef0123456789abcdef01234567"
