import json

import wandb
from torch.utils.tensorboard import SummaryWriter

wandb.init(project="digits", mode="disabled")
wandb.log({"loss": 1.0})
writer = SummaryWriter("runs/digits")
writer.add_scalar("loss", 1.0, 1)


class Task:
    @staticmethod
    def init(name):
        return json.dumps(name)


Task.init("not a tracker")


def begin(init):
    return init(project="a parameter, not wandb")
