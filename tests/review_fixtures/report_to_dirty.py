import transformers as hf
from transformers import Seq2SeqTrainingArguments
from trl import SFTConfig

common = dict(output_dir="out", report_to="wandb")
hf.TrainingArguments(output_dir="out")  # expect: high
Seq2SeqTrainingArguments(**common)  # expect: high
SFTConfig(report_to=["tensorboard", "comet_ml"])  # expect: high
hf.TrainingArguments(output_dir="out", **load())  # expect: medium
hf.TrainingArguments("out", report_to="all")  # expect: high
