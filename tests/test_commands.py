"""The command line: every verb really run, its exit statuses, its JSON, and its help."""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit import run
from labkit.__main__ import main, parser
from labkit.commands import proofs
from labkit.commands.records import spelled_out
from labkit.commands.settings_help import fields_in_words, settings_in_words
from labkit.config import field_names
from labkit.recipes.digits import load
from labkit.trials.child import Job, work

ROOT = Path(__file__).resolve().parents[1]
TOY = f"{Path(__file__).with_name('toys.py')}:Toy"
VERBS = ["train", "resume", "replay", "verify", "compare", "prove", "ablate", "ledger", "plan", "trials", "export",
         "predict", "review", "doctor"]  # fmt: skip


class Said:
    """What one command printed, and its status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self) -> Any:
        """The output as strict JSON: one value, without the words that Python's reader takes for numbers."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def labkit(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in this process, in an empty folder: labkit("train", "digits", ...) -> Said."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Said:
        capsys.readouterr()
        status = main(words)
        return Said(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the digits, made once; tests only read it."""
    folder = tmp_path_factory.mktemp("trained") / "digits"
    with run.start("digits", folder, updates=20, eval_every=10, question="does it learn?") as session:
        session.train()
    return folder


@pytest.fixture(scope="module")
def exported(trained: Path) -> Path:
    target = trained.parent / "inference"
    assert main(["export", "inference", str(trained), str(target)]) == 0
    return target


# --- train and resume -----------------------------------------------------------------------------------------------


def test_train_says_how_it_ended_and_json_holds_the_same(labkit: Any) -> None:
    said = labkit("train", TOY, "--run", "runs/a", "--updates", "4", "--set", "eval_every=2")
    assert said.status == 0 and said.out.startswith("finished: target reached: updates=4")
    assert "validation loss" in said.out
    told = labkit("train", TOY, "--run", "runs/b", "--updates", "4", "--set", "eval_every=2", "--json").json
    assert (told["status"], told["update"], told["updates_done"]) == ("finished", 4, 4)
    assert told["validation"]["loss"][1] == 10 and told["profile"] is None and told["seconds_used"] > 0


@pytest.mark.parametrize(("goal", "update"), [("--epochs=1", 6), ("--examples=5", 3), ("--tokens=5", 3)])
def test_every_goal_has_its_own_word(goal: str, update: int, labkit: Any) -> None:
    assert labkit("train", TOY, "--run", "a", goal, "--json").json["update"] == update


def test_resume_goes_on_to_a_new_target(labkit: Any) -> None:
    labkit("train", TOY, "--run", "a", "--updates", "3")
    told = labkit("resume", "a", "--updates", "5", "--json").json
    assert (told["update"], told["updates_done"]) == (5, 2)
    assert "continuing a from update 5" in labkit("resume", "a", "--updates", "6").err


def test_a_stopped_run_has_status_3_and_says_how_to_go_on(labkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = run.Session.train

    def stopping(self: run.Session, **settings: Any) -> run.Outcome:
        self.observers.append(lambda record: self.request_stop("asked to stop") if record.attempt == 2 else None)
        return original(self, **settings)

    monkeypatch.setattr(run.Session, "train", stopping)
    said = labkit("train", TOY, "--run", "a", "--updates", "9")
    assert said.status == 3 and "to go on: labkit resume a" in said.out


def test_a_run_that_failed_has_status_1_and_a_refusal_2(labkit: Any) -> None:
    words = ["train", TOY, "--run", "a", "--updates", "50", "--set", "rate=1e30", "momentum=0.9", "--json"]
    said = labkit(*words)
    assert said.status == 1 and said.json["status"] == "failed" and said.json["error"] == "NonfiniteError"
    assert "What to do:" in said.err
    said = labkit(*words)  # there is a run in this folder already
    assert said.status == 2 and said.out == "" and "holds a run already" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "raet=0.1"], "did you mean 'rate'?"),
        (["--set", "momentun=0.1"], "did you mean 'momentum'?"),
        (["--set", "rate"], "name=value"),
        (["--set", "rate=fast"], "a number"),
        (["--set", "rate=1", "rate=2"], "set twice"),
        (["--set", "updates=3", "--updates", "4"], "not both"),
        ([], "nothing says where the run ends"),
    ],
)
def test_wrong_settings_are_refused_with_the_remedy_before_anything_is_written(
    words: list[str], message: str, labkit: Any, tmp_path: Path
) -> None:
    goal = [] if not words or "--updates" in words else ["--updates", "3"]
    said = labkit("train", TOY, "--run", "a", *goal, *words)
    assert said.status == 2 and message in said.err and list(tmp_path.iterdir()) == []


def test_the_nearest_recipe_is_said(labkit: Any) -> None:
    assert "did you mean 'digits'?" in labkit("train", "digit", "--run", "a", "--updates", "1").err


def test_a_dry_run_makes_one_update_and_is_never_resumed(labkit: Any) -> None:
    said = labkit("train", TOY, "--run", "a", "--dry-run", "--json")
    assert said.status == 0 and said.json["status"] == "dry run" and said.json["loss_count"] == 2
    assert labkit("resume", "a", "--updates", "5").status == 2


def test_the_profile_is_a_table_for_people_and_numbers_for_machines(labkit: Any) -> None:
    words = ["--updates", "4", "--set", "profile=true", "eval_every=2"]
    said = labkit("train", TOY, "--run", "a", *words)
    kinds = ["data", "transfer", "forward", "backward", "measure", "optimizer", "ema", "record", "evaluation",
             "checkpoint"]  # fmt: skip
    for kind in [*kinds, "wall"]:
        assert re.search(rf"^{kind} +\d+\.\d+ s", said.out, re.MULTILINE), kind
    assert "of which profiling about" in said.out
    told = labkit("train", TOY, "--run", "b", *words, "--json").json["profile"]
    assert set(kinds) <= set(told["seconds"]) and told["overhead_seconds"] > 0
    assert sum(told["seconds"].values()) == pytest.approx(told["wall_seconds"], rel=0.05)


def test_words_for_the_ledger_are_taken_at_the_start(labkit: Any) -> None:
    labkit("train", TOY, "--run", "runs/a", "--updates", "1", "--question", "q?", "--baseline", "b",
           "--guardrails", "g", "--next-decision", "n")  # fmt: skip
    told = labkit("ledger", "show", "a", "--json").json
    assert [told[name] for name in ("question", "baseline", "guardrails", "next_decision")] == ["q?", "b", "g", "n"]


# --- verify, replay, compare, ablate, prove ---------------------------------------------------------------------------


def test_verify_tells_good_from_damaged(labkit: Any) -> None:
    labkit("train", TOY, "--run", "a", "--updates", "2")
    said = labkit("verify", "a", "--json")
    assert said.status == 0 and all(row["good"] for row in said.json)
    (state,) = Path("a/checkpoints/update-000000002").glob("state.pt")
    state.write_bytes(state.read_bytes()[:-1])
    said = labkit("verify", "a")
    assert said.status == 1 and "update-000000000: good" in said.out
    assert labkit("verify", "nowhere").status == 2


def test_compare_says_equal_or_where_two_runs_part(labkit: Any) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        labkit("train", TOY, "--run", name, "--updates", "3", "--set", f"seed={seed}")
    assert labkit("compare", "a", "b").status == 0
    said = labkit("compare", "a", "c", "--json")
    assert said.status == 1 and isinstance(said.json, dict)
    assert labkit("compare", "a", "nowhere").status == 2


def test_replay_runs_to_a_refused_attempt_again(labkit: Any) -> None:
    labkit("train", TOY, "--run", "a", "--updates", "50", "--set", "rate=1e30", "momentum=0.9")
    said = labkit("replay", "a", "--json")
    assert said.status == 0 and isinstance(said.json, dict)
    labkit("train", TOY, "--run", "b", "--updates", "2")
    assert labkit("replay", "b").status == 2  # nothing was refused there


@pytest.mark.slow
def test_ablate_drops_one_piece(labkit: Any) -> None:
    said = labkit("ablate", TOY, "--updates", "8", "--stop", "4", "--drop", "cursor", "--json")
    assert said.status == 0 and isinstance(said.json, dict)


@pytest.mark.slow
def test_prove_is_0_for_an_exact_recipe_and_1_for_one_that_forgets(
    labkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = functools.partial(proofs.prove, diagnose=False)  # naming the missing piece takes many more processes
    monkeypatch.setattr(proofs, "prove", quick)
    said = labkit("prove", TOY, "--updates", "4", "--stops", "2", "--json")
    assert said.status == 0 and said.json["exact"] is True
    (tmp_path / "forgets.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom toys import Toy\n"
        "class Forgets(Toy):\n    calls = 0\n"
        "    def objective(self, model, batch):\n"
        "        summed, count = super().objective(model, batch)\n"
        "        if model.training:\n            self.calls += 1\n"
        "            summed = summed * (1 + 0.1 * self.calls)\n"
        "        return summed, count\n"
    )
    said = labkit("prove", "forgets.py:Forgets", "--updates", "4", "--stops", "2", "--json")
    assert said.status == 1 and said.json["exact"] is False


# --- ledger -----------------------------------------------------------------------------------------------------------


def test_ledger_alone_lists_and_a_verb_after_it_asks_for_more() -> None:
    assert spelled_out(["ledger"]) == ["ledger", "list"]
    assert spelled_out(["ledger", "runs", "--json"]) == ["ledger", "list", "runs", "--json"]
    assert spelled_out(["ledger", "--csv", "x"]) == ["ledger", "list", "--csv", "x"]
    assert spelled_out(["ledger", "diff", "a", "b"]) == ["ledger", "diff", "a", "b"]
    assert spelled_out(["ledger", "./show"]) == ["ledger", "list", "./show"]
    assert spelled_out(["train", "ledger"]) == ["train", "ledger"]


def test_the_ledger_lists_filters_shows_compares_notes_and_exports(labkit: Any, tmp_path: Path) -> None:
    for name, rate in (("a", 0.01), ("b", 0.02)):
        labkit("train", TOY, "--run", f"runs/{name}", "--updates", "2", "--set", f"rate={rate}")
    assert [row["run"] for row in labkit("ledger", "--json").json] == ["a", "b"]
    assert [row["run"] for row in labkit("ledger", "runs", "--where", "rate=0.02", "--json").json] == ["b"]
    assert labkit("ledger").out.rstrip().endswith("2 runs") and labkit("ledger", "nowhere").status == 2
    said = labkit("ledger", "diff", "a", "b")
    assert said.status == 0 and "rate: 0.01 -> 0.02" in said.out
    changed = labkit("ledger", "diff", "runs/a", "runs/b", "--json").json["sections"]["config"]
    assert [(c["name"], c["a"], c["b"]) for c in changed] == [("rate", 0.01, 0.02)]
    assert labkit("ledger", "note", "runs/a", "--question", "why?", "--text", "because").status == 0
    assert labkit("ledger", "show", "a", "--json").json["question"] == "why?"
    assert "question: why?" in labkit("ledger", "show", "runs/a").out
    said = labkit("ledger", "note", "a")
    assert said.status == 2 and "--question" in said.err
    assert labkit("ledger", "show", "c").status == 2
    labkit("ledger", "runs", "--csv", "table.csv")
    assert (tmp_path / "table.csv").read_text().count("\n") == 3


def test_the_ledger_says_which_run_made_a_checkpoint_or_an_export(labkit: Any, trained: Path, exported: Path) -> None:
    below = ["--in", str(trained.parent)]
    for file in (trained / "checkpoints" / "update-000000020", exported, exported / "weights.safetensors"):
        said = labkit("ledger", "made", str(file), *below, "--json")
        assert said.status == 0 and {row["run"] for row in said.json} == {"digits"}, file
    Path("other").write_text("not made by a run")
    said = labkit("ledger", "made", "other", *below)
    assert said.status == 1 and "no run below" in said.out
    copied = Path("copied")
    copied.mkdir()
    (copied / "artefact.json").write_text((exported / "artefact.json").read_text())
    (copied / "weights.safetensors").write_bytes(b"other weights")  # the description does not vouch for these
    assert labkit("ledger", "made", str(copied / "weights.safetensors"), *below).status == 1


# --- plan and trials --------------------------------------------------------------------------------------------------


def test_a_plan_is_told_stored_and_checked(labkit: Any, tmp_path: Path) -> None:
    words = ["--set", "slow=0.005", "--sample", "0.1"]
    said = labkit("plan", TOY, "--updates", "30", *words, "--price", "2.5", "--currency", "CHF", "--devices", "2",
                  "--failures-per-day", "4", "--tolerate", "10min")  # fmt: skip
    assert said.status == 0 and said.out.rstrip().splitlines()[-1].startswith("30 updates take about")
    assert "CHF" in said.out and len(list((tmp_path / "plans").iterdir())) == 1 and "stored as" in said.err
    labkit("train", TOY, "--run", "a", "--updates", "30", "--set", "slow=0.005")
    said = labkit("plan", "--check", "a", "--json")
    assert said.json["real_updates"] == 30 and said.status == (0 if said.json["within"] else 1)
    assert labkit("plan").status == 2 and labkit("plan", TOY, "--updates", "3", "--tolerate", "soon").status == 2
    told = labkit("plan", TOY, "--epochs", "2", *words, "--json").json
    assert (told["updates"], told["ends_by"], told["examples"]) == (12, "epochs", 24)


def test_trials_compare_what_is_there_without_running_it_again(labkit: Any, tmp_path: Path) -> None:
    for rate in ("0.01", "0.02"):
        for seed in (0, 1):
            settings = {"rate": float(rate), "seed": seed, "updates": 3}
            work(Job(TOY, str(tmp_path / "t" / f"rate-{rate}" / f"seed-{seed}"), settings))
    words = ["trials", TOY, "--vary", "rate=0.01,0.02", "--seeds", "2", "--budget", "updates=3", "--folder", "t"]
    said = labkit(*words)
    assert said.status == 0 and "rate=0.02 against rate=0.01:" in said.out
    told = labkit(*words, "--json").json
    assert told["verdicts"]["0.02"]["pairs"] == 2 and len(told["trials"]) == 4
    assert labkit(*words[:2], "--vary", "rate", "--budget", "3").status == 2


# --- export and predict -----------------------------------------------------------------------------------------------


def test_digits_are_exported_and_classified(labkit: Any, trained: Path, exported: Path, tmp_path: Path) -> None:
    rows = [",".join(str(round(float(pixel) * 16)) for pixel in image.flatten()) for image in load("test").images[:2]]
    told = labkit("predict", str(exported), *rows, "--json").json["predictions"]
    assert len(told) == 2 and set(told[0]["probabilities"]) == set("0123456789")
    assert sum(told[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    from_file = labkit("predict", str(exported), "--file", "rows.csv")
    assert [line[0] for line in from_file.out.splitlines()] == [one["label"] for one in told]
    for words in (["1,2,3"], ["--set", "temperature=1", *rows], [], ["--file", "none.csv"], ["--file", "x", *rows]):
        assert labkit("predict", str(exported), *words).status == 2, words
    said = labkit("export", "inference", str(trained), str(exported))
    assert said.status == 2 and "there already" in said.err
    assert labkit("predict", str(trained)).status == 2  # a run folder is no artefact, and says what to do
    assert "labkit export inference" in labkit("predict", str(trained)).err


def test_names_are_invented_with_prompt_seed_and_temperature(labkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labkit("train", "names", "--run", "n", "--updates", "30")
    said = labkit("export", "inference", "n", "out", "--checkpoint", "newest", "--weights", "raw", "--json")
    assert said.status == 0 and said.json["kind"] == "inference" and said.json["training"]["committed"] == 30
    words = ["predict", "out", "jo", "ma", "--seed", "5", "--temperature", "0.5", "--count", "2", "--json"]
    told = labkit(*words).json["predictions"]
    assert [one["prompt"] for one in told] == ["jo", "jo", "ma", "ma"] and told == labkit(*words).json["predictions"]
    assert all(one["output"].startswith(one["prompt"]) and one["temperature"] == 0.5 for one in told)
    assert labkit("predict", "out").out.strip()  # one name from an empty beginning
    assert labkit("predict", "out", "jo", "--set", "longest=3").out.strip().__len__() <= 3
    assert labkit("predict", "out", "Jo").status == 2  # a letter that the vocabulary lacks
    monkeypatch.setattr(sys, "stdin", io.StringIO("an\nbe\n"))
    assert [line[:2] for line in labkit("predict", "out", "-").out.splitlines()] == ["an", "be"]


def test_an_adapter_is_exported_used_on_its_base_and_merged(labkit: Any, exported: Path, tmp_path: Path) -> None:
    (tmp_path / "adapted.py").write_text(
        "from labkit import export\nfrom labkit.recipe import Option\nfrom labkit.recipes.digits import Digits\n"
        "class Adapted(Digits):\n"
        "    options = {**Digits.options, 'base': Option('')}\n"
        "    def model(self, config):\n"
        "        model = export.load_inference(config.options['base']).model\n"
        "        export.attach(model, ['4'], rank=2)\n"
        "        return model\n"
    )
    recipe = f"{tmp_path / 'adapted.py'}:Adapted"
    assert labkit("train", recipe, "--run", "a", "--updates", "3", "--set", f"base={exported}").status == 0
    said = labkit("export", "adapter", "a", "adapter", "--base", str(exported), "--json")
    assert said.status == 0 and said.json["kind"] == "adapter"
    said = labkit("export", "merged", str(exported), "adapter", "merged", "--json")
    assert said.status == 0 and said.json["kind"] == "merged"
    row = " ".join(["8"] * 64)
    both = [labkit("predict", *words, row, "--json").json["predictions"]
            for words in ((str(exported), "--adapter", "adapter"), ("merged",))]  # fmt: skip
    assert both[0] == both[1]
    said = labkit("predict", "adapter", row)  # it says what it is, and refuses to be used as another
    assert said.status == 2 and "low-rank change" in said.err


# --- review, doctor ---------------------------------------------------------------------------------------------------


def test_review_finds_or_does_not(labkit: Any, tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text("print(1 + 1)\n")
    (tmp_path / "dirty.py").write_text("import shutil\nshutil.rmtree('runs')\n")
    assert labkit("review", "clean.py").status == 0
    said = labkit("review", "dirty.py", "--json")
    assert said.status == 1 and said.json
    assert labkit("review", "nowhere.py").status == 2


def test_doctor_looks_at_everything_and_gives_a_fix_for_each_failure(labkit: Any) -> None:
    said = labkit("doctor", "--json")
    assert {row["what"] for row in said.json} >= {"python", "torch", "device", "threads", "data", "disk"}
    assert said.status == (0 if all(row["well"] for row in said.json) else 1)
    assert all(row["fix"] for row in said.json if not row["well"])


# --- help and silence -------------------------------------------------------------------------------------------------


def helped(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_help_names_every_verb_with_one_line_each_and_a_way_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(capsys=capsys)
    for verb in VERBS:
        assert re.search(rf"^    {verb} +\w.*", text, re.MULTILINE), verb
    assert "labkit train digits --run runs/first" in text


def parsers(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of all its verbs."""
    yield one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_every_verb_explains_itself_and_each_of_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(parsers(parser()))
    assert len(found) == 1 + len(VERBS) + 5 + 3  # those of ledger and of export
    for one in found:
        assert one.description and one.description.endswith("."), one.prog
        for action in one._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), f"{one.prog}: {action.dest}"
        text = helped(*one.prog.split()[1:], capsys=capsys)
        assert text.startswith(f"usage: {one.prog}") and max(map(len, text.splitlines())) <= 100


def test_the_help_of_train_lists_every_setting_with_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped("train", capsys=capsys)
    fields = {field.name: field for field in fields_in_words()}
    assert list(fields) == [name for name in field_names() if name not in {"recipe", "options"}]
    for field in fields.values():
        assert field.text, f"{field.name} has no comment in config.py"
        assert re.search(rf"^    {field.name}=\S* +\S", text, re.MULTILINE), field.name
    assert "network=mlp" in text and "per=token" in text
    assert fields["order"].choices == "randperm, feistel" and fields["rate"].default == "1e-3"
    assert settings_in_words() in text


def test_the_parser_knows_all_verbs() -> None:
    assert set(next(a for a in parser()._actions if a.dest == "verb").choices) == set(VERBS)


def test_a_fresh_process_is_silent_in_ci_and_has_the_status_and_json_of_its_answer(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true"}
    words = [sys.executable, "-W", "error", "-m", "labkit", "train", TOY, "--run", "a", "--updates", "3", "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and done.stderr == "" and json.loads(done.stdout)["update"] == 3


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo terminal")
def test_a_terminal_sees_one_line_that_moves_and_is_cleared_at_the_end(tmp_path: Path) -> None:
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    words = [sys.executable, "-m", "labkit", "train", TOY, "--run", "a", "--updates", "60", "--set", "slow=0.02"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env={**env, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=follower,
        stderr=follower,
    )  # fmt: skip
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 4096):
            seen += chunk
    except OSError:  # the other side is closed
        pass
    os.close(leader)
    assert process.wait() == 0
    text = seen.decode()
    assert "time left" in text and "updates/s" in text and "\n" not in text.partition("finished:")[0].strip()
    assert text.rstrip().endswith("a is at update 60")

