"""Bytes for one purpose, and when they are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["startup", "held", "sampling", "loading", "update", "publish"]
"""``startup``: only until the parts are ready, when of the rest there are no more than the libraries."""
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes for one purpose: ``held`` from start to end, or only during a phase.

    ``more`` bytes are taken beyond those where there is room for them. ``shared`` ones lie in memory that other
    processes map too; one of them has the amount.
    """

    name: str
    num_bytes: int
    phase: Phase = "held"
    more: int = 0
    shared: bool = False
