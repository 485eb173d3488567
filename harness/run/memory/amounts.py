"""Bytes for one purpose, and when they are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["startup", "sampling", "loading", "reference_logprobs", "gradients", "optimizer_step", "publish"]
"""``startup``: only until the parts are ready, when of the rest there are no more than the libraries. The Learner's are
those of ``scenario.learner.Phase`` which decide: what it does in the others takes no more."""
SAMPLING: tuple[Phase, ...] = ("sampling", "loading")
TRAINING: tuple[Phase, ...] = ("reference_logprobs", "gradients", "optimizer_step", "publish")
RUNNING = SAMPLING + TRAINING
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""
CUDA_BYTES = 2**29
"""A CUDA context and its kernels. Not measured here: the size usually seen on recent GPUs."""

CUDA_HOST_BYTES = 2**29
"""What CUDA and its libraries take of main memory in each process that uses a GPU. Not measured apart: with it, what a
run on an H100 held while it loaded 1.5 billion weights (torch 2.11, CUDA 13) is 9.7 GiB by count, and was 9.56."""
COMPILED = "compiled products"
COMPILED_BYTES = {"generator": 108 * 2**20, "learner": 72 * 2**20}
"""oneDNN's code for the shapes of a part's float32 products on a CPU: 180 and 120 of 0.6 MiB (torch 2.13, AVX2). In
sync_k1 (in float32) and quickstart Generators made 176 and 201, Learners 69 and 187: more as responses grow longer."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes for one purpose: held from start to end, or only during some phases.

    ``more`` bytes are taken beyond those where there is room for them. ``shared`` ones lie in memory that other
    processes map too; one of them has the amount.
    """

    name: str
    num_bytes: int
    phases: tuple[Phase, ...] = RUNNING
    more: int = 0
    shared: bool = False
