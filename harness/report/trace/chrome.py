"""Tracks in Chrome's Trace Event Format: JSON that ui.perfetto.dev, Perfetto's SQL and chrome://tracing read.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A run is a process there, a
track of slices one of its threads. Times are microseconds with three decimals: the nanoseconds of the run.

A slice is a begin and an end, not one complete event: an arrow is tied to what is open at its time on its thread, and
of two slices that begin at once, as on a virtual clock, Perfetto would take the inner one, since it reads complete
events first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from gzip import GzipFile
from itertools import count
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import msgspec

from harness.core.terminal_text import plain

Arguments = Mapping[str, int | float | str]
"""By name, shown in the order given; numbers are finite and have at most 64 bits."""
Arrow = tuple[str, int, str]
"""A stop of an arrow: name, number within the run, and ``s`` where it starts, ``t`` on its way, ``f`` where it ends."""
Samples = list[tuple[int, float]]
"""(nanoseconds, value from then on) of a counter."""

LONGEST_TEXT = 400
HEAD = b'{"displayTimeUnit":"ns","traceEvents":[\n'
"""How every trace of ours begins."""
_AT_ONCE = 1000


class Slice(NamedTuple):
    """A stretch of time, in nanoseconds since the run's origin; ``category`` may be several, joined by commas."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    arguments: Arguments = MappingProxyType({})
    arrows: Sequence[Arrow] = ()


@dataclass
class Track:
    """A row of the trace: slices in any order with flags, which are slices without a length, or a counter's samples."""

    name: str
    slices: list[Slice] = field(default_factory=list)
    flags: list[Slice] = field(default_factory=list)
    samples: Samples = field(default_factory=list)
    unit: str = ""


class TraceWriter:
    """Writes one trace; use as a context.

    Attributes:
        counts: events written, by their phase: ``B`` slices, ``i`` flags, ``C`` samples, ``f`` arrows.
    """

    def __init__(self, stream: BinaryIO | GzipFile) -> None:
        self.counts: Counter[str] = Counter()
        self._stream, self._events = stream, list[dict[str, Any]]()
        self._ids = count(1)  # of processes and threads: no thread has the number of a process, its main thread's
        self._runs = 0

    def __enter__(self) -> TraceWriter:
        self._stream.write(HEAD)
        return self

    def __exit__(self, *_: object) -> None:
        self._flush(b"\n]}\n")

    def write(self, process: str, tracks: Iterable[Track]) -> None:
        """Write a run: its name, and its tracks from top to bottom."""
        pid, rank = next(self._ids), count()
        self._runs += 1
        self._describe("process", {"pid": pid}, process, self._runs)
        for track in tracks:
            if track.samples:
                name, unit = _text(track.name), _text(track.unit or "value")
                for at_ns, value in track.samples:
                    self._put({"ph": "C", "pid": pid, "ts": at_ns / 1000, "name": name, "args": {unit: value}})
                continue
            for number, row in enumerate(without_crossings(track.slices)):
                place = {"pid": pid, "tid": next(self._ids)}
                crossing = f", crossing{f' {number}' if number > 1 else ''}" if number else ""
                self._describe("thread", place, track.name + crossing, next(rank))
                self._write_slices(place, row)
                for flag in () if number else track.flags:
                    self._put({"ph": "i", **place, **_facts(flag), "s": "t"})

    def _describe(self, kind: str, place: dict[str, int], name: str, rank: int) -> None:
        self._put({"ph": "M", **place, "name": f"{kind}_name", "args": {"name": _text(name)}})
        self._put({"ph": "M", **place, "name": f"{kind}_sort_index", "args": {"sort_index": rank}})

    def _write_slices(self, place: dict[str, int], row: Iterable[Slice | int]) -> None:
        for item in row:
            if isinstance(item, int):
                self._put({"ph": "E", **place, "ts": item / 1000})
                continue
            self._put({"ph": "B", **place, **_facts(item)})
            for name, number, phase in item.arrows:
                arrow = {"ts": item.start_ns / 1000, "name": name, "cat": "arrow", "bp": "e"}
                self._put({"ph": phase, **place, **arrow, "id": (place["pid"] << 32) + number})  # of the whole file

    def _put(self, event: dict[str, Any]) -> None:
        self.counts[event["ph"]] += 1
        self._events.append(event)
        if len(self._events) == _AT_ONCE:
            self._flush(b",\n")

    def _flush(self, end: bytes) -> None:
        self._stream.write(b",\n".join(map(msgspec.json.encode, self._events)) + end)
        self._events.clear()


def without_crossings(slices: Iterable[Slice]) -> list[list[Slice | int]]:
    """Return the slices row by row, at least one row, so that on each every two lie apart or one within the other.

    A row is a stack, where an end closes what began last: a viewer shows wrong lengths for two that cross. The first
    row holds as many as fit, what crosses them goes to the next one.

    Returns:
        of each row the slices by their begin, the longest first; and among them each end, as its time.
    """
    rows: list[list[Slice | int]] = [[]]
    open_ends: list[list[int]] = [[]]  # of each row, the innermost last
    for item in sorted(slices, key=lambda item: (item.start_ns, -item.end_ns)):
        for row, ends in zip(rows, open_ends, strict=True):
            while ends and ends[-1] <= item.start_ns:
                row.append(ends.pop())
            if not ends or item.end_ns <= ends[-1]:
                break
        else:
            row, ends = [], []
            rows.append(row)
            open_ends.append(ends)
        row.append(item)
        ends.append(item.end_ns)
    return [[*row, *reversed(ends)] for row, ends in zip(rows, open_ends, strict=True)]


def _facts(item: Slice) -> dict[str, Any]:
    facts = {"ts": item.start_ns / 1000, "name": _text(item.name), "cat": item.category}
    told = {_text(name): _text(value) if isinstance(value, str) else value for name, value in item.arguments.items()}
    return facts | {"args": told} if told else facts


@lru_cache(maxsize=1000)
def _text(text: str) -> str:
    """Return text of a run's files as a trace may hold it: plain, and not too long."""
    return plain(text, LONGEST_TEXT)
