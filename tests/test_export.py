"""Artefacts for use: the same bits in a fresh process, bound to their base, never taken for another kind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from labkit import export, run
from labkit.errors import CheckpointError, ExportError, LabkitError, RecipeError, StorageError
from labkit.export.inputs import read_inputs
from labkit.export.weights import contents, slots
from labkit.files import Files
from labkit.recipes.digits import load as load_digits
from labkit.recipes.digits import probabilities

UPDATES = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three short runs and the base artefact of one of them; tests only read them."""
    place = tmp_path_factory.mktemp("runs")
    settings = {"updates": UPDATES, "eval_every": 3, "ema_decay": 0.5}
    with run.start("digits", place / "mlp", **settings) as session:
        session.train()
    averaging = {"ema_buffers": "recompute", "eval_weights": "ema"}
    with run.start("digits", place / "conv", network="conv", **averaging, **settings) as session:
        session.train()
    with run.start("names", place / "names", updates=UPDATES) as session:
        session.train()
    export.export_inference(place / "mlp", place / "base", checkpoint="newest")
    export.export_inference(place / "names", place / "speller")
    return place


@pytest.fixture
def images() -> Tensor:
    return load_digits("test").images[:20]


def live(place: Path) -> nn.Module:
    """The model of the newest checkpoint, in this process."""
    with run.resume(place) as session:
        return session.state.model


def fresh(code: str, *arguments: object) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rebuilt(text: str, into: Path, name: str = "recipe.py") -> Path:
    path = into / name
    path.write_text(text)
    return path


# --- inference ----------------------------------------------------------------------------------------------------


def test_a_fresh_process_rebuilds_both_models_and_gives_the_same_bits(folder: Path, images: Tensor) -> None:
    code = (
        "import json, sys, torch; torch.set_num_threads(1)\n"
        "from labkit import export\n"
        "from labkit.recipes.digits import load\n"
        "found, speller = export.load_inference(sys.argv[1]), export.load_inference(sys.argv[2])\n"
        "images = load('test').images[:20]\n"
        "scores = [x.hex() for x in found.model(images).flatten().tolist()]\n"
        "labels = [answer['label'] for answer in found.predict(images)]\n"
        "answers = speller.predict(['mi', ''], seed=3, temperature=0.5, count=2)\n"
        "print(json.dumps([scores, labels, [answer['output'] for answer in answers]]))\n"
    )
    scores, labels, names = json.loads(fresh(code, folder / "base", folder / "speller"))
    model = live(folder / "mlp").eval()
    assert scores == [x.hex() for x in model(images).flatten().tolist()]
    assert labels == [str(n) for n in probabilities(model, images).argmax(1).tolist()]
    speller = export.load_inference(folder / "speller")
    assert names == [a["output"] for a in speller.predict(["mi", ""], seed=3, temperature=0.5, count=2)]
    assert len(names) == 4 and names[0].startswith("mi")
    assert names != [a["output"] for a in speller.predict(["mi", ""], seed=4, temperature=0.5, count=2)]


def test_the_artefact_says_what_it_is_and_carries_what_use_needs(folder: Path) -> None:
    about = export.read(folder / "base", ("inference",)).about
    assert about["kind"] == "inference" and "no optimizer" in about["says"]
    assert about["description"]["labels"] == [str(n) for n in range(10)]
    assert about["description"]["preprocessing"]["divide_by"] == 16
    assert about["architecture"]["1.weight"] == "(64, 64) float32" and about["parameters"] == 4810
    assert about["training"] == {
        "committed": UPDATES,
        "examples": UPDATES * 64,
        "tokens": UPDATES * 64,
        "epochs": UPDATES * 64 / 1257,
        "seconds": about["training"]["seconds"],
    }
    assert about["training"]["seconds"] > 0
    provenance = about["provenance"]
    assert (provenance["run"], provenance["checkpoint"]) == ("mlp", f"update-{UPDATES:09d}")
    assert provenance["data"]["train"]["digest"] and provenance["packages"]["torch"]
    speller = export.read(folder / "speller", ("inference",)).about["description"]
    assert speller["vocabulary"].startswith("abc") and set(speller["decoding"]) >= {"seed", "temperature"}


def test_no_absolute_path_and_no_patch_travels_with_an_artefact(folder: Path) -> None:
    text = (folder / "base" / "artefact.json").read_text()
    assert str(folder) not in text and "diff --git" not in text


def test_the_vocabulary_comes_from_the_artefact_not_from_the_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(name: str) -> str:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr("labkit.recipes.shipped.read", gone)
    (answer,) = export.load_inference(folder / "speller").predict(["jo"])
    assert answer["output"].startswith("jo")


def test_predicting_leaves_modes_buffers_and_random_streams_as_they_were(folder: Path, images: Tensor) -> None:
    found = export.load_inference(folder / "base")
    found.model.train()
    found.model[3].eval()
    before, state = [m.training for m in found.model.modules()], torch.get_rng_state()
    found.predict(images)
    assert [m.training for m in found.model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_careless_predict_of_a_recipe_leaves_no_trace_either(folder: Path, images: Tensor) -> None:
    from labkit.recipes.digits import Digits

    class Careless(Digits):
        def predict(self, model: nn.Module, inputs: Any, labels: Any) -> Any:
            torch.rand(3)
            model.train()
            return model(inputs)

    found = export.load_inference(folder / "base", recipe=Careless())
    state = torch.get_rng_state()
    answer: Any = found.predict(images)
    assert torch.equal(torch.get_rng_state(), state) and not found.model.training and not answer.requires_grad


def test_an_artefact_introduces_itself_in_a_sentence(folder: Path) -> None:
    said = str(export.read(folder / "base", ("inference",)))
    assert said.startswith(
        f"base: inference artefact of mlp, update {UPDATES}: 4,810 parameters, 19,576 bytes. A complete"
    )


def test_exporting_and_loading_move_no_random_stream_and_not_the_run(folder: Path, tmp_path: Path) -> None:
    files = {path: path.read_bytes() for path in (folder / "mlp").rglob("*") if path.is_file()}
    state = torch.get_rng_state()
    export.export_inference(folder / "mlp", tmp_path / "out")
    export.load_inference(tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), state)
    assert {path: path.read_bytes() for path in (folder / "mlp").rglob("*") if path.is_file()} == files


def test_unknown_decoding_settings_are_refused(folder: Path) -> None:
    with pytest.raises(ExportError, match="temprature.*temperature"):
        export.load_inference(folder / "speller").predict(["a"], temprature=0.5)


def test_raw_and_averaged_weights_are_told_apart(folder: Path, tmp_path: Path) -> None:
    raw = export.export_inference(folder / "mlp", tmp_path / "raw", checkpoint="newest")
    averaged = export.export_inference(folder / "mlp", tmp_path / "ema", checkpoint="newest", weights="ema")
    assert (raw.about["weights"], averaged.about["weights"]) == ("raw", "ema")
    with run.resume(folder / "mlp") as session:
        average = session.state.ema.state_dict()["average"]
        own = session.state.model.state_dict()
    assert all(torch.equal(value, average[name]) for name, value in averaged.tensors().items())
    assert all(torch.equal(value, own[name]) for name, value in raw.tensors().items())
    assert raw.about["digest"] != averaged.about["digest"]


def test_an_average_that_recomputes_batchnorm_is_exported_with_the_statistics_it_was_evaluated_with(
    folder: Path, tmp_path: Path
) -> None:
    found = export.export_inference(folder / "conv", tmp_path / "out", checkpoint="newest")
    assert found.about["weights"] == "ema"
    model = export.load_inference(tmp_path / "out").model
    data = load_digits("validation")
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(data.images[:256]), data.labels[:256], reduction="sum")
        loss = loss.double() + nn.functional.cross_entropy(model(data.images[256:]), data.labels[256:], reduction="sum")
    assert float(loss) == pytest.approx(found.about["evaluation"]["loss"][0], rel=1e-6)  # sums of float32 batches


def test_the_best_checkpoint_is_taken_unless_another_is_named(folder: Path, tmp_path: Path) -> None:
    with run.resume(folder / "mlp") as session:
        best = session.state.best.update
    found = export.export_inference(folder / "mlp", tmp_path / "best")
    assert found.about["training"]["committed"] == best
    third = export.export_inference(folder / "mlp", tmp_path / "third", checkpoint=3)
    assert third.about["training"]["committed"] == 3
    with pytest.raises(CheckpointError, match="update 4"):
        export.export_inference(folder / "mlp", tmp_path / "none", checkpoint=4)
    with pytest.raises(ExportError, match="newest"):
        export.export_inference(folder / "mlp", tmp_path / "none", checkpoint="last")
    with pytest.raises(ExportError, match="ema_decay"):
        export.export_inference(folder / "names", tmp_path / "none", weights="ema")
    assert not (tmp_path / "none").exists()


# --- a recipe of the user's -----------------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn
from labkit.recipe import Recipe, Splits

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.scores = nn.Linear(5, 7, bias=False)
        self.scores.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(5), persistent=False)
        big = torch.rand(1000)
        self.register_buffer("view", big[:5])
    def forward(self, x):
        return self.scores(self.embedding(x) * self.scale * self.view)

class Own(Recipe):
    name = "own"
    def splits(self, config):
        data = [(torch.tensor(i % 7), torch.tensor((i + 1) % 7)) for i in range(32)]
        return Splits(data, data[:8])
    def model(self, config):
        return Net()
    def objective(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])
    def count(self, batch):
        return len(batch[1])
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    file = rebuilt(OWN, tmp_path / "code")
    with run.start(f"{file}:Own", tmp_path / "run", updates=3, batch_size=8) as session:
        session.train()
    return tmp_path


def test_tied_weights_hidden_buffers_and_views_come_back_from_a_file_recipe(own: Path) -> None:
    found = export.export_inference(own / "run", own / "out")
    assert sorted(found.tensors()) == ["embedding.weight", "scale", "view"]
    assert found.about["ties"] == {"scores.weight": "embedding.weight"} and found.about["hidden_buffers"] == ["scale"]
    assert (own / "out" / "weights.safetensors").stat().st_size < 1000  # the view came without its 4,000 bytes
    torch.manual_seed(99)  # the buffers are drawn: a rebuilt model would hold others
    model: Any = export.load_inference(own / "out").model
    assert model.scores.weight is model.embedding.weight
    original: Any = live(own / "run")
    assert torch.equal(model.scale, original.scale) and torch.equal(model.view, original.view)
    assert torch.equal(model(torch.arange(7)), original.eval()(torch.arange(7)))


def test_code_in_an_artefact_runs_only_when_told_to(own: Path) -> None:
    export.export_inference(own / "run", own / "out")
    shutil.move(own / "code", own / "elsewhere")
    with pytest.raises(ExportError, match="not here, or has changed.*run_code"):
        export.load_inference(own / "out")
    assert export.load_inference(own / "out", run_code=True).model(torch.arange(7)).shape == (7, 7)
    (own / "code").mkdir()
    rebuilt(OWN + "\nraise RuntimeError('changed code ran')\n", own / "code")
    with pytest.raises(ExportError, match="has changed"):
        export.load_inference(own / "out")


def test_a_recipe_that_builds_another_model_now_is_refused(own: Path) -> None:
    export.export_inference(own / "run", own / "out")
    other = rebuilt(OWN.replace("(7, 5)", "(7, 6)").replace("(5, 7", "(6, 7").replace("[:5]", "[:6]"), own, "other.py")
    from labkit.recipes import find

    with pytest.raises(ExportError, match="is stored as"):
        export.load_inference(own / "out", recipe=find(f"{other}:Own"))


def test_a_recipe_without_predict_says_so(own: Path) -> None:
    export.export_inference(own / "run", own / "out")
    with pytest.raises(ExportError, match="no predict"):
        export.load_inference(own / "out").predict([1])


def test_a_run_started_from_an_object_needs_that_object(tmp_path: Path) -> None:
    from labkit.recipes.digits import Digits

    class Mine(Digits):
        pass

    with run.start(Mine(), tmp_path / "run", updates=1) as session:
        session.train()
    with pytest.raises(RecipeError, match="pass recipe="):
        export.export_inference(tmp_path / "run", tmp_path / "out")
    export.export_inference(tmp_path / "run", tmp_path / "out", recipe=Mine())
    with pytest.raises(RecipeError, match="pass recipe="):
        export.load_inference(tmp_path / "out")
    assert export.load_inference(tmp_path / "out", recipe=Mine()).remarks == ()


# --- adapter and merged ---------------------------------------------------------------------------------------------

ADAPTING = """
from labkit import export
from labkit.recipe import Option
from labkit.recipes.digits import Digits

class Adapted(Digits):
    options = {**Digits.options, "base": Option("", help="the base artefact"), "freeze": Option(True)}
    def model(self, config):
        model = export.load_inference(config.options["base"]).model
        export.attach(model, ["4", "1"], rank=2, scale=0.5)
        if not config.options["freeze"]:
            model[4].bias.requires_grad_(True)
        return model
"""


@pytest.fixture(scope="module")
def adapted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained an adapter on the base, its adapter artefact and the merged one."""
    place = tmp_path_factory.mktemp("adapted")
    file = rebuilt(ADAPTING, place)
    with run.start(f"{file}:Adapted", place / "run", updates=UPDATES, base=str(folder / "base")) as session:
        session.train()
    export.export_adapter(place / "run", place / "adapter", base=folder / "base")
    export.export_merged(folder / "base", place / "adapter", place / "merged")
    return place


def test_an_untrained_adapter_changes_nothing_and_only_it_is_trainable(folder: Path, images: Tensor) -> None:
    model = export.load_inference(folder / "base").model
    before = model(images)
    assert export.attach(model, ["*"], rank=3) == ["1", "4"]
    assert torch.equal(model(images), before)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trainable) == 4 and all(name.endswith((".left", ".right")) for name in trainable)


def test_the_adapter_carries_its_low_rank_change_and_the_digest_of_its_base(folder: Path, adapted: Path) -> None:
    found = export.read(adapted / "adapter", ("adapter",))
    assert {name: tuple(t.shape) for name, t in found.tensors().items()} == {
        "1.left": (64, 2),
        "1.right": (2, 64),
        "4.left": (10, 2),
        "4.right": (2, 64),
    }
    assert all(bool(t.abs().sum() > 0) for name, t in found.tensors().items())
    assert found.about["base"]["digest"] == export.read(folder / "base", ("inference",)).about["digest"]
    assert found.about["layers"]["4"] == {"rank": 2, "scale": 0.5}


def test_the_adapter_on_its_base_is_the_trained_model_bit_for_bit(folder: Path, adapted: Path, images: Tensor) -> None:
    loaded = export.load_adapter(adapted / "adapter", folder / "base")
    trained = live(adapted / "run").eval()
    assert torch.equal(loaded.model(images), trained(images))
    assert not torch.equal(loaded.model(images), export.load_inference(folder / "base").model(images))


def test_another_base_is_refused_with_both_digests_shown(folder: Path, adapted: Path, tmp_path: Path) -> None:
    other = export.export_inference(folder / "mlp", tmp_path / "other", checkpoint=3)
    made_on = export.read(adapted / "adapter", ("adapter",)).about["base"]["digest"]
    with pytest.raises(ExportError) as caught:
        export.load_adapter(adapted / "adapter", tmp_path / "other")
    assert other.about["digest"] in caught.value.found and made_on in caught.value.expected
    with pytest.raises(ExportError, match="digest"):
        export.export_merged(tmp_path / "other", adapted / "adapter", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_merged_model_gives_the_same_bits_and_has_plain_layers(folder: Path, adapted: Path, images: Tensor) -> None:
    merged = export.load_inference(adapted / "merged")
    pair = export.load_adapter(adapted / "adapter", folder / "base")
    assert torch.equal(merged.model(images), pair.model(images))
    assert set(merged.model.state_dict()) == {"1.weight", "1.bias", "4.weight", "4.bias"}
    about = merged.artefact.about
    assert str(merged.artefact).startswith("merged: merged artefact of base and an adapter, update 6: 4,810 parameters")
    assert about["kind"] == "merged" and about["provenance"]["base"]["name"] == "base"
    assert [a["label"] for a in merged.predict(images)] == [a["label"] for a in pair.predict(images)]


def test_a_merge_that_changes_one_bit_is_not_published(
    folder: Path, adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import labkit.export.merged as page

    def careless(model: nn.Module) -> list[str]:
        layers = export.merge(model)
        with torch.no_grad():
            model[4].bias[0] = torch.nextafter(model[4].bias[0], torch.tensor(1.0))
        return layers

    monkeypatch.setattr(page, "merge", careless)
    with pytest.raises(ExportError, match="merged model differs on real batch 0, by up to"):
        export.export_merged(folder / "base", adapted / "adapter", tmp_path / "merged")
    assert list(tmp_path.iterdir()) == []


def test_a_merge_is_tried_on_batches_of_ones_own(folder: Path, adapted: Path, tmp_path: Path) -> None:
    data = load_digits("test")
    export.export_merged(folder / "base", adapted / "adapter", tmp_path / "a", batches=[(data.images, data.labels)])
    with pytest.raises(ExportError, match="no real example"):
        export.export_merged(folder / "base", adapted / "adapter", tmp_path / "b", batches=[])


def test_a_run_that_moved_more_than_its_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    file = rebuilt(ADAPTING, tmp_path)
    base = str(folder / "base")
    with run.start(f"{file}:Adapted", tmp_path / "run", updates=2, base=base, freeze=False) as session:
        session.train()
    with pytest.raises(ExportError, match=r"4\.bias differ from the base"):
        export.export_adapter(tmp_path / "run", tmp_path / "out", base=folder / "base")
    with pytest.raises(ExportError, match="carries no adapter"):
        export.export_adapter(folder / "mlp", tmp_path / "out", base=folder / "base")


def test_attach_refuses_what_it_cannot_do(folder: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
            self.b.weight = self.a.weight

    refusals: list[tuple[nn.Module, list[str], int, str]] = [
        (Tied(), ["a"], 1, "tied"),
        (Tied(), ["norm"], 1, "two or more dimensions"),
        (Tied(), ["c"], 1, "no layer is called 'c'"),
        (nn.Sequential(nn.Linear(8, 4)), ["0"], 4, "1 to 3"),
        (nn.Sequential(nn.Linear(8, 4)), ["0"], 0, "1 to 3"),
    ]
    for model, layers, rank, reason in refusals:
        with pytest.raises(ExportError, match=reason):
            export.attach(model, layers, rank)
        assert export.attached(model) == {} and all(p.requires_grad for p in model.parameters())
    model = nn.Sequential(nn.Linear(8, 4))
    export.attach(model, ["0"], 2)
    with pytest.raises(ExportError, match="already"):
        export.attach(model, ["0"], 2)


def test_convolutions_and_embeddings_can_carry_an_adapter() -> None:
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3), "embedding": nn.Embedding(20, 6)})
    before = export.digest(model)
    assert export.attach(model, ["*"], rank=2) == ["conv", "embedding"]
    assert export.digest(model) == before  # the digest looks through an adapter, at the base
    for change in export.attached(model).values():
        nn.init.ones_(change.left)
    picture, words = torch.rand(1, 3, 5, 5), torch.tensor([3, 4])
    expected = model["conv"](picture), model["embedding"](words)
    assert export.merge(model) == ["conv", "embedding"]
    assert torch.equal(model["conv"](picture), expected[0]) and torch.equal(model["embedding"](words), expected[1])
    assert export.digest(model) != before and not export.attached(model)


# --- kinds and damage -----------------------------------------------------------------------------------------------


def test_no_artefact_is_taken_for_another_kind(folder: Path, adapted: Path, tmp_path: Path) -> None:
    base, adapter, merged = folder / "base", adapted / "adapter", adapted / "merged"
    checkpoint = next((folder / "mlp" / "checkpoints").glob("update-*"))
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: export.load_inference(adapter), "kind adapter.*Expected: kind inference or merged"),
        (lambda: export.load_adapter(base, base), "kind inference.*Expected: kind adapter"),
        (lambda: export.load_adapter(adapter, adapter), "kind adapter.*Expected: kind inference"),
        (lambda: export.export_merged(adapter, adapter, tmp_path / "x"), "kind adapter"),
        (lambda: export.export_merged(base, merged, tmp_path / "x"), "kind merged.*Expected: kind adapter"),
        (lambda: export.load_inference(checkpoint), "checkpoint, an artefact of kind resume.*labkit resume"),
        (lambda: export.load_inference(folder / "mlp"), "run folder.*labkit export"),
        (lambda: export.load_inference(tmp_path), "holds no artefact.json"),
    ]
    for attempt, reason in wrong:
        with pytest.raises(ExportError, match=reason):
            attempt()
    for kind in (base, adapter, merged):
        with pytest.raises(LabkitError):
            run.resume(kind)
        with pytest.raises(LabkitError):
            export.export_inference(kind, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_says_its_kind_even_without_its_folder(adapted: Path) -> None:
    from safetensors import safe_open

    with safe_open(adapted / "adapter" / "weights.safetensors", "pt") as handle:
        assert handle.metadata()["labkit"] == "adapter"


@pytest.mark.parametrize("place", ["start", "middle", "end", "short", "long", "gone", "link"])
def test_damaged_weights_are_refused_before_anything_is_rebuilt(folder: Path, tmp_path: Path, place: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "base", copy)
    weights = copy / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    if place in ("start", "middle", "end"):
        data[{"start": 0, "middle": len(data) // 2, "end": -1}[place]] ^= 1
    weights.unlink()
    if place == "link":
        weights.symlink_to(folder / "base" / "weights.safetensors")
    elif place != "gone":
        weights.write_bytes(bytes(data[:-1] if place == "short" else data + b"x" if place == "long" else data))
    with pytest.raises(ExportError, match="weights.safetensors"):
        export.load_inference(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.update(kind="surprise"),
        lambda about: about.update(kind=["inference"]),
        lambda about: about.update(format=2),
        lambda about: about.pop("files"),
        lambda about: about.update(files={"weights.safetensors": 3}),
        lambda about: about["files"].update({"../mlp/config.json": {"size": 1, "sha256": ""}}),
        lambda about: about.pop("config"),
        lambda about: about.update(config={"recipe": "digits", "unheard": 1}),
        lambda about: about.update(recipe=None),
        lambda about: about.update(ties=3),
        lambda about: about.update(digest="0" * 64),
        lambda about: about["config"]["options"].update(network="conv"),
    ],
)
def test_a_changed_description_is_refused_by_a_named_error(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "base", copy)
    about = json.loads((copy / "artefact.json").read_text())
    change(about)
    (copy / "artefact.json").write_text(json.dumps(about))
    with pytest.raises(LabkitError):
        export.load_inference(copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_a_description_that_is_no_json_object_is_refused(folder: Path, tmp_path: Path, text: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder / "base", copy)
    (copy / "artefact.json").write_text(text)
    with pytest.raises(ExportError, match="artefact.json"):
        export.load_inference(copy)


def test_an_existing_place_is_never_written_over(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "dangling"):
        with pytest.raises(ExportError, match="there already"):
            export.export_inference(folder / "mlp", tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


def test_a_disk_that_refuses_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    class Refusing(Files):
        def __init__(self, at: str) -> None:
            self.at = at

        def __getattribute__(self, name: str) -> Any:
            if name != "at" and name == self.at:
                raise OSError(28, "No space left on device")
            return object.__getattribute__(self, name)

    for operation in ("mkdir", "create", "write", "fsync", "fsync_folder", "rename"):
        with pytest.raises(StorageError, match="No space left"):
            export.export_inference(folder / "mlp", tmp_path / "out", files=Refusing(operation))
        assert list(tmp_path.iterdir()) == [], operation


def test_a_reader_never_sees_an_unfinished_artefact(folder: Path, tmp_path: Path) -> None:
    seen: list[bool] = []

    class Watching(Files):
        def rename(self, source: Path, target: Path) -> None:
            seen.append(target.exists())
            assert export.load_inference(source).model is not None  # whole before it bears its name
            super().rename(source, target)

    export.export_inference(folder / "mlp", tmp_path / "out", files=Watching())
    assert seen == [False]


# --- names, ties and prefixes ---------------------------------------------------------------------------------------


class Inner(nn.Module):
    """A module whose own names look like a wrapper's."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.rand(3))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) * self.weight


PREFIXES = ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module.", "_orig_mod." * 3]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_k09_04_wrapper_prefixes_are_taken_off_and_own_names_stay(prefix: str) -> None:
    source, model = Inner(), Inner()
    remarks = export.load_weights(model, {prefix + name: value for name, value in source.state_dict().items()})
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())
    assert len(remarks) == (1 if prefix else 0) and all("prefix" in remark for remark in remarks)


@pytest.mark.parametrize("saving", ["plain", "compiled", "wrapped"])
@pytest.mark.parametrize("loading", ["plain", "compiled", "wrapped"])
def test_k09_04_all_nine_pairs_of_wrappers(saving: str, loading: str) -> None:
    def wrapped(model: nn.Module, how: str) -> nn.Module:
        if how == "plain":
            return model
        compiled: Any = torch.compile(model, backend="eager")  # compiles nothing before the first call
        return compiled if how == "compiled" else nn.DataParallel(compiled)

    source, target = Inner(), Inner()
    export.load_weights(wrapped(target, loading), wrapped(source, saving).state_dict())
    assert export.digest(target) == export.digest(source)
    assert contents(wrapped(source, saving)).tensors.keys() == source.state_dict().keys()


def test_a_compiled_part_inside_a_model_loses_and_gets_its_prefix() -> None:
    source, target = nn.Sequential(Inner(), nn.Linear(3, 2)), nn.Sequential(Inner(), nn.Linear(3, 2))
    plain_names = set(source.state_dict())
    source[0] = torch.compile(source[0], backend="eager")
    assert set(contents(source).tensors) == plain_names
    export.load_weights(target, source.state_dict())
    assert export.digest(target) == export.digest(source)
    export.load_weights(source, nn.Sequential(Inner(), nn.Linear(3, 2)).state_dict())
    assert export.digest(target) != export.digest(source)


def test_what_does_not_fit_is_named_and_nothing_has_changed() -> None:
    model = Inner()
    before, good = export.digest(model), {name: value * 2 for name, value in Inner().state_dict().items()}
    wrong: list[tuple[dict[str, Tensor], str]] = [
        ({k: v for k, v in good.items() if k != "weight"}, "weight missing, nothing left over"),
        ({**good, "extra": torch.ones(1)}, "nothing missing, extra left over"),
        ({**good, "weight": torch.ones(4)}, r"\(4,\).*Expected: \(3,\)"),
        ({**good, "count": torch.tensor(1.5)}, "count is stored"),
        ({}, "missing"),
    ]
    for tensors, reason in wrong:
        with pytest.raises(ExportError, match=reason):
            export.load_weights(model, tensors)
        assert export.digest(model) == before


def tied() -> Any:
    model: Any = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    return model


def test_k09_06_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    source, target = tied(), tied()
    stored = contents(source)
    assert list(stored.tensors) == ["a.weight"] and stored.ties == {"b.weight": "a.weight"}
    for tensors in (stored.tensors, dict(source.state_dict()), {"b.weight": source["b"].weight.detach()}):
        nn.init.zeros_(target["a"].weight)
        export.load_weights(target, tensors)
        assert target["a"].weight is target["b"].weight and torch.equal(target["b"].weight, source["a"].weight)
    apart: Any = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    remarks = export.load_weights(apart, stored.tensors, stored.ties)
    assert apart["a"].weight is apart["b"].weight and remarks == ["b.weight was tied to a.weight again"]


def test_k09_06_a_tie_that_came_apart_in_the_file_is_refused() -> None:
    tensors = {"a.weight": torch.zeros(3, 3), "b.weight": torch.ones(3, 3)}
    with pytest.raises(ExportError, match=r"a\.weight and b\.weight are one tensor in the model and differ"):
        export.load_weights(tied(), tensors)


def test_k09_05_a_view_is_stored_without_the_rest_of_its_storage() -> None:
    model = nn.Module()
    model.register_buffer("part", torch.rand(1_000_000)[:1000])
    assert contents(model).tensors["part"].untyped_storage().nbytes() == 4000


def test_k09_10_loading_does_not_write_into_what_a_buffer_shares() -> None:
    model = nn.Module()
    initial = torch.tensor(0.4)
    model.register_buffer("rate", initial)
    export.load_weights(model, {"rate": torch.tensor(0.3)})
    assert float(initial) == pytest.approx(0.4) and float(model.rate) == pytest.approx(0.3)  # type: ignore[arg-type]


def test_buffers_that_are_not_saved_are_kept_when_the_file_lacks_them_and_loaded_when_it_has_them() -> None:
    model = nn.Module()
    model.register_buffer("seen", torch.tensor(1.0))
    model.register_buffer("hidden", torch.tensor(2.0), persistent=False)
    (remark,) = export.load_weights(model, {"seen": torch.tensor(5.0)})
    assert "hidden" in remark and float(model.hidden) == 2.0  # type: ignore[arg-type]
    assert export.load_weights(model, {"seen": torch.tensor(5.0), "hidden": torch.tensor(7.0)}) == []
    assert float(model.hidden) == 7.0  # type: ignore[arg-type]


def test_a_model_keeps_its_mode_and_its_precision_when_weights_are_loaded() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].eval()
    half = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    remarks = export.load_weights(model, half)
    assert [m.training for m in model.modules()] == [True, True, False]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert len(remarks) == 6 and all("float16" in remark for remark in remarks)


def test_weights_are_read_from_safetensors_and_from_torch_files_under_restriction(tmp_path: Path) -> None:
    source = Inner()
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    torch.save(source.state_dict(), tmp_path / "b.pt")
    torch.save({"model": source.state_dict(), "update": 3}, tmp_path / "c.pt")
    for name in ("a.safetensors", "b.pt", "c.pt"):
        target = Inner()
        export.load_weights(target, tmp_path / name)
        assert export.digest(target) == export.digest(source)


def test_a_file_that_would_run_code_runs_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(tmp_path / "marker"), "x")

    torch.save({"weight": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "torn.safetensors").write_bytes(b"\xff" * 40)
    for name, reason in (("bomb.pt", "restricted"), ("torn.safetensors", "safetensors"), ("none.pt", "cannot be read")):
        with pytest.raises(ExportError, match=reason):
            export.load_weights(Inner(), tmp_path / name)
    assert not (tmp_path / "marker").exists()


def test_extra_state_is_refused_by_name() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(ExportError, match="0._extra_state"):
        contents(nn.Sequential(Extra(2, 2)))


def test_the_digest_depends_on_names_values_shapes_and_types_and_on_nothing_else() -> None:
    model = Inner()
    first = export.digest(model)
    assert export.digest(model.eval()) == first and export.digest(nn.DataParallel(model)) == first
    for other in (nn.Sequential(model), Inner(), model.double()):
        assert export.digest(other) != first


def test_every_tensor_is_one_slot_with_all_its_names() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert [slot.names for slot in slots(model)] == [["0.weight", "2.weight"], ["0.bias", "2.bias"]]
    assert contents(model).ties == {"2.weight": "0.weight", "2.bias": "0.bias"}


# --- inputs ---------------------------------------------------------------------------------------------------------


def test_inputs_are_read_as_the_description_asks(folder: Path, images: Tensor) -> None:
    found = export.load_inference(folder / "base")
    rows = (images.reshape(-1, 64) * 16).long().tolist()
    text = "\n".join(",".join(map(str, row)) for row in rows) + "\n\n"
    answers = found.predict(read_inputs(text, found.description))
    assert answers == found.predict(images)
    assert set(answers[0]) == {"label", "probabilities"} and abs(sum(answers[0]["probabilities"].values()) - 1) < 1e-5
    with pytest.raises(ExportError, match="line 1 holds 3 numbers.*64"):
        read_inputs("1 2 3", found.description)
    with pytest.raises(ExportError, match="holds no numbers"):
        read_inputs("a,b", found.description)
    speller = export.load_inference(folder / "speller").description
    assert read_inputs("Mi\n\nJo", speller) == ["Mi", "", "Jo"]
