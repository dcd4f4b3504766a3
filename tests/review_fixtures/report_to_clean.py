from transformers import TrainingArguments
from trl import SFTConfig

TrainingArguments(output_dir="out", report_to="none")
TrainingArguments(output_dir="out", report_to=[])
SFTConfig(report_to=["tensorboard"])
quiet = {"report_to": "none"}
TrainingArguments(output_dir="out", **quiet)
