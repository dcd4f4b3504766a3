"""First names, letter by letter: the recipe of lesson 03.

Names differ in length, so batches are padded, and the padding must count nowhere. Each letter is predicted from the
CONTEXT marks and letters before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from labkit.config import OptionValue, RunConfig
from labkit.errors import DataError, RecipeError
from labkit.recipe import Option, Recipe, Splits
from labkit.recipes import shipped
from labkit.weighting import Unit, count_valid, cross_entropy_sum

FILES = {part: f"names-{part}.txt" for part in ("train", "validation", "test")}
PADDING, START, END = 0, 1, 2
MARKS = 3
IGNORED = -100
CONTEXT = 5
PROMPTS = ("", "ma", "jo", "be", "an")
DECODING: dict[str, Any] = {"temperature": 0.8, "longest": 20}
"""What is asked of the model at each evaluation that stores samples, and how its answers are drawn."""


class Example(NamedTuple):
    """One name: its numbers from start mark to end mark, 1-d int64, and what weighs the same in a batch of such."""

    numbers: Tensor
    per: Unit


class Batch(NamedTuple):
    """Inputs and targets, both (names, places) int64, padding IGNORED in the targets; `per`: what weighs the same."""

    inputs: Tensor
    targets: Tensor
    per: Unit


class Vocabulary:
    """Numbers for letters: 0 padding, 1 start, 2 end, then the letters in sorted order, the same in every process."""

    def __init__(self, names: Sequence[str]) -> None:
        # A set has another order in each process (string hashes are salted); sorting removes it.
        self.letters = "".join(sorted(set("".join(names))))
        self._number = {letter: number for number, letter in enumerate(self.letters, start=MARKS)}

    def __len__(self) -> int:
        return MARKS + len(self.letters)

    def encode(self, name: str) -> list[int]:
        """Start mark and letters, without the end mark. Raises DataError for a letter that has no number."""
        unknown = sorted(set(name) - set(self.letters))
        if unknown:
            raise DataError(f"{name!r} holds {unknown[0]!r}", f"letters out of {self.letters!r}", "use only those")
        return [START, *(self._number[letter] for letter in name)]

    def decode(self, numbers: Sequence[int]) -> str:
        """The letters before the first end mark; other marks are left out."""
        stop = list(numbers).index(END) if END in numbers else len(numbers)
        return "".join(self.letters[number - MARKS] for number in numbers[:stop] if number >= MARKS)


class NameData(Dataset[Example]):
    """Names as one padded table `table` (names, places) int64, and their `lengths` with both marks."""

    def __init__(self, names: Sequence[str], vocabulary: Vocabulary, per: Unit = "token") -> None:
        self.per: Unit = per
        rows = [torch.tensor([*vocabulary.encode(name), END]) for name in names]
        self.table = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
        self.lengths = torch.tensor([len(row) for row in rows])

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Example:
        return Example(self.table[index, : self.lengths[index]], self.per)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The batch at once, as wide as its longest name."""
        where = torch.as_tensor(indices, dtype=torch.int64)
        width = int(self.lengths[where].max())
        return padded_batch(self.table[where, :width], self.per)


def padded_batch(table: Tensor, per: Unit = "token") -> Batch:
    """From padded names (names, width): inputs without the last column, targets without the first."""
    targets = table[:, 1:]
    return Batch(table[:, :-1], targets.masked_fill(targets == PADDING, IGNORED), per)


def load_names(part: str) -> list[str]:
    """The "train" (4,131), "validation" (516) or "test" (516) names. Raises DataError for a damaged file."""
    if part not in FILES:
        raise DataError(f"the names have no part {part!r}", "one of " + ", ".join(FILES), "choose one of them")
    return shipped.read(FILES[part]).split()


def load(part: str, per: Unit = "token") -> NameData:
    """One part as a data set, numbered by the vocabulary of the training names."""
    return NameData(load_names(part), Vocabulary(load_names("train")), per)


class NameModel(nn.Module):
    """Scores for the next letter at every place: embedding, window over CONTEXT places, one hidden layer.

    Not recurrent: two matrix products for all places of all names at once. No dropout and no batch statistics either:
    the gradient of an update does not depend on how it was cut into microbatches, which is the subject of lesson 03.
    Inputs (names, places) int64, scores (names, places, len(vocabulary)).
    """

    def __init__(self, vocabulary: Vocabulary, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(len(vocabulary), width)
        self.hidden = nn.Linear(CONTEXT * width, hidden)
        self.scores = nn.Linear(hidden, len(vocabulary))

    def forward(self, inputs: Tensor) -> Tensor:
        # A place sees itself and CONTEXT - 1 places before it; what lies before the start mark is padding.
        before = nn.functional.pad(inputs, (CONTEXT - 1, 0), value=PADDING)
        windows = before.unfold(1, CONTEXT, 1)
        return self.scores(self.hidden(self.embedding(windows).flatten(2)).relu())


class Names(Recipe):
    """Learn to spell first names. `per=token`: every letter weighs the same; `per=sequence`: every name does."""

    name: ClassVar[str] = "names"
    options: ClassVar[Mapping[str, Option]] = {
        "per": Option("token", ("token", "sequence"), "what weighs the same: each letter (token) or name (sequence)"),
    }

    def prefers(self, options: Mapping[str, OptionValue]) -> Mapping[str, Any]:
        """A rate at which 250 updates give pronounceable names."""
        return {"batch_size": 32, "rate": 0.01, "weight_decay": 0.01}

    def splits(self, config: RunConfig) -> Splits:
        """4,131 training and 516 validation names."""
        per: Any = config.options["per"]
        return Splits(load("train", per), load("validation", per))

    def model(self, config: RunConfig) -> nn.Module:
        """The network with fresh weights; it carries the vocabulary."""
        return NameModel(Vocabulary(load_names("train")))

    def objective(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Summed cross entropy in nats over valid targets (per=token) or names (per=sequence), and their number."""
        return cross_entropy_sum(model(batch.inputs), batch.targets, ignore_index=IGNORED, per=batch.per)

    def count(self, batch: Batch) -> int:
        """Letters and end marks (per=token) or names (per=sequence), padding excluded."""
        return count_valid(batch.targets, ignore_index=IGNORED, per=batch.per)

    def collate(self, examples: Any) -> Batch:
        """A batch as wide as the longest name of a list; one that `NameData.__getitems__` made passes through."""
        if isinstance(examples, Batch):
            return examples
        rows = [example.numbers for example in examples]
        return padded_batch(nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING), examples[0].per)

    def fingerprint(self, config: RunConfig) -> Mapping[str, str]:
        """SHA-256 of the file of each split, and the letters in the order of their numbers."""
        files = shipped.fingerprint({part: FILES[part] for part in ("train", "validation")})
        return {**files, "vocabulary": Vocabulary(load_names("train")).letters}

    def describe_export(self, config: RunConfig) -> Mapping[str, Any]:
        """What an exported model is told apart from its weights: the letters, and how names are drawn by default."""
        return {
            "vocabulary": Vocabulary(load_names("train")).letters,
            "inputs": {"kind": "text", "meaning": "how each name begins; may be empty"},
            "preprocessing": {"marks": {"padding": PADDING, "start": START, "end": END}, "context": CONTEXT},
            "decoding": {"seed": 0, "temperature": 1.0, "count": 1, "longest": 20},
        }

    def rebuild(self, config: RunConfig, description: Mapping[str, Any]) -> nn.Module:
        """The network for the letters that an export names; the data is not needed."""
        return NameModel(Vocabulary([description["vocabulary"]]))

    def predict(
        self, model: nn.Module, inputs: Any, seed: int, temperature: float, count: int, longest: int
    ) -> list[dict[str, Any]]:
        """`count` invented names for each prompt in inputs (None: one empty prompt), each prompt from the same seed."""
        answers = []
        for prompt in inputs if inputs is not None else [""]:
            generator = torch.Generator().manual_seed(seed)
            names = invent(
                model, prompt, count=count, temperature=temperature, generator=generator, longest=longest
            )  # fmt: skip
            answers += [{"prompt": prompt, "output": name, "seed": seed, "temperature": temperature} for name in names]
        return answers

    def samples(self, model: nn.Module, config: RunConfig) -> Sequence[Mapping[str, Any]]:
        """A name for each of PROMPTS, from a seed of its own, beside a held-out name that begins so."""
        real = load_names("validation")
        found = []
        for seed, prompt in enumerate(PROMPTS):
            generator = torch.Generator().manual_seed(seed)
            (name,) = invent(model, prompt, generator=generator, **DECODING)
            reference = next((name for name in real if name.startswith(prompt)), None)
            found.append({"prompt": prompt, "output": name, "reference": reference, "seed": seed, "decoding": DECODING})
        return found


@torch.no_grad()
def invent(
    model: nn.Module,
    prompt: str = "",
    *,
    count: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    longest: int = 20,
) -> list[str]:
    """New names that begin with prompt, drawn letter by letter in eval mode; every module's mode comes back.

    temperature 0 takes the likeliest letter; longest bounds the letters of a name. Pass a generator of your own:
    without one, draws come from torch's global stream and shift whatever else uses it.
    """
    device = next(model.parameters()).device
    vocabulary = _vocabulary(model)
    start = vocabulary.encode(prompt)
    rows = torch.tensor([start] * count, dtype=torch.int64, device=device).reshape(count, len(start))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        while rows.shape[1] < longest + 1 and not bool((rows == END).any(1).all()):
            scores = model(rows[:, -CONTEXT:])[:, -1].float()
            scores[:, [PADDING, START]] = -torch.inf
            rows = torch.cat([rows, _draw(scores, temperature, generator)], dim=1)
    finally:
        for module, training in modes:
            module.training = training
    return [vocabulary.decode(row) for row in rows.tolist()]


def _vocabulary(model: nn.Module) -> Vocabulary:
    found = getattr(model, "vocabulary", None)
    if not isinstance(found, Vocabulary):
        raise RecipeError(f"a {type(model).__name__} has no vocabulary", "a NameModel", "pass the model of the recipe")
    return found


def _draw(scores: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """One column of numbers from scores (rows, vocabulary)."""
    if temperature == 0:
        return scores.argmax(-1, keepdim=True)
    chances = (scores / temperature).softmax(-1)
    if generator is not None:
        chances = chances.to(generator.device)
    return torch.multinomial(chances, 1, generator=generator).to(scores.device)
