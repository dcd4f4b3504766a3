"""What all tests share: one thread, the same random streams, process-wide torch settings put back after each test."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator

# Before torch is imported: two threads add in another order than one, and tests share two cores.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts: deterministic matmul
os.environ["JUPYTER_PLATFORM_DIRS"] = "1"
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts jobs behind itself has SIGINT ignored, here and in every child; tests of Ctrl-C need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "labkit", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("labkit")


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Every test starts from the same streams and settings, whatever ran before it in this process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    before = (torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())
    yield
    if torch.are_deterministic_algorithms_enabled() != before[0]:  # the call itself imports a compiler: seconds
        torch.use_deterministic_algorithms(before[0])
    torch.set_float32_matmul_precision(before[1])
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)


@pytest.fixture
def cuda() -> torch.device:
    """The first CUDA device, or a skip that says what is missing."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: this check compares results on a GPU")
    return torch.device("cuda", 0)
