"""Which policy versions the Generators hold, which are needed, and which are to be evaluated. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from harness.core.types import ScoredBatch, WeightHandle

NONE = -1
"""The version of a Generator without weights."""


class LoadedVersions:
    """The version that each Generator holds, the oldest of them without a look at every lane, and those in use.

    Args:
        lanes: of the Generators; none holds weights.

    Attributes:
        needed: published versions that must stay readable, and how many loads and evaluations need each right now.
    """

    def __init__(self, lanes: Iterable[str]) -> None:
        self._loaded = dict.fromkeys(lanes, NONE)
        self._lanes = Counter(self._loaded.values())  # version -> lanes that hold it; few versions are about at a time
        self.needed = Counter[int]()

    def __getitem__(self, lane: str) -> int:
        return self._loaded[lane]

    def __contains__(self, lane: str) -> bool:
        return lane in self._loaded

    def set(self, lane: str, version: int) -> None:
        """This lane holds this version now."""
        _take_one(self._lanes, self._loaded[lane])
        self._loaded[lane] = version
        self._lanes[version] += 1

    @property
    def oldest(self) -> int:
        """The oldest version that a lane holds."""
        return min(self._lanes)

    @contextmanager
    def in_use(self, version: int) -> Iterator[None]:
        """Keep a published version readable until the block ends."""
        self.needed[version] += 1
        try:
            yield
        finally:
            _take_one(self.needed, version)


def _take_one(counter: Counter[int], version: int) -> None:
    counter[version] -= 1
    if not counter[version]:
        del counter[version]


class Evaluations:
    """The evaluations of one run, from a version's publication to the word on how it did.

    Args:
        told: newest version that was reported before; none is due up to there.

    Attributes:
        told: newest version that was reported.
        due: weights whose evaluation nobody has begun, oldest first.
        unreported: versions whose evaluation is due or under way, oldest first.
    """

    def __init__(self, told: int = NONE) -> None:
        self.told = told
        self.due = deque[WeightHandle]()
        self.unreported = deque[int]()
        self._early: dict[int, ScoredBatch] = {}  # scored before that of an older version was

    def add(self, weight_handle: WeightHandle) -> None:
        """These weights are to be evaluated, unless they were."""
        if weight_handle.version > self.told:
            self.due.append(weight_handle)
            self.unreported.append(weight_handle.version)

    def scored(self, scored: ScoredBatch) -> list[tuple[int, ScoredBatch]]:
        """Take in one scored evaluation; return what can be reported now, in order of version.

        Of two Scorers, the one with the newer version may be done first.
        """
        self._early[scored.item.step] = scored
        reported = []
        while self.unreported and self.unreported[0] in self._early:
            self.told = version = self.unreported.popleft()
            reported.append((version, self._early.pop(version)))
        return reported
