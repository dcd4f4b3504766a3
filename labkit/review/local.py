"""Checks on calls that load, run, write or delete on this machine: given a view, a hit or None (lesson 10)."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from labkit.review.names import MISSING, UNKNOWN
from labkit.review.shell import read_command, read_words
from labkit.review.view import Hit, View

KEY_PREFIX: Final = re.compile(r"^(hf_|sk-|ghp_|gho_|github_pat_|AKIA|xox[abp]-|AIza|glpat-|npm_)[\w-]{12,}$")
KEY_NAME: Final = re.compile(r"(^|_)(api_?key|token|password|passwd|secret|access_key|secret_key)$", re.IGNORECASE)
KEY_TEXT: Final = re.compile(r"[A-Za-z0-9_.+/=-]{20,}")


def torch_load(view: View) -> Hit | None:
    """torch.load: safe with weights_only=True, and without the argument from 2.6 on."""
    value = view.value("weights_only")
    if value is True:
        return None
    if value is MISSING:
        side = view.pins.side("torch", (2, 6))
        if side == "from":
            return None
        if side == "below":
            return Hit(f"{view.text} without weights_only=True; the pinned torch is older than 2.6 and unpickles")
        return Hit(
            f"{view.text} without weights_only=True; an older torch than 2.6 would unpickle, and no version is pinned",
            "medium",
        )
    if value is UNKNOWN:
        return Hit(f"{view.text}: weights_only is decided elsewhere", "medium", "low")
    return Hit(f"{view.text} with weights_only={value} unpickles")


def pickled_arrays(view: View) -> Hit | None:
    """numpy.load reads pickles only when asked."""
    value = view.value("allow_pickle", 2)
    if value is True:
        return Hit(f"{view.text} with allow_pickle=True unpickles")
    return Hit(f"{view.text}: allow_pickle is decided elsewhere", "low", "low") if value is UNKNOWN else None


def unsafe_model(view: View) -> Hit | None:
    """Keras model files hold Python code when safe_mode is off."""
    return (
        Hit(f"{view.text} with safe_mode=False runs code from the file") if view.value("safe_mode") is False else None
    )


def yaml_loader(view: View) -> Hit | None:
    """yaml.load: by its loader."""
    loaders = {n.rsplit(".", 1)[-1] for n in view.names_of("Loader", 1)}
    if loaders & {"SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader"}:
        return None
    if loaders & {"FullLoader", "CFullLoader"}:
        return Hit(f"{view.text} with FullLoader builds more than plain values", "low")
    return Hit(f"{view.text} without a safe loader")


def code_from_text(view: View) -> Hit | None:
    """eval and exec: worst when the text comes from the network, mild when it stands in the source."""
    first = next(iter(view.node.args), None)
    if first is None:
        return None
    names = {n for part in ast.walk(first) if isinstance(part, ast.expr) for n in view.table.resolve(part, view.scope)}
    if any(re.match(r"^(requests|urllib|httpx|urllib3)\.", n) for n in names):
        return Hit(f"{view.text} runs text that comes from the network", "high")
    if isinstance(view.table.constant(first, view.scope), str):
        return Hit(f"{view.text} runs a text that stands in the source", "low")
    return Hit(f"{view.text} runs text as code")


def through_shell(view: View) -> list[Hit]:
    """os.system and its like: by the command, when the source tells it."""
    command = view.value("command", 0)
    if command is MISSING:
        command = view.value("cmd", 0)
    if isinstance(command, str):
        return read_command(command)
    return [Hit(f"{view.text} hands a text that is put together at run time to a shell", rule="shell")]


def subprocess_call(view: View) -> list[Hit]:
    """subprocess: a shell when asked for; a list of words is read as a command."""
    command, shell = view.value("args", 0), view.value("shell")
    if shell is True:
        if isinstance(command, str):
            return [
                Hit(f"{view.text} with shell=True", "low", rule="shell"),
                *(h for h in read_command(command) if h.rule != "shell"),
            ]
        return [Hit(f"{view.text} with shell=True and a text that is put together at run time", rule="shell")]
    found = view.argument("args", 0)
    if isinstance(command, list) and isinstance(found, tuple):
        first = (
            view.table.resolve(found[0].elts[0], found[1])
            if isinstance(found[0], ast.List) and found[0].elts
            else frozenset()
        )
        words = [w if isinstance(w, str) else "?" for w in command]
        if "sys.executable" in first:
            words[0] = "python"
        return [h for h in read_words(words) if h.rule != "shell"]
    return []


def line_magic(view: View) -> list[Hit]:
    """IPython's line magics: installs, deletions and shell aliases."""
    name, rest = view.value("name", 0), view.value("line", 1)
    if not isinstance(name, str) or not isinstance(rest, str):
        return []
    if name in ("pip", "conda", "mamba", "uv", "rm", "rmdir"):
        return read_command(f"{name} {rest}")
    return (
        [Hit(f"%{name} {rest[:40]} starts a program that was not reviewed", "low", rule="shell")]
        if name == "run"
        else []
    )


def opened_for_writing(view: View) -> Hit | None:
    """open(fixed name, 'w')."""
    plain = bool({"builtins.open", "io.open"} & view.names)
    where = view.value("file", 0) if plain else _receiver(view)
    mode = view.value("mode", 1 if plain else 0)
    return _fixed(view, where) if isinstance(mode, str) and "w" in mode else None


def written_to_receiver(view: View) -> Hit | None:
    """Path('fixed').write_text(...)."""
    return _fixed(view, _receiver(view))


def written_first(view: View) -> Hit | None:
    """np.save('fixed', ...), frame.to_csv('fixed')."""
    return _fixed(view, view.value("file", 0))


def folder_reused(view: View) -> Hit | None:
    """makedirs('fixed', exist_ok=True): what the run before left there stays and is written over."""
    plain = "os.makedirs" in view.names
    if view.value("exist_ok", 2 if plain else 1) is not True:
        return None
    where = view.value("name", 0) if plain else _receiver(view)
    return (
        Hit(f"{view.text} goes on in the fixed folder {where[:60]!r} of an earlier run")
        if isinstance(where, str)
        else None
    )


def written_second(view: View) -> Hit | None:
    """torch.save(x, 'fixed'), shutil.move(a, 'fixed')."""
    where = view.value("f", 1)
    return _fixed(view, where if where is not MISSING else view.value("dst", 1))


def _receiver(view: View) -> Any:
    return (
        view.table.constant(view.node.func.value, view.scope) if isinstance(view.node.func, ast.Attribute) else UNKNOWN
    )


def _fixed(view: View, where: Any) -> Hit | None:
    if not isinstance(where, str) or where.startswith(("/dev/", "/proc/")) or not where:
        return None
    return Hit(f"{view.text} writes to the fixed place {where[:60]!r} without looking whether it is taken")


def keyed_literal(name: str, value: Any) -> bool:
    """Whether a value that goes by this name looks like a real key rather than a stand-in."""
    if not isinstance(value, str):
        return False
    if KEY_PREFIX.match(value):
        return len(set(value)) > 8
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return bool(KEY_NAME.search(name) and KEY_TEXT.fullmatch(value)) and mixed
