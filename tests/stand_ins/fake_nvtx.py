"""A recording stand-in for an NVTX domain that a tool listens to."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class FakeAttributes:
    """Attributes of ranges; one object is used for many."""

    message: str
    category: str
    payload: int | None = None


class RangeEvent(NamedTuple):
    """The start or the end of a range; an end tells its number only, as in NVTX."""

    kind: str
    number: int
    message: str = ""
    category: str = ""
    payload: int | None = None


@dataclass
class FakeDomain:
    """The domain.

    Attributes:
        events: starts and ends in order.
        registered: each name for which attributes were asked.
    """

    events: list[RangeEvent] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def get_event_attributes(self, message: str, *, category: str) -> FakeAttributes:
        """Return new attributes."""
        self.registered.append(message)
        return FakeAttributes(message, category)

    def start_range(self, attributes: FakeAttributes, *, payload: int) -> int:
        """Record the start of a range."""
        attributes.payload = payload
        number = next(self._numbers)
        self.events.append(RangeEvent("start", number, attributes.message, attributes.category, payload))
        return number

    def end_range(self, range_id: int) -> None:
        """Record the end of a range."""
        self.events.append(RangeEvent("end", range_id))
