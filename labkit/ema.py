"""The average of the weights along the run: an exponential moving average that is part of the state (lesson 06)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labkit.errors import EmaError, StateError

BufferPolicy = Literal["copy", "average", "recompute"]
_OTHER_MODEL = "use the model that the average was made for"
Slot = tuple[dict[str, Any], str]  # where a module keeps a tensor: reading it always finds the present one


class Ema:
    """average <- decay * average + (1 - decay) * weights, once for every committed update.

    The average starts as a copy of the model. With warmup the decay of the update after n updates is
    min(decay, (1 + n) / (10 + n)), so the random start is soon forgotten. Parameters are averaged, integers copied.
    buffers says what happens to floating buffers, such as BatchNorm statistics: "copy" takes the model's, "average"
    averages them too, "recompute" takes the model's and asks whoever uses the average to call recompute_batchnorm.
    Buffers that a model does not save (persistent=False) are no part of the average.
    """

    def __init__(self, model: nn.Module, decay: float, warmup: bool = False, buffers: BufferPolicy = "copy") -> None:
        self._settle(decay, warmup, buffers)
        self._count = 0
        self._lent = False
        self._model: nn.Module | None = None
        self._average: dict[str, Tensor] = {name: _read(slot).detach().clone() for name, slot in _slots(model).items()}
        if not self._average:
            raise EmaError("the model has no parameters", "something to average", "leave the average out")
        self._bind(model)

    def _settle(self, decay: float, warmup: bool, buffers: str) -> None:
        _check_settings(decay, buffers)
        self.decay, self.warmup, self.buffers = float(decay), bool(warmup), buffers

    @property
    def count(self) -> int:
        """Updates taken into the average so far."""
        return self._count

    @property
    def lent(self) -> bool:
        """True while a model carries the average: its weights must not be saved as the run's own then."""
        return self._lent

    def decay_at(self, count: int) -> float:
        """The decay used by the update that follows count earlier ones."""
        return min(self.decay, (1 + count) / (10 + count)) if self.warmup else self.decay

    def update(self, model: nn.Module) -> None:
        """Take the model's present weights into the average. Call it for committed updates only."""
        if self._lent:
            raise EmaError("update while the average is lent", "the model's own weights", "leave lent_to first")
        if model is not self._model:
            self._bind(model)
        weight = 1.0 - self.decay_at(self._count)
        try:
            with torch.no_grad():
                torch._foreach_lerp_(self._averaged, [slots[key] for slots, key in self._averaged_slots], weight)
                if self._copied:
                    torch._foreach_copy_(self._copied, [slots[key] for slots, key in self._copied_slots])
        except RuntimeError as error:
            raise EmaError(
                "the model no longer fits its average",
                "the device, shapes and dtypes it had when the average was made",
                "move or change the model first, then make the average",
            ) from error
        self._count += 1

    def state_dict(self) -> dict[str, Any]:
        """Settings, count and the average by name. The tensors are the live ones, as in torch: copy what must last."""
        return {
            "decay": self.decay,
            "warmup": self.warmup,
            "buffers": self.buffers,
            "count": self._count,
            "average": dict(self._average),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved average, its count and its settings; what was saved wins. The average stays on its device.

        Raises StateError when a name, shape or dtype differs, before anything is changed.
        """
        self.check_state(state)
        self._settle(state["decay"], state["warmup"], state["buffers"])
        for name, tensor in self._average.items():
            tensor.copy_(state["average"][name])
        self._count = int(state["count"])
        self._model = None  # the buffer policy may have changed: sort again at the next update

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateError or EmaError when load_state_dict would refuse; changes nothing."""
        if self._lent:
            raise EmaError("a load while the average is lent", "the model's own weights", "leave lent_to first")
        missing = {"decay", "warmup", "buffers", "count", "average"} - set(state)
        if missing:
            raise StateError(f"the saved average lacks {', '.join(sorted(missing))}", "a complete one", _OTHER_MODEL)
        _check_fit(self._average, state["average"], "the saved average", StateError)
        _check_settings(state["decay"], state["buffers"])

    @contextmanager
    def lent_to(self, model: nn.Module) -> Iterator[nn.Module]:
        """The model carries the average inside the block and gets every bit of its own back, also after an exception.

        Parameters and all buffers come back, those too that code in the block replaced. The average does not change,
        whatever happens to the model. Raises EmaError when it is lent already or does not fit the model.
        """
        if self._lent:
            raise EmaError("the average is lent already", "one borrower at a time", "end the outer block first")
        slots = _slots(model)
        _check_fit(self._average, {name: _read(slot) for name, slot in slots.items()}, "the model")
        if model is self._model and any(self._bound[name][0] is not holder for name, (holder, _) in slots.items()):
            raise EmaError(
                "a layer of the model was replaced after the average was made",
                "the layers it had then: the average no longer follows the new one",
                "change the model first, then make the average",
            )
        kept = [(slot, _read(slot), _read(slot).detach().clone()) for slot in _slots(model, transient=True).values()]
        self._lent = True
        try:
            with torch.no_grad():
                for name, slot in slots.items():
                    _read(slot).copy_(self._average[name])
            yield model
        finally:
            with torch.no_grad():
                for (holder, key), tensor, saved in kept:
                    holder[key] = tensor
                    tensor.copy_(saved)
            self._lent = False

    def _bind(self, model: nn.Module) -> None:
        """Look up once where the model keeps its tensors, and sort them into averaged and copied."""
        slots = _slots(model)
        _check_fit(self._average, {name: _read(slot) for name, slot in slots.items()}, "the model")
        parameters = {name for name, _ in model.named_parameters()}
        chosen = {
            name
            for name, tensor in self._average.items()
            if (tensor.is_floating_point() or tensor.is_complex()) and (name in parameters or self.buffers == "average")
        }
        self._averaged = [self._average[name] for name in slots if name in chosen]
        self._averaged_slots = [slot for name, slot in slots.items() if name in chosen]
        self._copied = [self._average[name] for name in slots if name not in chosen]
        self._copied_slots = [slot for name, slot in slots.items() if name not in chosen]
        self._bound, self._model = slots, model


def _check_settings(decay: float, buffers: str) -> None:
    if not 0.0 <= decay <= 1.0:
        raise EmaError(f"decay={decay!r}", "a number from 0 to 1", "0.999 keeps a memory of about 1000 updates")
    if buffers not in ("copy", "average", "recompute"):
        raise EmaError(f"buffers={buffers!r}", "copy, average or recompute", "'copy' is the usual choice")


def _read(slot: Slot) -> Tensor:
    """The tensor that is in the slot now."""
    holder, key = slot
    tensor: Tensor = holder[key]
    return tensor


def _slots(model: nn.Module, transient: bool = False) -> dict[str, Slot]:
    """Parameters, then buffers, by name, each shared tensor once; with transient also buffers that are not saved."""
    found: dict[str, Slot] = {}
    seen: set[int] = set()
    for kind in ("_parameters", "_buffers"):
        for prefix, module in model.named_modules():
            holder = getattr(module, kind)
            for key, tensor in holder.items():
                if tensor is None or id(tensor) in seen:
                    continue
                if kind == "_buffers" and not transient and key in module._non_persistent_buffers_set:
                    continue
                seen.add(id(tensor))
                found[f"{prefix}.{key}" if prefix else key] = (holder, key)
    return found


def _check_fit(
    average: dict[str, Tensor],
    other: dict[str, Tensor],
    what: str,
    error: type[EmaError] | type[StateError] = EmaError,
) -> None:
    missing, extra = sorted(set(average) - set(other)), sorted(set(other) - set(average))
    if missing or extra:
        raise error(
            f"{what} lacks {missing[:3]} and has {extra[:3]} beyond the average",
            "the names that were averaged",
            _OTHER_MODEL,
        )
    for name, mine in average.items():
        theirs = other[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise error(
                f"{name} in {what} is {theirs.dtype} of shape {tuple(theirs.shape)}",
                f"{mine.dtype} of shape {tuple(mine.shape)}",
                _OTHER_MODEL,
            )


def recompute_batchnorm(
    model: nn.Module, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None = None
) -> int:
    """Replace the running statistics of every BatchNorm layer by those of these batches; returns how many batches ran.

    Each batch counts the same, in order, as a plain cumulative average; give batches of one size. Only the BatchNorm
    layers are in training mode meanwhile, so dropout draws nothing. Modes and momentum come back, and after an
    exception the old statistics too. forward runs the model on one batch; by default model(batch), or model(batch[0])
    for a tuple or list. A model without running statistics is left alone, and the batches are not read.
    Raises EmaError when there are no batches.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not layers:
        return 0
    run = forward or (lambda m, batch: m(batch[0] if isinstance(batch, (tuple, list)) else batch))
    modes = [(module, module.training) for module in model.modules()]
    momenta = [(layer, layer.momentum) for layer in layers]
    saved = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    seen = 0
    try:
        model.eval()
        for layer in layers:
            layer.train()
            layer.reset_running_stats()
            layer.momentum = None  # torch's sign for a cumulative average
        with torch.no_grad():
            for batch in batches:
                run(model, batch)
                seen += 1
        if seen == 0:
            raise EmaError("no batches to compute statistics from", "at least one", "pass the training batches")
    except BaseException:
        for buffer, before in saved:
            buffer.copy_(before)
        raise
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, momentum in momenta:
            layer.momentum = momentum
    return seen
