"""Checks on calls that report, upload or fetch: given a view, a hit or None (lesson 10)."""

from __future__ import annotations

import re
from typing import Final

from labkit.review.names import MISSING, UNKNOWN
from labkit.review.view import Hit, View

LOCAL_TRACKERS: Final = {"none", "tensorboard", "csv", "jsonl"}
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
ADDRESS: Final = re.compile(r"^(https?|ftp|s3|gs|hf)://")
PACKAGED: Final = {"csv", "json", "parquet", "text", "arrow", "imagefolder", "audiofolder", "webdataset"}


def truthy(text: str) -> bool:
    """How environment switches are commonly read."""
    return text.strip().lower() in ("1", "true", "yes", "on")


def tracker_mode(view: View) -> Hit | None:
    """wandb.init and its like: quiet with mode='offline' or 'disabled'."""
    mode = view.value("mode")
    if mode in ("offline", "disabled", "dryrun") or view.value("offline", 99) is True:
        return None
    if mode is UNKNOWN:
        return Hit(f"{view.text} may start a run at an outside service; its mode is set elsewhere", "medium", "medium")
    return Hit(f"{view.text} starts a run at an outside service")


def offline_logger(view: View) -> Hit | None:
    """Loggers of Lightning: quiet with offline=True."""
    return None if view.value("offline") is True else Hit(f"{view.text} sends every logged value to an outside service")


def tracking_uri(view: View) -> Hit | None:
    """MLflow: a folder or database on this machine is quiet."""
    uri = view.value("tracking_uri" if "Logger" in view.text else "uri", 0 if "Logger" not in view.text else None)
    if isinstance(uri, str):
        remote = re.match(r"^(https?://(?!localhost|127\.|\[::1\])|databricks)", uri)
        return Hit(f"{view.text} sends records to {uri.split('@')[-1][:60]}") if remote else None
    return Hit(f"{view.text} sends records to an address that is set elsewhere", "medium", "medium")


def report_to(view: View) -> Hit | None:
    """TrainingArguments: what is reported hangs on report_to, without it on the version installed."""
    value = view.value("report_to")
    if value is MISSING or value is None:
        side = view.pins.side("transformers", (5,))
        if side == "from":
            return None
        if side == "below":
            return Hit(
                f"{view.text} without report_to reports to every installed tracker (transformers is pinned below 5)"
            )
        return Hit(
            f"{view.text} without report_to: whether trackers are fed is decided by the version installed, and none "
            f"is pinned",
            "high",
        )
    if value is UNKNOWN:
        return Hit(f"{view.text}: report_to is decided elsewhere", "medium", "low")
    wanted = {value} if isinstance(value, str) else set(map(str, value)) if isinstance(value, list) else {str(value)}
    loud = sorted(wanted - LOCAL_TRACKERS)
    return Hit(f"{view.text} reports to {', '.join(loud)}", "high") if loud else None


def log_with(view: View) -> Hit | None:
    """accelerate.Accelerator: silent unless log_with names a tracker."""
    value = view.value("log_with")
    wanted = {value} if isinstance(value, str) else set(value) if isinstance(value, list) else set()
    loud = sorted(str(w) for w in wanted if w not in LOCAL_TRACKERS)
    return Hit(f"{view.text} reports to {', '.join(loud)}") if loud else None


def shared(view: View) -> Hit | None:
    """launch(share=True) opens a public tunnel."""
    return Hit(f"{view.text} with share=True opens a public address") if view.value("share") is True else None


def pretrained(view: View) -> Hit | None:
    """Model builders fetch weights when weights= or pretrained= asks for them."""
    weights, flag = view.value("weights"), view.value("pretrained")
    if flag is True or (weights is not MISSING and weights is not None):
        return Hit(f"{view.text} fetches weights")
    return None


def address(view: View) -> Hit | None:
    """Readers of tables and arrays fetch when their first argument is an address."""
    first = next((view.table.constant(a, view.scope) for a in view.node.args[:1]), UNKNOWN)
    return Hit(f"{view.text} fetches {first[:60]}") if isinstance(first, str) and ADDRESS.match(first) else None


def moving_reference(view: View) -> Hit | None:
    """from_pretrained, load_dataset and the hub's downloads: pinned by a commit in revision."""
    offline = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"} & {
        k for k, s in view.settings.items() if truthy(s.value)
    }
    if offline or view.value("local_files_only") is True:
        return None
    revision = view.value("revision")
    if isinstance(revision, str) and not COMMIT.fullmatch(revision):
        return Hit(f"{view.text} names {revision!r}, a branch or tag that can move")
    if isinstance(revision, str) or revision is UNKNOWN:
        return None
    names = ("repo_id", "path", "pretrained_model_name_or_path")
    what = next((v for v in (view.value(n, 0) for n in names) if v is not MISSING), MISSING)
    if isinstance(what, str):
        remote_files = any(ADDRESS.match(str(view.value(n))) for n in ("data_files",))
        packaged = what in ("csv", "json", "parquet", "text", "arrow", "imagefolder", "audiofolder", "webdataset")
        if what.startswith((".", "/", "~")) or (packaged and not remote_files):
            return None
        return Hit(f"{view.text}({what!r}) takes whatever that name holds today")
    return Hit(
        f"{view.text} takes whatever the name it is given holds today, unless that is a local folder", "low", "low"
    )


def hub_repository(view: View) -> Hit | None:
    """torch.hub.load runs the repository's own file; source='local' stays on this machine."""
    return None if view.value("source") == "local" else Hit(f"{view.text} fetches a repository and runs its code")
