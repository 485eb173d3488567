"""Which published versions are to be evaluated, and which evaluations can be told. Pure bookkeeping."""

from __future__ import annotations

from collections import deque

from harness.core.types import ScoredBatch, WeightHandle


class Evaluations:
    """The evaluations of one run, from a version's publication to the word on how it did."""

    def __init__(self) -> None:
        self._due: deque[WeightHandle] = deque()  # nobody has begun these
        self._untold: deque[int] = deque()  # due or begun, by version
        self._early: dict[int, ScoredBatch] = {}  # scored before that of an older version was

    def add(self, weight_handle: WeightHandle) -> None:
        """These weights are to be evaluated."""
        self._due.append(weight_handle)
        self._untold.append(weight_handle.version)

    def begin(self) -> WeightHandle | None:
        """Return the oldest weights whose evaluation nobody has begun; None if there are none."""
        return self._due.popleft() if self._due else None

    def due_versions(self) -> set[int]:
        """Versions whose evaluation nobody has begun."""
        return {weight_handle.version for weight_handle in self._due}

    def scored(self, scored: ScoredBatch) -> list[tuple[int, ScoredBatch]]:
        """Take in one scored evaluation; return what can be told now, in order of version.

        Of two Scorers, the one with the newer version may be done first.
        """
        self._early[scored.item.step] = scored
        told = []
        while self._untold and self._untold[0] in self._early:
            version = self._untold.popleft()
            told.append((version, self._early.pop(version)))
        return told

    def is_told(self, version: int) -> bool:
        """Whether this version's evaluation was told, or none was due."""
        return version not in self._untold

    @property
    def all_told(self) -> bool:
        """Whether nothing is due or under way."""
        return not self._untold
