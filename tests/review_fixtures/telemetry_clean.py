import os
from os import environ as env

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
env.update({"GRADIO_ANALYTICS_ENABLED": "False"})
env.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import gradio
import huggingface_hub
import mlflow
