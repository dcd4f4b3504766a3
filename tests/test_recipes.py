"""The shipped data is what its page says, and the recipes keep their contract."""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit import weighting
from labkit.errors import DataError, RecipeError
from labkit.randomness import numpy_generator
from labkit.recipe import resolve
from labkit.recipes import again, digits, find, from_file, named, names, shipped

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = [
    ("digits", {}),
    ("digits", {"network": "conv"}),
    ("digits", {"augment": True}),
    ("names", {}),
    ("names", {"per": "sequence"}),
]


def made(name: str, settings: dict) -> tuple:
    recipe = find(name)
    config = resolve(recipe, name, settings)
    torch.manual_seed(0)
    return recipe, config, recipe.splits(config), recipe.model(config).eval()


def batch_of(recipe, data, indices):
    return recipe.collate(data.__getitems__(list(indices)))


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


# --- the files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    shutil.copytree(ROOT / "data", tmp_path / "data")
    monkeypatch.setattr(shipped, "folder", lambda: tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("name", sorted(shipped.DIGESTS))
def test_each_file_has_the_digest_that_code_and_readme_state(name):
    seen = hashlib.sha256((shipped.folder() / name).read_bytes()).hexdigest()
    assert seen == shipped.DIGESTS[name]
    assert re.search(rf"`{re.escape(name)}` .*`{seen}`", (ROOT / "data" / "README.md").read_text())


@pytest.mark.parametrize("name", sorted(shipped.DIGESTS))
def test_one_changed_byte_is_refused_with_both_digests(copied, name):
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(DataError) as refusal:
        shipped.read(name)
    assert shipped.DIGESTS[name] in str(refusal.value)
    assert hashlib.sha256(content).hexdigest() in str(refusal.value)
    assert [name in complaint for complaint in shipped.damaged()] == [True]


@pytest.mark.parametrize("kind, part", [("digits", "train"), ("names", "validation")])
def test_a_recipe_neither_loads_nor_fingerprints_a_changed_file(copied, kind, part):
    path = next(copied.glob(f"{kind}-{part}.*"))
    path.write_bytes(path.read_bytes() + b"\n")
    recipe = find(kind)
    config = resolve(recipe, kind, {})
    for use in (recipe.splits, recipe.fingerprint):
        with pytest.raises(DataError):
            use(config)


def test_a_missing_file_is_named_and_a_whole_folder_has_no_complaints(copied):
    assert shipped.damaged() == []
    (copied / "names-test.txt").unlink()
    with pytest.raises(DataError, match="names-test.txt"):
        names.load("test")
    assert len(shipped.damaged()) == 1


def test_an_installed_package_finds_the_data_inside_itself(tmp_path, monkeypatch):
    package = tmp_path / "site" / "labkit"
    shutil.copytree(ROOT / "data", package / "_data")
    monkeypatch.setattr(shipped, "__file__", str(package / "recipes" / "shipped.py"))
    assert shipped.folder() == package / "_data"
    shutil.rmtree(package / "_data")
    with pytest.raises(DataError, match="_data"):
        shipped.folder()


def test_parts_are_disjoint_and_complete_and_follow_the_stated_rule():
    """The rule is written again here: rank by the SHA-256 of the key."""
    parts = [names.load_names(part) for part in ("train", "validation", "test")]
    together = sorted(name for part in parts for name in part)
    assert len(set(together)) == len(together) == 5163
    ranked = sorted(together, key=lambda name: hashlib.sha256(f"name {name}".encode()).hexdigest())
    expected = [sorted(ranked[:4131]), sorted(ranked[4131 : 4131 + 516]), sorted(ranked[4131 + 516 :])]
    assert parts == expected
    lines = [shipped.read(name).split() for name in digits.FILES.values()]
    assert [len(part) for part in lines] == [1257, 270, 270]
    assert len({line for part in lines for line in part}) == 1797


def test_the_script_makes_exactly_these_files():
    for package in ("sklearn", "names"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed: the files cannot be made again")
    checked = subprocess.run([sys.executable, "data/make_data.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("same") == len(shipped.DIGESTS)


@pytest.mark.parametrize("name, others", [("digits", set()), ("names", {"vocabulary"})])
def test_each_split_has_its_own_fingerprint(name, others):
    recipe, config, splits, _ = made(name, {})
    prints = recipe.fingerprint(config)
    assert set(prints) == {"train", "validation"} | others
    assert len(set(prints.values())) == len(prints)


def test_digits_hold_what_the_page_says():
    data = digits.load("test")
    assert data.images.shape == (270, 1, 8, 8) and data.images.dtype == torch.float32
    assert data.images.min() == 0 and data.images.max() == 1
    first = [int(value) for value in shipped.read("digits-test.csv").split()[0].split(",")]
    image, label = data[0]
    assert int(label) == first[0]
    assert (image.flatten() * 16).tolist() == first[1:]
    assert set(data.labels.tolist()) == set(range(10))
    with pytest.raises(DataError, match="train"):
        digits.load("training")


# --- the contract of a recipe ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, settings", SETTINGS)
def test_a_batch_made_at_once_equals_one_collated_from_examples(name, settings):
    recipe, _, splits, _ = made(name, settings)
    indices = [5, 0, 17, 1000]
    listed = recipe.collate([splits.train[index] for index in indices])
    assert equal(batch_of(recipe, splits.train, indices), listed)


@pytest.mark.parametrize("name, settings", SETTINGS)
def test_the_objective_counts_what_count_says_and_adds_up(name, settings):
    recipe, _, splits, model = made(name, settings)
    a, b, both = (batch_of(recipe, splits.train, part) for part in (range(40), range(40, 45), range(45)))
    for batch in (a, b, both):
        summed, count = recipe.objective(model, batch)
        assert summed.dim() == 0 and type(count) is int and count == recipe.count(batch)
    weighting.check_additive(lambda batch: recipe.objective(model, batch), a, b, both)


@pytest.mark.parametrize("name, settings", SETTINGS)
def test_metrics_are_sums_over_the_same_count_as_the_loss(name, settings):
    recipe, _, splits, model = made(name, settings)
    batch = batch_of(recipe, splits.validation, range(50))
    metrics = recipe.metrics(model, batch)
    summed, count = recipe.objective(model, batch)
    assert torch.equal(metrics["loss"][0], summed) and metrics["loss"][1] == count
    if name == "digits":
        right, of = metrics["accuracy"]
        by_hand = sum(int(model(batch[0])[row].argmax() == batch[1][row]) for row in range(50))
        assert (int(right), of) == (by_hand, 50)


@pytest.mark.parametrize("name, settings", SETTINGS)
def test_a_fresh_run_starts_near_chance_and_learns(name, settings):
    recipe, config, splits, model = made(name, settings)
    optimizer = recipe.optimizer(config, model.train())
    means = []
    for start in range(0, 960, config.batch_size):
        batch = batch_of(recipe, splits.train, range(start, start + config.batch_size))
        summed, count = recipe.objective(model, batch)
        optimizer.zero_grad()
        (summed / count).backward()
        optimizer.step()
        means.append(float(summed.detach()) / count)
    choices = 10 if name == "digits" else 29
    assert abs(means[0] - np.log(choices)) < 0.4
    assert means[-1] < 0.9 * means[0]


def test_data_sets_and_transforms_survive_a_spawned_process():
    all_splits = [made(name, settings)[2] for name, settings in SETTINGS]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for splits in all_splits:
            assert pool.apply(_look, (splits.train, splits.transform)) == _look(splits.train, splits.transform)


def _look(data, transform):
    example = data[3]
    return _plain(example), _plain(transform(example, numpy_generator(0))) if transform else None


def _plain(example):
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in example]


# --- digits ----------------------------------------------------------------------------------------------------------


def test_the_transform_is_a_pure_function_of_example_and_generator():
    data = digits.load("train")
    example = data[0]
    untouched = example[0].clone()
    global_state = torch.random.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    first = digits.shift_and_noise(example, numpy_generator("a", 1))
    again = digits.shift_and_noise(example, numpy_generator("a", 1))
    other = digits.shift_and_noise(example, numpy_generator("a", 2))
    assert equal(first, again) and not equal(first, other)
    assert torch.equal(example[0], untouched), "the stored image was written to"
    assert torch.equal(torch.random.get_rng_state(), global_state)
    assert (np.random.get_state()[1] == numpy_state).all()


def test_the_transform_shifts_by_at_most_one_pixel_each_way(monkeypatch):
    monkeypatch.setattr(digits, "NOISE", 0.0)
    image = torch.zeros(1, 8, 8)
    image[0, 3, 4] = 1.0
    places = set()
    for draw in range(200):
        moved, label = digits.shift_and_noise((image, torch.tensor(7)), numpy_generator(draw))
        assert moved.shape == image.shape and moved.sum() == 1 and int(label) == 7
        places.add(tuple(int(place) for place in moved[0].nonzero()[0]))
    assert places == {(row, column) for row in (2, 3, 4) for column in (3, 4, 5)}


def test_the_noise_is_slight_and_drawn_anew_for_each_generator():
    grey = torch.full((1, 8, 8), 0.5), torch.tensor(0)
    inner = torch.stack([digits.shift_and_noise(grey, numpy_generator(draw))[0][0, 1:-1, 1:-1] for draw in range(50)])
    assert abs(float(inner.std()) - digits.NOISE) < 0.1 * digits.NOISE  # 1,800 draws: the estimate errs by 2%
    assert len({tuple(image.flatten().tolist()) for image in inner}) == 50
    assert float(digits.shift_and_noise((torch.zeros(1, 8, 8), grey[1]), numpy_generator(0))[0].min()) == 0


def test_probabilities_sum_to_one_and_leave_every_mode_as_it_was():
    model = digits.mlp().train()
    model[1].eval()
    data = digits.load("test")
    before = torch.random.get_rng_state()
    chances = digits.probabilities(model, data.images[:20])
    assert chances.shape == (20, 10)
    torch.testing.assert_close(chances.sum(1), torch.ones(20))  # float32 rounding of ten terms
    assert equal(chances, digits.probabilities(model, data.images[:20])), "dropout was on"
    assert [module.training for module in model] == [True, False, True, True, True] and model.training
    assert torch.equal(torch.random.get_rng_state(), before)


# --- names -----------------------------------------------------------------------------------------------------------


def test_padding_enters_neither_sum_nor_count_nor_gradient():
    recipe, _, splits, model = made("names", {})
    batch = batch_of(recipe, splits.train, range(8))
    wider = names.Batch(
        torch.nn.functional.pad(batch.inputs, (0, 3), value=names.PADDING),
        torch.nn.functional.pad(batch.targets, (0, 3), value=names.IGNORED),
        batch.per,
    )
    written = names.load_names("train")[:8]
    assert recipe.count(batch) == recipe.count(wider) == sum(len(name) + 1 for name in written)
    gradients = []
    for one in (batch, wider):
        model.zero_grad()
        summed, _ = recipe.objective(model, one)
        summed.backward()
        gradients.append([summed.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for narrow, wide in zip(*gradients, strict=True):
        torch.testing.assert_close(narrow, wide)  # the same terms, added by another kernel shape
    # The control: targets whose padding were not masked would have counted.
    assert names.count_valid(wider.targets.masked_fill(wider.targets == names.IGNORED, names.PADDING)) > recipe.count(
        batch
    )


def test_per_sequence_counts_names_and_weighs_them_alike():
    recipe, _, splits, model = made("names", {"per": "sequence"})
    batch = batch_of(recipe, splits.train, range(8))
    summed, count = recipe.objective(model, batch)
    assert count == recipe.count(batch) == 8
    means = []
    for index in range(8):
        tokens = names.Batch(*batch_of(recipe, splits.train, [index])[:2], "token")
        total, letters = recipe.objective(model, tokens)
        means.append(total / letters)
    torch.testing.assert_close(summed, torch.stack(means).sum())


def test_a_score_depends_on_the_context_before_it_and_on_nothing_after():
    _, _, splits, model = made("names", {})
    inputs = batch_of(find("names"), splits.train, range(4)).inputs
    changed = inputs.clone()
    changed[:, 4] = names.MARKS + 25
    same = (model(inputs) == model(changed)).all(-1).all(0)
    assert same[:4].all(), "a later letter reached an earlier score"
    assert not same[4]


def test_names_come_back_from_their_numbers():
    data = names.load("validation")
    vocabulary = names.Vocabulary(names.load_names("train"))
    assert [vocabulary.decode(data[index].numbers.tolist()) for index in range(len(data))] == names.load_names(
        "validation"
    )
    assert data[0].numbers[0] == names.START and data[0].numbers[-1] == names.END
    with pytest.raises(DataError, match="ü"):
        vocabulary.encode("jürgen")


def test_k01_09_the_numbering_of_letters_is_the_same_in_every_process():
    script = (
        "from labkit.recipes import names; v = names.Vocabulary(names.load_names('train'));"
        "print(''.join(set(v.letters)), v.letters, v.encode('zoe'))"
    )
    vocabulary = names.Vocabulary(names.load_names("train"))
    here = ["".join(set(vocabulary.letters)), f"{vocabulary.letters} {vocabulary.encode('zoe')}"]
    salt = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    there = run.stdout.strip().split(" ", 1)
    assert here[0] != there[0], "the control: a bare set has another order in each process"
    assert here[1] == there[1]


def test_k01_09_the_vocabulary_is_part_of_the_fingerprint(monkeypatch):
    recipe, config, *_ = made("names", {})
    before = recipe.fingerprint(config)
    monkeypatch.setattr(names, "load_names", lambda part: ["anna", "bob"])
    assert before["vocabulary"] != recipe.fingerprint(config)["vocabulary"] == "abno"


def test_invented_names_are_words_that_repeat_with_the_generator():
    _, _, _, model = made("names", {})
    model.train()
    before = torch.random.get_rng_state()

    def draw(seed, **how):
        return names.invent(model, count=30, generator=torch.Generator().manual_seed(seed), **how)

    assert draw(1) == draw(1) != draw(2)
    assert all(name.startswith("jo") for name in draw(1, prompt="jo"))
    assert all(name == "" or re.fullmatch("[a-z]{1,20}", name) for name in draw(1))
    assert max(map(len, draw(1, longest=4))) == 4
    assert len(set(draw(1, temperature=0))) == 1
    assert model.training and torch.equal(torch.random.get_rng_state(), before)
    assert names.invent(model, count=0, generator=torch.Generator()) == []


def test_padding_and_start_mark_are_never_drawn():
    _, _, _, model = made("names", {})
    with torch.no_grad():
        model.scores.bias[[names.PADDING, names.START]] = 100.0
        model.scores.bias[names.END] = -100.0
    assert {len(name) for name in names.invent(model, count=20, generator=torch.Generator(), longest=7)} == {7}


# --- finding a recipe ------------------------------------------------------------------------------------------------

MINE = """
import torch
from torch import nn
from labkit.recipe import Recipe, Splits
import neighbour

class Points(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor([float(index), VALUE]), torch.tensor(index % 2)

class Mine(Recipe):
    name = "mine"
    def splits(self, config): return Splits(Points(), Points())
    def model(self, config): return nn.Linear(2, 2)
    def objective(self, model, batch): return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), 2
    def count(self, batch): return len(batch[1])

instance = Mine()
class Half(Recipe):
    name = "half"
VALUE = 1.0
"""


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "my recipes"
    folder.mkdir()
    (folder / "neighbour.py").write_text("")
    (folder / "mine.py").write_text(MINE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder / "mine.py"


def test_shipped_names_give_a_new_recipe_each_time():
    assert find("digits").name == "digits" and find("names").name == "names"
    assert find("digits") is not find("digits")


def test_an_unknown_name_says_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'digits'"):
        find("digit")
    with pytest.raises(RecipeError, match="mine.py:MyRecipe"):
        find("mine.py")


def test_a_recipe_in_a_file_is_found_as_class_and_as_instance(mine):
    assert find(f"{mine}:Mine").name == "mine"
    assert find(f"{mine}:instance") is find(f"{mine}:instance")
    with pytest.raises(RecipeError, match=r"no 'Mien'.*Mine"):
        find(f"{mine}:Mien")
    with pytest.raises(RecipeError, match=r"'Points'.* is not a recipe"):
        find(f"{mine}:Points")
    with pytest.raises(RecipeError, match=r"has no count\(\)"):
        find(f"{mine}:Half")
    with pytest.raises(RecipeError, match="no file"):
        find(f"{mine.with_name('other.py')}:Mine")


def test_two_files_of_one_name_do_not_mix_and_an_edited_file_is_read_again(mine, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    twin = tmp_path / "twin" / "mine.py"
    twin.parent.mkdir()
    twin.write_text(MINE.replace("VALUE = 1.0", "VALUE = 2.0"))
    values = [float(find(f"{file}:Mine").splits(None).train[0][0][1]) for file in (mine, twin)]
    assert values == [1.0, 2.0]
    # The same size and the same time: a cached .pyc would pass for fresh.
    times = mine.stat().st_atime_ns, mine.stat().st_mtime_ns
    mine.write_text(MINE.replace("VALUE = 1.0", "VALUE = 3.0"))
    os.utime(mine, ns=times)
    assert float(find(f"{mine}:Mine").splits(None).train[0][0][1]) == 3.0


def test_the_data_set_of_a_file_reaches_a_spawned_process(mine):
    data = find(f"{mine}:Mine").splits(None).train
    assert from_file.file_of(type(data).__module__) == mine.resolve()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_look, (data, None)) == (_plain(data[3]), None)


def test_an_object_is_known_by_its_class_and_must_be_given_again():
    own = digits.Digits()
    assert named("digits")[1] == "digits" and isinstance(named("digits")[0], digits.Digits)
    assert named(own) == (own, "object:Digits") and named(own, "mine.py:own") == (own, "mine.py:own")
    assert again("object:Digits", own) is own and again("digits", own) is own
    assert isinstance(again("digits"), digits.Digits)
    with pytest.raises(RecipeError, match=r"started with an object \(Digits\)"):
        again("object:Digits")
