"""labkit export, labkit predict: a trained model for use, beside the checkpoints that are for going on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.commands.words import add_json, explained, show
from labkit.errors import ConfigError, ExportError
from labkit.export import (
    Artefact,
    Inference,
    export_adapter,
    export_inference,
    export_merged,
    load_adapter,
    load_inference,
)
from labkit.export.inputs import read_inputs


def add(verbs: Any) -> None:
    """Describe the verbs of this page."""
    verb = verbs.add_parser("export", help="make a model for use from a run: inference, adapter or merged")
    verb.description = "Each is tried on real examples before it gets its name, and says what it is and is not for."
    kinds = verb.add_subparsers(dest="kind", metavar="KIND", required=True)

    one = explained(kinds, "inference", "weights and all that is needed to rebuild and use the model")
    _from_run(one)
    one.add_argument("--weights", choices=("raw", "ema"), help="default: those that the run evaluated")
    one.set_defaults(run=_inference)

    one = explained(kinds, "adapter", "the low-rank change that a run trained, bound to its exact base")
    _from_run(one)
    one.add_argument("--base", type=Path, required=True, metavar="DIR", help="the artefact that it was made on")
    one.set_defaults(run=_adapter)

    one = explained(kinds, "merged", "base and adapter made one model, checked against both")
    one.add_argument("base", type=Path, metavar="BASE", help="the artefact that the adapter was made on")
    one.add_argument("adapter", type=Path, metavar="ADAPTER", help="the adapter artefact")
    one.add_argument("target", type=Path, metavar="TARGET", help="the new folder")
    _run_code(one)
    add_json(one)
    one.set_defaults(run=_merged)

    verb = verbs.add_parser("predict", help="use an inference or merged artefact")
    verb.description = (
        "Inputs are arguments, or the lines of a file: beginnings of names for names (none: one empty beginning), 64 "
        "numbers from 0 to 16 for each image of digits. Decoding settings that the artefact holds can be changed."
    )
    verb.add_argument("artefact", type=Path, metavar="DIR", help="what `labkit export` made")
    verb.add_argument("inputs", nargs="*", metavar="INPUT", help="one input each; - alone: lines of standard input")
    verb.add_argument("--file", type=Path, metavar="FILE", help="read the inputs from a file, one a line")
    verb.add_argument("--adapter", type=Path, metavar="DIR", help="use the artefact with this adapter on it")
    verb.add_argument("--seed", type=int, help="for decoding settings that have a seed")
    verb.add_argument("--temperature", type=float, help="for decoding settings that have a temperature")
    verb.add_argument("--count", type=int, help="for decoding settings that have a count")
    verb.add_argument(
        "--set", dest="settings", action="append", nargs="+", default=[], metavar="NAME=VALUE",
        help="any other decoding setting of the artefact",
    )  # fmt: skip
    _run_code(verb)
    add_json(verb)
    verb.set_defaults(run=_predict)


def take_inputs(asked: argparse.Namespace, rest: Sequence[str]) -> bool:
    """Inputs that stand behind an option, which argparse leaves over; False when they are something else."""
    if asked.verb != "predict" or any(word.startswith("-") and word != "-" for word in rest):
        return False
    asked.inputs += rest
    return True


def _from_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("source", type=Path, metavar="RUN", help="the run folder")
    verb.add_argument("target", type=Path, metavar="TARGET", help="the new folder")
    verb.add_argument(
        "--checkpoint", type=_checkpoint, default="best", metavar="best|newest|N",
        help="the best one (default; the newest where none was found best), the newest, or that of update N",
    )  # fmt: skip
    add_json(verb)


def _run_code(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--run-code", action="store_true",
        help="run the recipe's file inside the artefact; look at it first: labkit review DIR",
    )  # fmt: skip


def _checkpoint(text: str) -> str | int:
    if text in ("best", "newest"):
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not best, newest or the number of an update") from None


def _inference(asked: argparse.Namespace) -> int:
    made = export_inference(asked.source, asked.target, checkpoint=asked.checkpoint, weights=asked.weights)
    return _told(asked, made)


def _adapter(asked: argparse.Namespace) -> int:
    return _told(asked, export_adapter(asked.source, asked.target, base=asked.base, checkpoint=asked.checkpoint))


def _merged(asked: argparse.Namespace) -> int:
    return _told(asked, export_merged(asked.base, asked.adapter, asked.target, run_code=asked.run_code))


def _told(asked: argparse.Namespace, made: Artefact) -> int:
    kept = ("kind", "says", "parameters", "digest", "training", "evaluation")
    about = {name: made.about[name] for name in kept if name in made.about}
    show(asked, str(made), {"path": str(made.path), **about})
    return 0


# --- use --------------------------------------------------------------------------------------------------------------


def _predict(asked: argparse.Namespace) -> int:
    if asked.adapter is not None:
        model = load_adapter(asked.adapter, asked.artefact, run_code=asked.run_code)
    else:
        model = load_inference(asked.artefact, run_code=asked.run_code)
    answers = model.predict(_inputs(asked, model), **_decoding(asked, model))
    show(asked, "\n".join(map(_in_words, answers)), {"remarks": list(model.remarks), "predictions": list(answers)})
    return 0


def _inputs(asked: argparse.Namespace, model: Inference) -> list[Any] | None:
    """Inputs from arguments, a file or standard input; none at all where the artefact can do without."""
    if asked.inputs and asked.file is not None:
        raise ConfigError("inputs and --file are both given", "one of them", "leave one out")
    if asked.file is not None or asked.inputs == ["-"]:
        return read_inputs(_text(asked.file), model.description)
    if asked.inputs:
        return read_inputs("\n".join(asked.inputs), model.description)
    wanted = model.description.get("inputs", {"kind": "text"})
    if wanted["kind"] == "text":
        return None
    raise ExportError(
        "there is nothing to predict from", f"inputs: {wanted.get('meaning', wanted['kind'])}",
        "give them as arguments, with --file FILE, or with - on standard input",
    )  # fmt: skip


def _text(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{file} cannot be read ({type(error).__name__})", "a text file", "check the path") from error


def _decoding(asked: argparse.Namespace, model: Inference) -> dict[str, Any]:
    """Settings in the type of the stored ones; predict() refuses unknown names."""
    given = {name: getattr(asked, name) for name in ("seed", "temperature", "count")}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    stored = dict(model.description.get("decoding", {}))
    for word in (word for words in asked.settings for word in words):
        name, equals, text = word.partition("=")
        if not equals or name in settings:
            raise ConfigError(f"--set {word!r}", "NAME=VALUE, each name once", "for example --set longest=12")
        kind = type(stored.get(name, text))
        try:
            settings[name] = kind(text)
        except ValueError:
            raise ConfigError(f"{name}={text!r}", f"a value of type {kind.__name__}", "correct it") from None
    return settings


def _in_words(answer: Any) -> str:
    """One prediction on one line: probabilities as the three likeliest, everything else as it is."""
    chances = answer.get("probabilities")
    if isinstance(chances, dict):
        likely: Sequence[tuple[str, float]] = sorted(chances.items(), key=lambda item: -item[1])[:3]
        return f"{answer['label']}  (" + ", ".join(f"{label} {chance:.1%}" for label, chance in likely) + ")"
    return str(answer["output"]) if "output" in answer else str(dict(answer))
