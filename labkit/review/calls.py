"""Which calls, keywords and imports the rules look at (lesson 10).

A pattern is a dotted name as it would be imported, with * for any run of characters; one that begins with a dot stands
for a method of that name on anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from labkit.review import local, network
from labkit.review.view import Hit, View

Check = Callable[[View], "Hit | None | list[Hit]"]


@dataclass(frozen=True)
class Call:
    """Patterns, parted by blanks, that belong to a rule. what completes 'NAME ...' when no check speaks for itself."""

    rule: str
    patterns: str
    what: str = ""
    check: Check | None = None
    severity: str = ""


CALLS: Final[tuple[Call, ...]] = (
    Call("tracker", "wandb.init", check=network.tracker_mode),
    Call(
        "tracker",
        "wandb.login wandb.save wandb.log_artifact wandb.sweep wandb.agent wandb.init().log_artifact",
        "reaches an outside service",
    ),
    Call(
        "tracker",
        "wandb.log wandb.watch wandb.init().log wandb.alert",
        "sends values to the run's server",
        severity="low",
    ),
    Call(
        "tracker",
        "comet_ml.Experiment comet_ml.ExistingExperiment comet_ml.start comet_ml.init comet_ml.login neptune.init "
        "neptune.init_run clearml.Task.init trains.Task.init swanlab.init dagshub.init sentry_sdk.init",
        "starts reporting to an outside service",
    ),
    Call(
        "tracker",
        "*.WandbLogger *.CometLogger *.NeptuneLogger *.LitLogger *.WandbCallback *.WandbMetricsLogger "
        "*.WandbModelCheckpoint *.NeptuneCallback *.CometCallback",
        check=network.offline_logger,
    ),
    Call("tracker", "mlflow.set_tracking_uri *.MLFlowLogger", check=network.tracking_uri),
    Call(
        "tracker",
        "mlflow.autolog mlflow.*.autolog mlflow.log_artifact mlflow.log_artifacts mlflow.register_model "
        "mlflow.log_model",
        "goes where MLFLOW_TRACKING_URI points, this machine when it is unset",
        severity="low",
    ),
    Call("tracker", "accelerate.Accelerator", check=network.log_with),
    Call(
        "report-to",
        "transformers.*TrainingArguments sentence_transformers.*TrainingArguments trl.SFTConfig trl.DPOConfig "
        "trl.GRPOConfig trl.RewardConfig trl.KTOConfig trl.ORPOConfig trl.CPOConfig trl.RLOOConfig",
        check=network.report_to,
    ),
    Call(
        "upload",
        "huggingface_hub.*upload_* huggingface_hub.*create_repo huggingface_hub.*create_commit huggingface_hub.*login "
        "kagglehub.*_upload smtplib.SMTP smtplib.SMTP_SSL ftplib.FTP *.chat_postMessage",
        "sends to another machine",
    ),
    Call(
        "upload",
        "requests.post requests.put requests.patch requests.Session().post requests.Session().put httpx.post httpx.put "
        "aiohttp.ClientSession().post",
        "sends to another machine",
    ),
    Call(
        "upload",
        ".push_to_hub .upload_fileobj .upload_blob .upload_from_filename .put_object boto3.*.upload_file",
        "sends to another machine",
    ),
    Call("public-link", ".launch", check=network.shared),
    Call(
        "public-link",
        "pyngrok.ngrok.connect ngrok.connect ngrok.forward flask_ngrok.run_with_ngrok",
        "opens a public address",
    ),
    Call(
        "download",
        "torch.hub.load_state_dict_from_url torch.hub.download_url_to_file torch.utils.model_zoo.load_url "
        "torchvision.datasets.utils.download_* urllib.request.urlretrieve urllib.request.urlopen urllib.urlretrieve "
        "requests.get "
        "requests.request requests.Session().get httpx.get httpx.stream aiohttp.ClientSession().get gdown.download* "
        "kagglehub.*_download wget.download nltk.download sklearn.datasets.fetch_* openml.*.get_* "
        "tensorflow_datasets.load "
        "keras.datasets.*.load_data tensorflow.keras.datasets.*.load_data keras.utils.get_file "
        "tensorflow.keras.utils.get_file "
        "spacy.cli.download gensim.downloader.load wandb.restore *.use_artifact",
        "fetches from the network",
    ),
    Call("download", "torchvision.models.* timm.create_model", check=network.pretrained),
    Call(
        "download", "pandas.read_* numpy.loadtxt numpy.genfromtxt polars.read_* imageio.*imread", check=network.address
    ),
    Call(
        "unpinned-download",
        ".from_pretrained datasets.load_dataset huggingface_hub.*hf_hub_download huggingface_hub.*snapshot_download",
        check=network.moving_reference,
    ),
    Call("remote-code", "torch.hub.load torch.hub.help", check=network.hub_repository),
    Call("torch-load", "torch.load torch.serialization.load", check=local.torch_load),
    Call(
        "unpickle",
        "pickle.load pickle.loads pickle.Unpickler cPickle.load cPickle.loads dill.load dill.loads cloudpickle.load "
        "cloudpickle.loads joblib.load pandas.read_pickle shelve.open jsonpickle.decode marshal.load marshal.loads",
        "unpickles",
    ),
    Call("unpickle", "numpy.load", check=local.pickled_arrays),
    Call("unpickle", "*.load_model", check=local.unsafe_model),
    Call("yaml-load", "yaml.load yaml.load_all", check=local.yaml_loader),
    Call("yaml-load", "yaml.unsafe_load yaml.unsafe_load_all", "builds arbitrary objects"),
    Call("yaml-load", "yaml.full_load yaml.full_load_all", "builds more than plain values", severity="low"),
    Call("dynamic-code", "builtins.eval builtins.exec", check=local.code_from_text),
    Call("dynamic-code", "runpy.run_path runpy.run_module", "runs another file as code"),
    Call(
        "shell",
        "os.system os.popen subprocess.getoutput subprocess.getstatusoutput IPython.get_ipython().system "
        "IPython.get_ipython().getoutput",
        check=local.through_shell,
    ),
    Call(
        "shell",
        "subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen",
        check=local.subprocess_call,
    ),
    Call("shell", "IPython.get_ipython().run_line_magic IPython.get_ipython().magic", check=local.line_magic),
    Call("overwrite", "builtins.open io.open pathlib.Path().open", check=local.opened_for_writing),
    Call("overwrite", ".write_text .write_bytes", check=local.written_to_receiver),
    Call("overwrite", ".to_csv .to_parquet .to_json .savefig .save_pretrained", check=local.written_first),
    Call("overwrite", "numpy.save numpy.savez numpy.savez_compressed numpy.savetxt", check=local.written_first),
    Call("overwrite", "os.makedirs pathlib.Path().mkdir", check=local.folder_reused),
    Call(
        "overwrite",
        "torch.save joblib.dump safetensors.torch.save_file shutil.move shutil.copy shutil.copyfile os.replace "
        "os.rename",
        check=local.written_second,
    ),
    Call("unverified", "ssl._create_unverified_context", "switches certificate checks off"),
)


def _true(value: Any) -> bool:
    return value is True


def _given(value: Any) -> bool:
    return value is not None and value is not False


@dataclass(frozen=True)
class Keyword:
    """A keyword argument that matters on any call, or on calls whose name matches on."""

    rule: str
    name: str
    matters: Callable[[Any], bool]
    what: str
    severity: str = ""
    on: str = "*"


KEYWORDS: Final[tuple[Keyword, ...]] = (
    Keyword("upload", "push_to_hub", _true, "uploads the model while training"),
    Keyword("upload", "hub_model_id", _given, "names the place on the hub that push_to_hub would write to", "low"),
    Keyword("upload", "hub_strategy", _given, "says how often push_to_hub would upload", "low"),
    Keyword("remote-code", "trust_remote_code", _true, "runs Python files that come with the model"),
    Keyword("download", "download", _true, "fetches a data set"),
    Keyword("download", "pretrained", _true, "fetches weights"),
    Keyword("overwrite", "overwrite_output_dir", _true, "writes into a folder that holds another run", "medium"),
    Keyword("delete", "save_total_limit", _given, "deletes older checkpoints as it goes", "low"),
    Keyword("unverified", "verify", lambda value: value is False, "switches certificate checks off", on="requests.*"),
    Keyword("unverified", "verify", lambda value: value is False, "switches certificate checks off", on="httpx.*"),
    Keyword(
        "unverified",
        "check_hash",
        lambda value: value is False,
        "does not compare the digest in the file's name",
        "low",
    ),
)


@dataclass(frozen=True)
class Import:
    """A package that acts by being imported, and the switches (variable, values that silence it)."""

    rule: str
    package: str
    what: str
    severity: str
    switches: tuple[tuple[str, str], ...] = ()


QUIET: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "wandb": (("WANDB_MODE", "offline disabled dryrun"), ("WANDB_DISABLED", "true 1")),
    "clearml": (("CLEARML_OFFLINE_MODE", "1 true"),),
    "comet_ml": (("COMET_MODE", "offline disabled"),),
}  # variables, and the values of them, that keep a tracker from sending

DELETIONS: Final[dict[str, bool]] = {  # whether a whole tree goes
    "shutil.rmtree": True,
    "os.remove": False,
    "os.unlink": False,
    "os.rmdir": False,
    "os.removedirs": True,
    "pathlib.Path.unlink": False,
}

IMPORTS: Final[tuple[Import, ...]] = (
    Import("tracker", "comet_ml", "import comet_ml hooks itself into training frameworks", "medium"),
    Import(
        "telemetry",
        "mlflow",
        "MLflow from 3.2 on sends usage data",
        "low",
        (("MLFLOW_DISABLE_TELEMETRY", "true"), ("DO_NOT_TRACK", "true")),
    ),
    Import("telemetry", "gradio", "Gradio sends usage data", "low", (("GRADIO_ANALYTICS_ENABLED", "false 0"),)),
    Import(
        "telemetry",
        "huggingface_hub",
        "huggingface_hub sends usage data, and a saved token with reads",
        "low",
        (
            ("HF_HUB_DISABLE_TELEMETRY", "1 true yes on"),
            ("DISABLE_TELEMETRY", "1 true yes on"),
            ("DO_NOT_TRACK", "1 true yes on"),
            ("HF_HUB_OFFLINE", "1 true yes on"),
        ),
    ),
    Import("telemetry", "ultralytics", "Ultralytics sends usage data and crash reports", "low"),
)
