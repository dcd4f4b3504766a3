"""The rules as data: how grave, why it matters, how to silence or pin (lesson 10).

Defaults named here were read in the packages' own sources or documentation in 2026; versions move, so the remedies
hold on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Rule:
    """severity is the usual one; a check may raise or lower it."""

    severity: str
    why: str
    remedy: str


RULES: Final[dict[str, Rule]] = {
    "tracker": Rule(
        "high",
        "An experiment tracker sends settings, console text, machine facts and sometimes source to a server that "
        "others run.",
        "Leave it out, or switch it off: wandb mode='offline' or 'disabled' (also WANDB_MODE), CLEARML_OFFLINE_MODE, "
        "OfflineExperiment for Comet, a local folder as MLflow's tracking URI.",
    ),
    "report-to": Rule(
        "medium",
        "Transformers 4 reports to every tracker that happens to be installed unless told otherwise; version 5 "
        "reports to none.",
        "Write report_to='none' (or 'tensorboard' for local files) whatever the version, and pin the version.",
    ),
    "upload": Rule(
        "high",
        "Model, data or text leaves this machine; a new repository on the Hugging Face hub is public unless asked "
        "otherwise.",
        "Remove the call, or guard it by an explicit choice of the person who runs it; use private=True or "
        "hub_private_repo=True.",
    ),
    "telemetry": Rule(
        "low",
        "The package sends usage data or crash reports by default.",
        "Set its switch before the import: HF_HUB_DISABLE_TELEMETRY=1, MLFLOW_DISABLE_TELEMETRY=true, "
        "GRADIO_ANALYTICS_ENABLED=False; MLflow honours DO_NOT_TRACK only when it is 'true'.",
    ),
    "public-link": Rule(
        "high",
        "A tunnel makes a program on this machine reachable for anyone who has the address.",
        "Leave share off and open the page through localhost.",
    ),
    "download": Rule(
        "medium",
        "What arrives is decided elsewhere and may be gone or different tomorrow; it also tells a server that you "
        "are here.",
        "Fetch once, keep the file with its SHA-256 in the project, check the digest before use.",
    ),
    "unpinned-download": Rule(
        "medium",
        "A name or branch is a moving reference: the same line gives other weights or data after the owner's next "
        "change.",
        "Name a commit: revision='<40 digits>'; or point at a local folder with local_files_only=True.",
    ),
    "remote-code": Rule(
        "high",
        "Code written by others is fetched and run with all your rights.",
        "Read the code, keep a copy, and load it locally (torch.hub.load with source='local'; no trust_remote_code).",
    ),
    "torch-load": Rule(
        "high",
        "A checkpoint read without weights_only=True can run any code its author put in. That is the default only "
        "from torch 2.6 on.",
        "Write weights_only=True, or use safetensors. Files that then fail hold more than tensors: save random "
        "states as tensors.",
    ),
    "unpickle": Rule(
        "high",
        "Unpickling runs whatever code the file asks for.",
        "Use a format that holds only data: safetensors, npz without pickle, JSON, CSV, Parquet.",
    ),
    "yaml-load": Rule(
        "high",
        "YAML tags can build arbitrary Python objects unless the loader is a safe one.",
        "Use yaml.safe_load, or Loader=yaml.SafeLoader.",
    ),
    "dynamic-code": Rule(
        "medium",
        "Text becomes code at run time, so neither a reader nor this review can tell what runs.",
        "Use ast.literal_eval or JSON for values, a table of functions for choices.",
    ),
    "shell": Rule(
        "medium",
        "A command line runs outside Python; text that is put together at run time may hold more commands than meant.",
        "Give subprocess.run a list of words without a shell, or use the Python function for it.",
    ),
    "install": Rule(
        "medium",
        "Installing runs code of the packages, and without a version the same cell builds another environment next "
        "month.",
        "Name exact versions (package==1.2.3) or a commit, best in a file that is installed once, outside the script.",
    ),
    "unpinned-requirement": Rule(
        "low",
        "Without an upper bound a fresh install may change defaults (what is reported, how files are loaded) without "
        "any edit here.",
        "Give == or an upper bound, or keep a lock or constraints file beside it.",
    ),
    "overwrite": Rule(
        "low",
        "A second run replaces what the first one wrote, silently.",
        "Put the run's name in the path, open with mode 'x', or stop when the file is there.",
    ),
    "delete": Rule(
        "medium",
        "Files are removed; a wrong path or setting takes other people's work with it.",
        "Delete only inside a folder that this run has made, after checking its name; print before removing.",
    ),
    "secret": Rule(
        "high",
        "A key in the source goes wherever the file goes, history included.",
        "Revoke it, then read it from the environment or the service's own login file.",
    ),
    "unverified": Rule(
        "medium",
        "Nobody checks that what arrives is what was meant: not the sender, or not the content.",
        "Leave certificate checks on; compare a SHA-256, or pass check_hash=True where offered.",
    ),
    "unread": Rule(
        "medium",
        "Nothing in this place was reviewed, so nothing is known about it.",
        "Look at it yourself, or make it parse and review again.",
    ),
    "allow": Rule(
        "low",
        "An allow comment without a reason, with an unknown rule, or without anything to allow hides more than it "
        "tells.",
        "Write `# labkit: allow RULE reason` on the line of the finding or above it, or remove the comment.",
    ),
}
