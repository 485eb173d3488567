"""Weights leave the Learner on a thread of their own, while another one trains the next step.

Weights stay as they are until a training step's first optimizer step. That is the one moment at which the two threads
meet: it waits until its own version was copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from harness.core.errors import RunStopped
from harness.core.types import LogProbProbe


@dataclass(frozen=True)
class Leaving:
    """What leaves of a version: its live weights, as this process holds them, and its proof."""

    weights: Mapping[str, Tensor]
    proof: LogProbProbe | None


class OverlappedPublish:
    """Where the thread that trains and the one that publishes meet.

    Both what the weights are and what proves them is taken on the thread that trains, where no layer is gathered and no
    collective is under way. An optimizer step waits at most ``timeout_s`` for a copy.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._leaving: dict[int, Leaving] = {}
        self._copies: dict[int, Future[None]] = {}

    def hand_over(self, version: int, leaving: Leaving) -> None:
        self._leaving = {version: leaving}

    def leaving(self, version: int) -> Leaving | None:
        """Return what was handed over of a version; None before the first training step."""
        return self._leaving.get(version)

    @contextmanager
    def copying(self, version: int) -> Iterator[Callable[[], None]]:
        """Copy the weights in this block, and call what it yields when they may change. Errors reach who waits."""
        copy = self._copy(version)
        try:
            yield lambda: copy.set_result(None)
        except BaseException as error:
            if not copy.done():
                copy.set_exception(error)
            raise

    def is_copied(self, version: int) -> bool:
        return self._copy(version).done()

    def wait_until_copied(self, version: int) -> None:
        """Return when the weights of this version may change; raises RunStopped, or what ended the copying."""
        try:
            self._copy(version).result(self._timeout_s)
        except TimeoutError:
            raise RunStopped(
                f"the weights of version {version} were not copied within faults.stall_after_s ({self._timeout_s:g} s)"
            ) from None
        self._copies = {later: copy for later, copy in self._copies.items() if later >= version}

    def _copy(self, version: int) -> Future[None]:
        return self._copies.setdefault(version, Future())
