"""Which policy versions are held, needed and to be evaluated. Pure bookkeeping."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from harness.core.types import ScoredBatch, WeightHandle

NONE = -1
"""The version of a Generator without weights."""


class HeldVersions:
    """The versions held, by lane, and the oldest of them without a look at every lane.

    Args:
        lanes: of the Generators; none holds weights.
    """

    def __init__(self, lanes: Iterable[str]) -> None:
        self._held = dict.fromkeys(lanes, NONE)
        self._lanes = {NONE: len(self._held)}  # version -> lanes that hold it; few versions are about at a time

    def __getitem__(self, lane: str) -> int:
        return self._held[lane]

    def __contains__(self, lane: str) -> bool:
        return lane in self._held

    def set(self, lane: str, version: int) -> None:
        """This lane holds this version now."""
        before, lanes = self._held[lane], self._lanes
        self._held[lane] = version
        lanes[version] = lanes.get(version, 0) + 1
        lanes[before] -= 1
        if not lanes[before]:
            del lanes[before]

    @property
    def oldest(self) -> int:
        """The oldest version that a lane holds."""
        return min(self._lanes)


class Pin:
    """Keeps a published version readable.

    Args:
        pins: version -> how many need it; a version that nobody needs is not in it.
        version: needed until the block ends.
    """

    __slots__ = ("_pins", "_version")

    def __init__(self, pins: dict[int, int], version: int) -> None:
        self._pins, self._version = pins, version

    def __enter__(self) -> None:
        self._pins[self._version] = self._pins.get(self._version, 0) + 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        left = self._pins.pop(self._version) - 1
        if left:
            self._pins[self._version] = left


class Evaluations:
    """The evaluations of one run, from a version's publication to the word on how it did.

    Args:
        told: newest version that was reported before; none is due up to there.

    Attributes:
        told: newest version that was reported.
    """

    def __init__(self, told: int = NONE) -> None:
        self.told = told
        self._due: deque[WeightHandle] = deque()  # nobody has begun these
        self._unreported: deque[int] = deque()  # due or begun, by version
        self._early: dict[int, ScoredBatch] = {}  # scored before that of an older version was

    def add(self, weight_handle: WeightHandle) -> None:
        """These weights are to be evaluated, unless they were."""
        if weight_handle.version <= self.told:
            return
        self._due.append(weight_handle)
        self._unreported.append(weight_handle.version)

    def begin(self) -> WeightHandle | None:
        """Return the oldest weights whose evaluation nobody has begun; None if there are none."""
        return self._due.popleft() if self._due else None

    def due_versions(self) -> set[int]:
        """Versions whose evaluation nobody has begun."""
        return {weight_handle.version for weight_handle in self._due}

    def scored(self, scored: ScoredBatch) -> list[tuple[int, ScoredBatch]]:
        """Take in one scored evaluation; return what can be reported now, in order of version.

        Of two Scorers, the one with the newer version may be done first.
        """
        self._early[scored.item.step] = scored
        reported = []
        while self._unreported and self._unreported[0] in self._early:
            self.told = version = self._unreported.popleft()
            reported.append((version, self._early.pop(version)))
        return reported

    def is_due_before(self, version: int) -> bool:
        """Whether nobody has begun the evaluation of an older version."""
        return bool(self._due) and self._due[0].version < version

    def is_reported_before(self, version: int) -> bool:
        """Whether nothing is due or under way of older versions."""
        return not self._unreported or self._unreported[0] >= version

    def is_reported(self, version: int) -> bool:
        """Whether this version's evaluation was reported, or none was due."""
        return version not in self._unreported

    @property
    def all_reported(self) -> bool:
        """Whether nothing is due or under way."""
        return not self._unreported
