"""Which policy version each Generator holds. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Iterable

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
