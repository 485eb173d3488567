"""The device that is checked, and how work on it is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32
"""What speed is measured in: few CPUs have fast bfloat16."""


def device_name() -> str:
    """Return the device's name."""
    return torch.cuda.get_device_name() if HAS_GPU else "cpu"


def synchronize() -> None:
    """Wait until the device has done what it was given."""
    if HAS_GPU:
        torch.cuda.synchronize()


def timed_ms(work: Callable[[], object], calls: int = 1) -> float:
    """Milliseconds of one call, the first ones too, waiting for the device before them and after the last."""
    synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize()
    return (time.perf_counter() - start) / calls * 1e3


def seconds(work: Callable[[], object], repeats: int = 5, calls: int = 1) -> float:
    """Return the median over ``repeats`` of the seconds of one call, waiting for the device after every ``calls``.

    Two calls before it are not counted: kernels are loaded and memory is touched for the first time.
    """
    work()
    work()
    return statistics.median(timed_ms(work, calls) for _ in range(repeats)) / 1e3
