"""Tracks in Chrome's Trace Event Format: JSON that ui.perfetto.dev, Perfetto's SQL and chrome://tracing read.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A run is a process, a track of
slices one of its threads. Times are microseconds there, with three decimals: the nanoseconds of the run.

A slice is a begin and an end, not one complete event: an arrow is tied to what is open at its time on its thread, and
of two slices that begin at once Perfetto would take the inner one, since it reads complete events first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from gzip import GzipFile
from itertools import count
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

import msgspec

from harness.core.terminal_text import plain

Arguments = tuple[tuple[str, int | float | str | bool], ...]
"""(name, value) pairs, shown in the order given; numbers are finite and have at most 64 bits."""

LONGEST_TEXT = 400
HEAD = b'{"displayTimeUnit":"ns","traceEvents":[\n'
"""How every trace of ours begins."""


class Arrow(NamedTuple):
    """One stop of an arrow from slice to slice.

    Attributes:
        number: of the arrow within its run.
        phase: ``s`` where it starts, ``t`` where it passes through, ``f`` where it ends.
    """

    name: str
    number: int
    phase: str


class Slice(NamedTuple):
    """A stretch of time on a track, in nanoseconds since the run's origin."""

    start_ns: int
    end_ns: int
    name: str
    categories: tuple[str, ...]
    arguments: Arguments = ()
    arrows: tuple[Arrow, ...] = ()


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
    """A row of the trace.

    Attributes:
        slices: every two of them lie apart or one within the other, see ``without_crossings``; by begin, outer first.
        samples: a track that has them has neither slices nor instants.
        unit: of the samples; empty for plain numbers, None for a track without samples.
    """

    name: str
    slices: list[Slice] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    unit: str | None = None


def stacked_tracks(name: str, slices: Iterable[Slice], instants: Iterable[Instant] = ()) -> list[Track]:
    """Return a track, and below it those that hold what crosses its slices."""
    first, *others = without_crossings(slices) or [[]]
    names = [f"{name}, crossing{f' {number}' if number > 1 else ''}" for number in range(1, len(others) + 1)]
    return [Track(name, first, list(instants)), *map(Track, names, others)]


def without_crossings(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return the slices row by row, so that on each row every two lie apart or one within the other.

    A row is a stack, where an end closes what began last: a viewer shows wrong lengths for two that cross. The first
    row holds as many as fit, what crosses them goes to the next one. Within a row they are in the order of their begin,
    of those that begin together the longest first.
    """
    rows: list[list[Slice]] = []
    open_ends: list[list[int]] = []  # of each row, the innermost last
    for item in sorted(slices, key=lambda item: (item.start_ns, -item.end_ns)):
        for row, ends in zip(rows, open_ends, strict=True):
            while ends and ends[-1] <= item.start_ns:
                ends.pop()
            if not ends or item.end_ns <= ends[-1]:
                row.append(item)
                ends.append(item.end_ns)
                break
        else:
            rows.append([item])
            open_ends.append([item.end_ns])
    return rows


class TraceWriter:
    """Writes one trace, event by event; use as a context.

    Args:
        stream: where the bytes go.

    Attributes:
        slices, instants, samples, arrows: how many were written.
    """

    def __init__(self, stream: BinaryIO | GzipFile) -> None:
        self._stream = stream
        self._ids = count(1)  # of processes and threads: no thread has the number of a process, its main thread's
        self._processes = 0
        self._is_first = True
        self.slices = self.instants = self.samples = self.arrows = 0

    def __enter__(self) -> TraceWriter:
        self._stream.write(HEAD)
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.write(b"\n]}\n")

    def write(self, process: str, tracks: Sequence[Track]) -> None:
        """Write a run: its name, and its tracks from top to bottom. Events of one track are in the order of time."""
        self._processes += 1
        pid = next(self._ids)
        self._describe("process", {"pid": pid}, process, self._processes)
        for rank, track in enumerate(tracks):
            if track.unit is None:
                place = {"pid": pid, "tid": next(self._ids)}
                self._describe("thread", place, track.name, rank)
                self._write_slices(place, track.slices)
                for instant in sorted(track.instants, key=itemgetter(0)):
                    self._put({"ph": "i", **place, "ts": instant.at_ns / 1000, **_named(instant), "s": "t"})
                self.instants += len(track.instants)
            else:
                name, unit = _text(track.name), _text(track.unit or "value")
                for at_ns, value in sorted(track.samples, key=itemgetter(0)):
                    self._put({"ph": "C", "pid": pid, "ts": at_ns / 1000, "name": name, "args": {unit: value}})
                self.samples += len(track.samples)

    def _describe(self, kind: str, place: dict[str, int], name: str, rank: int) -> None:
        self._put({"ph": "M", **place, "name": f"{kind}_name", "args": {"name": _text(name)}})
        self._put({"ph": "M", **place, "name": f"{kind}_sort_index", "args": {"sort_index": rank}})

    def _write_slices(self, place: dict[str, int], row: Sequence[Slice]) -> None:
        for at_ns, item in _edges(row):
            time = at_ns / 1000
            if item is None:
                self._put({"ph": "E", **place, "ts": time})
                continue
            self._put({"ph": "B", **place, "ts": time, **_named(item)})
            for name, number, phase in item.arrows:
                id_ = (place["pid"] << 32) + number  # arrows are numbered over the whole file
                self._put({"ph": phase, **place, "ts": time, "name": name, "cat": "arrow", "id": id_, "bp": "e"})
                self.arrows += phase == "f"
        self.slices += len(row)

    def _put(self, event: dict[str, Any]) -> None:
        self._stream.write((b"" if self._is_first else b",\n") + msgspec.json.encode(event))
        self._is_first = False


def _edges(row: Iterable[Slice]) -> Iterator[tuple[int, Slice | None]]:
    """Yield begins, and ends as None, of one row of ``without_crossings`` in the order of time."""
    open_ends: list[int] = []
    for item in row:
        while open_ends and open_ends[-1] <= item.start_ns:
            yield open_ends.pop(), None
        yield item.start_ns, item
        open_ends.append(item.end_ns)
    while open_ends:
        yield open_ends.pop(), None


def _named(item: Slice | Instant) -> dict[str, Any]:
    facts = {_text(name): _text(value) if isinstance(value, str) else value for name, value in item.arguments}
    named = {"name": _text(item.name), "cat": ",".join(item.categories)}
    return named | {"args": facts} if facts else named


@lru_cache(maxsize=1000)
def _text(text: str) -> str:
    """Return text of a run's files as a trace may hold it: plain, and not too long."""
    return plain(text, LONGEST_TEXT)
