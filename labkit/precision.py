"""Number formats: that of the forward pass, the fp16 loss scaler, and the global numeric switches (lesson 12)."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from labkit.errors import PrecisionError, StateError

Kind = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PLAIN = nullcontext()


@dataclass(frozen=True, slots=True)
class NumericPolicy:
    """The process-wide switches that decide what a float32 operation computes.

    tf32: convolutions and recurrent layers on CUDA may round their inputs to TF32.
    matmul: precision of float32 matrix products: "highest" (float32), "high" (TF32 or three bfloat16), "medium".
    deterministic: operations without a deterministic kernel raise. cudnn_benchmark: cuDNN may time and choose kernels.
    """

    tf32: bool = False
    matmul: str = "highest"
    deterministic: bool = True
    cudnn_benchmark: bool = False

    def __post_init__(self) -> None:
        if self.matmul not in ("highest", "high", "medium"):
            raise PrecisionError(
                f"matmul={self.matmul!r}", "highest, high or medium", "use 'highest' for exact float32"
            )
        if self.matmul != "highest" and not self.tf32:
            raise PrecisionError(
                f"matmul={self.matmul!r} together with tf32=False",
                "matmul='highest', or tf32=True",
                "both speak about matrix products on CUDA; make them agree",
            )
        if self.deterministic and self.cudnn_benchmark:
            raise PrecisionError(
                "deterministic and cudnn_benchmark together",
                "at most one of them",
                "benchmarking chooses kernels by the clock, so two runs may compute different bits",
            )


def apply(policy: NumericPolicy, threads: int) -> dict[str, Any]:
    """Set every switch of the policy and the number of CPU threads; return all of them as read back from torch.

    This changes the whole process. On CUDA, deterministic matrix products need CUBLAS_WORKSPACE_CONFIG, which is set
    here unless the user has set it: call this before the first CUDA operation.
    Raises PrecisionError when torch reports another value than was asked for.
    """
    if type(threads) is not int or threads < 1:
        raise PrecisionError(f"threads={threads!r}", "a whole number from 1", "use 1 for results that do not vary")
    if policy.deterministic and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_float32_matmul_precision(policy.matmul)
    torch.backends.cudnn.allow_tf32 = policy.tf32
    torch.use_deterministic_algorithms(policy.deterministic)
    torch.backends.cudnn.deterministic = policy.deterministic
    torch.backends.cudnn.benchmark = policy.cudnn_benchmark
    torch.set_num_threads(threads)
    seen = current()
    asked = {
        "tf32": policy.tf32,
        "matmul": policy.matmul,
        "deterministic": policy.deterministic,
        "cudnn_benchmark": policy.cudnn_benchmark,
        "threads": threads,
    }
    wrong = [name for name, value in asked.items() if seen[name] != value]
    if wrong:
        raise PrecisionError(
            "torch did not take " + ", ".join(f"{name}={asked[name]!r} (it says {seen[name]!r})" for name in wrong),
            "the values asked for",
            "look for other code in this process that sets them",
        )
    return seen


def current() -> dict[str, Any]:
    """The switches as they are now, as plain values. Changes nothing."""
    return {
        "tf32": torch.backends.cudnn.allow_tf32,
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "threads": torch.get_num_threads(),
    }


class Precision:
    """Forward format and loss scaling of one run; CPU and CUDA go through the same code.

    kind: "fp32" as written, "bf16" autocast, "fp16" autocast with a gradient scaler. Order of an update:
    scale(loss).backward(), unscale_(optimizer), measure, clip, apply(optimizer).
    """

    def __init__(
        self,
        kind: Kind,
        device: torch.device,
        initial_scale: float = 65536.0,
        growth_interval: int = 2000,
    ) -> None:
        if kind not in ("fp32", "bf16", "fp16"):
            raise PrecisionError(f"precision {kind!r}", "fp32, bf16 or fp16", "use 'fp32' when in doubt")
        self.kind: Kind = kind
        self.device = device
        self.scaler: torch.amp.GradScaler | None = None
        if kind == "fp16":
            self.scaler = _scaler(device, initial_scale, growth_interval)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for forward pass and objective; backward runs outside it."""
        if self.kind == "fp32":
            return _PLAIN
        return torch.autocast(self.device.type, dtype=_DTYPES[self.kind])

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call backward on: times the scale under fp16, itself otherwise."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, in place, once per update, before they are measured or clipped."""
        if self.scaler is None:
            return
        try:
            self.scaler.unscale_(optimizer)
        except AssertionError as error:
            raise _not_scaled() from error
        except ValueError as error:
            raise PrecisionError(
                "the model's parameters are in float16",
                "float32 parameters: under fp16 only the forward pass is in half precision",
                "do not call model.half()",
            ) from error

    def found_nonfinite(self, optimizer: Optimizer) -> bool:
        """Whether the scaler saw a gradient that is not finite when it unscaled this update. Waits for the device."""
        if self.scaler is None:
            return False
        record = self.scaler._per_optimizer_states.get(id(optimizer), {}).get("found_inf_per_device", {})
        return any(found.item() for found in record.values())

    def apply(self, optimizer: Optimizer) -> bool:
        """Let the optimizer move; True when it did, False when the scaler refused (and lowered its scale).

        The scaler's own record of what it found decides. The scale does not: it also changes when it grows.
        """
        if self.scaler is None:
            optimizer.step()
            return True
        try:
            self.scaler.step(optimizer)
        except AssertionError as error:
            raise _not_scaled() from error
        skipped = self.found_nonfinite(optimizer)
        self.scaler.update()
        return not skipped

    @property
    def current_scale(self) -> float | None:
        """The scale that the next loss is multiplied by; None without a scaler."""
        return None if self.scaler is None else float(self.scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the kind, and under fp16 the scale, its growth counter and its settings."""
        if self.scaler is None:
            return {"kind": self.kind}
        raw = self.scaler.state_dict()
        return {
            "kind": self.kind,
            "scale": float(raw["scale"]),
            "growth_tracker": int(raw["_growth_tracker"]),
            "growth_factor": float(raw["growth_factor"]),
            "backoff_factor": float(raw["backoff_factor"]),
            "growth_interval": int(raw["growth_interval"]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; what was saved wins over what was given. Raises StateError before anything moves."""
        self.check_state(state)
        if self.scaler is None:
            return
        raw = {name: value for name, value in state.items() if name not in ("kind", "growth_tracker")}
        self.scaler.load_state_dict({**raw, "_growth_tracker": state["growth_tracker"]})

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateError when load_state_dict would refuse; changes nothing."""
        expected = self.state_dict()
        if state.get("kind") != self.kind:
            raise StateError(
                f"a saved precision of {state.get('kind')!r}", f"{self.kind!r}", "resume with the precision of the run"
            )
        if set(state) != set(expected):
            odd = sorted(set(state) ^ set(expected))
            raise StateError(
                f"the saved scaler state differs in {', '.join(odd)}",
                ", ".join(expected),
                "use the labkit that saved it",
            )


def _not_scaled() -> PrecisionError:
    return PrecisionError(
        "no parameter has a gradient, or the loss was never scaled",
        "scale(loss).backward() before unscale_ and apply",
        "check the order of the moves and that the loss depends on the model",
    )


def _scaler(device: torch.device, initial_scale: float, growth_interval: int) -> torch.amp.GradScaler:
    if type(growth_interval) is not int or growth_interval < 1:
        raise PrecisionError(f"growth_interval={growth_interval!r}", "a whole number from 1", "2000 is the usual value")
    rounded = float(torch.tensor(initial_scale, dtype=torch.float32))  # what the scaler will hold
    if not (math.isfinite(rounded) and rounded > 0.0):
        raise PrecisionError(
            f"initial_scale={initial_scale!r}", "a finite number above zero", "65536 is the usual value"
        )
    return torch.amp.GradScaler(device.type, init_scale=rounded, growth_interval=growth_interval)
