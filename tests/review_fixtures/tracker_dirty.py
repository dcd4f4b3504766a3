import comet_ml  # expect: medium
import mlflow as records  # expect: telemetry low
import wandb as w
from clearml import Task as Job
from lightning.pytorch.loggers import WandbLogger
from wandb import init as begin

begin(project="digits")  # expect: high
w.init(project="digits", mode=args.mode)  # expect: medium
w.log({"loss": 1.0})  # expect: low
start = Job.init
start("digits")  # expect: high
experiment = comet_ml.Experiment(  # expect: high
    project_name="digits",
)
records.set_tracking_uri("https://user:pw@records.example.org")  # expect: high
logger = WandbLogger(project="digits")  # expect: high
Accelerator = __import__("accelerate").Accelerator
Accelerator(log_with="all")  # expect: high
