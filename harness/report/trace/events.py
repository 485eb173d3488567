"""What goes into a trace, before it has a format: tracks with slices, instants and counter values.

Times are nanoseconds since the run's origin. Nothing here knows Perfetto's protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Value = int | float | str | bool
Arguments = tuple[tuple[str, Value], ...]
"""(name, value) pairs, shown in the order given."""


class Slice(NamedTuple):
    """A stretch of time on a track.

    Attributes:
        flows: numbers of the arrows that pass through it or begin here.
        last_of: numbers of the arrows that end here.
    """

    start_ns: int
    end_ns: int
    name: str
    categories: tuple[str, ...]
    arguments: Arguments = ()
    flows: tuple[int, ...] = ()
    last_of: tuple[int, ...] = ()


class Instant(NamedTuple):
    """A moment on a track."""

    at_ns: int
    name: str
    categories: tuple[str, ...]
    arguments: Arguments = ()


class Sample(NamedTuple):
    """A counter's value from this time on."""

    at_ns: int
    value: float


@dataclass
class Track:
    """A row of the trace, or a group of rows.

    Attributes:
        name: not empty.
        slices: on one track every two of them lie apart or one within the other; see ``nesting``.
        samples: a track that has them has neither slices nor instants.
        unit: of the samples.
        children: the tracks below it, in the order of showing.
    """

    name: str
    slices: list[Slice] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    unit: str | None = None
    children: list[Track] = field(default_factory=list)

    @property
    def is_counter(self) -> bool:
        """Whether it shows numbers over time."""
        return self.unit is not None

    def walk(self) -> Iterator[Track]:
        """Yield this track and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()
