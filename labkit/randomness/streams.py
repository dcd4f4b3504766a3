"""Every random stream captured and put back, all or none. Lesson 02."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from labkit.errors import RandomnessError
from labkit.randomness.plain import alive, plain, python_state

if TYPE_CHECKING:
    import torch

Explicit: TypeAlias = "torch.Generator | np.random.Generator"
Saved: TypeAlias = dict[str, Any]


def capture(generators: Mapping[str, Explicit] | None = None, devices: Sequence[torch.device] = ()) -> Saved:
    """The present place of every stream, as tensors and plain values only (restricted loading accepts it).

    generators: explicit generators by name. devices: the CUDA devices in use; a CPU device adds nothing.
    Returns {"python", "numpy", "torch", "cuda": {index: tensor}, "generators": {name: ...}}.
    Raises RandomnessError for something that is no generator, and for one registered twice.
    """
    import torch

    generators = generators or {}
    check_generators(generators)
    return {
        "python": plain(random.getstate()),
        "numpy": plain(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state(),
        "cuda": {index: torch.cuda.get_rng_state(index) for index in _cuda_indices(devices)},
        "generators": {name: _capture_one(generator) for name, generator in generators.items()},
    }


def check(saved: Saved, generators: Mapping[str, Explicit] | None = None, devices: Sequence[torch.device] = ()) -> None:
    """Raise what restore would raise, changing nothing: every saved state is tried on a stand-in."""
    import torch

    generators = generators or {}
    check_generators(generators)
    indices = _cuda_indices(devices)
    _check_names(saved, generators, indices)
    _trial("python", lambda: random.Random().setstate(python_state(saved["python"])))
    _trial("numpy", lambda: np.random.RandomState().set_state(alive(saved["numpy"])))
    _trial("torch", lambda: torch.Generator().set_state(saved["torch"].cpu()))
    for index in indices:
        _trial(f"cuda:{index}", lambda i=index: torch.Generator(f"cuda:{i}").set_state(saved["cuda"][i].cpu()))
    for name, generator in generators.items():
        _check_one(name, saved["generators"][name], generator)


def restore(
    saved: Saved, generators: Mapping[str, Explicit] | None = None, devices: Sequence[torch.device] = ()
) -> None:
    """Put every stream back to where capture saw it.

    check() comes first, so a refusal leaves all streams untouched. Raises RandomnessError naming
    the stream: missing, unknown, of another kind, damaged, or saved with another number of devices.
    """
    import torch

    generators = generators or {}
    check(saved, generators, devices)
    random.setstate(python_state(saved["python"]))
    np.random.set_state(alive(saved["numpy"]))
    torch.set_rng_state(saved["torch"].cpu())  # a map location may have moved it to a device
    for index in _cuda_indices(devices):
        torch.cuda.set_rng_state(saved["cuda"][index].cpu(), index)
    for name, generator in generators.items():
        _restore_one(saved["generators"][name], generator)


def differences(a: Saved, b: Saved) -> list[str]:
    """The names of the streams that are not at the same place in two captures, or are in one of them only."""
    first, second = _flat(a), _flat(b)
    names = [*first, *(name for name in second if name not in first)]
    return [name for name in names if name not in first or name not in second or not _same(first[name], second[name])]


@contextmanager
def preserved(generators: Mapping[str, Explicit] | None = None, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Whatever is drawn inside, afterwards every stream is where it was, also after an exception."""
    before = capture(generators, devices)
    try:
        yield
    finally:
        restore(before, generators, devices)


@contextmanager
def callers_kept() -> Iterator[None]:
    """Around work that seeds the global streams: afterwards all of them are where the caller left them.

    That includes every CUDA device once CUDA is initialised; before that no stream of it has a place to come back to.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    with preserved(devices=[torch.device("cuda", index) for index in range(count)]):
        yield


def check_generators(generators: Mapping[str, Explicit]) -> None:
    """Refuse what is no generator, and one stream under two names (restoring it twice would be ambiguous)."""
    import torch

    names = {id(torch.default_generator): "torch (global)", id(np.random.mtrand._rand._bit_generator): "numpy (global)"}
    for name, generator in generators.items():
        if not isinstance(generator, (torch.Generator, np.random.Generator)):
            raise RandomnessError(
                f"{name!r} is registered as a generator but is a {type(generator).__name__}",
                "a torch.Generator or a numpy.random.Generator",
                "register the generator object itself",
            )
        stream = id(generator) if isinstance(generator, torch.Generator) else id(generator.bit_generator)
        if stream in names:
            raise RandomnessError(
                f"the generators {names[stream]!r} and {name!r} are one and the same stream",
                "one name for each stream",
                "register it once, or make a generator for each purpose",
            )
        names[stream] = name


def _cuda_indices(devices: Sequence[torch.device]) -> list[int]:
    import torch

    indices = []
    for device in devices:
        if device.type == "cuda":
            indices.append(torch.cuda.current_device() if device.index is None else device.index)
        elif device.type != "cpu":
            raise RandomnessError(f"the random stream of {device} cannot be captured", "cpu or cuda devices")
    return sorted(set(indices))


def _capture_one(generator: Explicit) -> Saved:
    if isinstance(generator, np.random.Generator):
        state = generator.bit_generator.state
        return {"kind": f"numpy {state['bit_generator']}", "state": plain(state)}
    return {"kind": f"torch {generator.device.type}", "state": generator.get_state()}


def _restore_one(saved: Saved, generator: Explicit) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = alive(saved["state"])
    else:
        generator.set_state(saved["state"].cpu())


def _check_one(name: str, saved: Saved, generator: Explicit) -> None:
    kind = _capture_one(generator)["kind"]
    if not isinstance(saved, dict) or saved.get("kind") != kind:
        raise RandomnessError(
            f"generator {name!r} is of kind {kind}",
            f"{saved.get('kind') if isinstance(saved, dict) else 'a saved generator'}, which was saved",
            "build the generators as the saved run did",
        )
    if isinstance(generator, np.random.Generator):
        stand_in: Explicit = np.random.Generator(type(generator.bit_generator)())
    else:
        stand_in = type(generator)(generator.device)
    _trial(f"generator {name!r}", lambda: _restore_one(saved, stand_in))


def _check_names(saved: Saved, generators: Mapping[str, Explicit], indices: list[int]) -> None:
    do = "resume with the generators and devices of the saved run, or start a new run"
    for stream in ("python", "numpy", "torch", "cuda", "generators"):
        if not isinstance(saved, Mapping) or stream not in saved:
            raise RandomnessError(f"the saved random state has no stream {stream!r}", "all streams", do)
    found, expected = sorted(saved["cuda"]), indices
    if found != expected:
        raise RandomnessError(
            f"the saved random state holds {len(found)} CUDA devices {found}",
            f"the {len(expected)} in use {expected}",
            do,
        )
    names = f"the generators {sorted(generators)}"
    for name in generators:
        if name not in saved["generators"]:
            raise RandomnessError(f"the saved random state has no generator {name!r}", names, do)
    for name in saved["generators"]:
        if name not in generators:
            raise RandomnessError(f"generator {name!r} was saved but is not registered now", names, do)


def _trial(name: str, attempt: Any) -> None:
    try:
        attempt()
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
        raise RandomnessError(
            f"the saved state of the random stream {name} cannot be used ({error})", "a state made by capture"
        ) from error


def _flat(saved: Saved) -> dict[str, Any]:
    flat: dict[str, Any] = {name: saved[name] for name in ("python", "numpy", "torch") if name in saved}
    flat.update({f"cuda:{index}": state for index, state in saved.get("cuda", {}).items()})
    flat.update({f"generator {name!r}": state for name, state in saved.get("generators", {}).items()})
    return flat


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "numpy") and hasattr(b, "numpy"):
        return bool(np.array_equal(a.cpu().numpy(), b.cpu().numpy()))
    return bool(a == b)
