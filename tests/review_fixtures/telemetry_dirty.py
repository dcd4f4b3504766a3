import gradio as gr  # expect: low
import huggingface_hub.utils  # expect: low
import os

from ultralytics import YOLO  # expect: low

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # too late: the import is above
