"""Putting stored tensors into a model: prefixes told apart from names, tied weights kept tied. Lesson 09.

Everything is checked before the first tensor changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from labkit.errors import ExportError
from labkit.export.weights import WRAPPERS, Slot, slots, without_wrappers
from labkit.state import leaf_bytes


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a torch file under restricted loading, by name and on the CPU.

    A torch file may hold the mapping itself or under "model", "state_dict" or "model_state_dict". Raises ExportError.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ExportError(f"{path} is no safetensors file: {error}", "a whole file", "check the path") from error
    except OSError as error:
        raise ExportError(f"{path} cannot be read ({error.strerror or error})", "a readable file", "") from error
    except Exception as error:  # torch raises whatever the damaged bytes lead it to
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ExportError(f"{path} is refused by restricted loading: {reason}", "tensors by name", "") from error
    for key in ("model", "state_dict", "model_state_dict", "state"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ExportError(f"{path} holds something else than tensors by name", "a state_dict", "")
    return dict(found)


def load_weights(
    model: nn.Module, source: Mapping[str, Tensor] | Path | str, ties: Mapping[str, str] | None = None
) -> list[str]:
    """Put tensors into a model, all or nothing, and return remarks on what was not straightforward.

    Prefixes of torch.compile and data-parallel wrappers are taken off (a name that is the model's own stays); a tied
    weight may be stored once or several times; ties: names to tie again where the model has them apart. Modes, dtype
    and device of the model stay. Raises ExportError naming what is missing, left over, of another shape, or tied here
    and different there.
    """
    tensors = dict(source) if isinstance(source, Mapping) else read_tensors(source)
    live, remarks = slots(model), []
    renamed, said = _matched(tensors, live, ties or {})
    remarks += said
    plan: list[tuple[Slot, Tensor]] = []
    for slot in live:
        given = [renamed[name] for name in slot.names if name in renamed]
        given += [renamed[stored] for name in slot.names if (stored := (ties or {}).get(name)) in renamed]
        if not given:
            remarks.append(f"{slot.names[0]} is not in the file (the model does not save it): the model's own stays")
            continue
        _check_fit(slot, given)
        if given[0].dtype != slot.tensor.dtype:
            remarks.append(f"{slot.names[0]} was {given[0].dtype} and became {slot.tensor.dtype}, which the model has")
        plan.append((slot, given[0]))
    for slot, value in plan:
        _put(slot, value)
    return remarks + list(_retied(live, ties or {}))


def _matched(
    tensors: Mapping[str, Tensor], live: list[Slot], ties: Mapping[str, str]
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors under the model's own names: as they are, without a wrapper's prefix, without any wrapper's part."""
    own = {name for slot in live for name in slot.names}
    covered = [{*slot.names, *(ties[n] for n in slot.names if n in ties)} for slot in live if slot.saved]
    known = own | set(ties.values())
    for names in _readings(tensors, own):
        given = set(names.values())
        if given <= known and all(group & given for group in covered) and len(given) == len(names):
            changed = [name for name, short in names.items() if name != short]
            remark = f"a wrapper's prefix was taken off {len(changed)} names, such as {changed[0]}" if changed else ""
            return {short: tensors[name] for name, short in names.items()}, [remark] if remark else []
    closest = min(_readings(tensors, own), key=lambda names: len(set(names.values()) ^ own))
    raise _unmatched(closest, covered, known)


def _readings(tensors: Mapping[str, Tensor], own: set[str]) -> Iterator[dict[str, str]]:
    """Stored name -> what it may be called in the model; the most literal reading first."""
    for wrappers in ((), ("_orig_mod",)):
        names = {name: ".".join(without_wrappers(name.split("."), wrappers)) for name in tensors}
        yield names
        while names and (front := _common_front(names.values())):
            names = {name: short.removeprefix(front) for name, short in names.items()}
            yield names
    plain = {".".join(without_wrappers(name.split("."))): name for name in own}
    short = {name: ".".join(without_wrappers(name.split("."))) for name in tensors}
    yield {name: plain.get(bare_name, bare_name) for name, bare_name in short.items()}


def _common_front(names: Iterable[str]) -> str | None:
    fronts = {name.partition(".")[0] if "." in name else "" for name in names}
    front = fronts.pop() if len(fronts) == 1 else ""
    return front + "." if front in WRAPPERS else None


def _unmatched(names: Mapping[str, str], covered: list[set[str]], known: set[str]) -> ExportError:
    missing = sorted(min(group) for group in covered if not group & set(names.values()))
    over = sorted(set(names.values()) - known)
    return ExportError(
        f"the tensors do not fit the model: {_some(missing)} missing, {_some(over)} left over",
        "one tensor for each parameter and buffer",
        "load it into the model that it was saved from",
    )


def _some(names: list[str]) -> str:
    return (", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")) if names else "nothing"


def _check_fit(slot: Slot, given: list[Tensor]) -> None:
    live, name = slot.tensor, slot.names[0]
    for tensor in given:
        both_float = tensor.dtype.is_floating_point and live.dtype.is_floating_point
        if tensor.shape != live.shape or (tensor.dtype != live.dtype and not both_float):
            raise ExportError(
                f"{name} is stored as {tuple(tensor.shape)} {tensor.dtype}", f"{tuple(live.shape)} {live.dtype}", ""
            )
    if any(leaf_bytes(tensor) != leaf_bytes(given[0]) for tensor in given[1:]):
        raise ExportError(
            f"{' and '.join(slot.names)} are one tensor in the model and differ in the file",
            "one value for a tied weight",
            "the ties came apart before it was saved: look there, not here",
        )


def _put(slot: Slot, value: Tensor) -> None:
    live = slot.tensor
    with torch.no_grad():
        if not slot.is_buffer:
            live.copy_(value)
            return
        fresh = torch.empty_like(live).copy_(value)  # a new tensor: whoever shares the old one keeps its values
        for holder, key in slot.holders:
            holder[key] = fresh


def _retied(live: list[Slot], ties: Mapping[str, str]) -> Iterator[str]:
    by_name = {name: slot for slot in live for name in slot.names}
    for other, first in ties.items():
        if other in by_name and first in by_name and by_name[other] is not by_name[first]:
            tensor = by_name[first].tensor
            for holder, key in by_name[other].holders:
                holder[key] = tensor
            yield f"{other} was tied to {first} again"
