"""Read a trace back, and refuse what a viewer would forgive and show wrongly: ends without a begin, slices on a thread
that nobody named, arrows that lead back in time.
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Track = tuple[str, ...]
"""The names of process and track; of the process alone in ``ReadTrace.tracks``."""


class ReadSlice(NamedTuple):
    """A slice or, where it has no length and ``is_instant``, an instant."""

    track: Track
    name: str
    start_ns: int
    end_ns: int
    categories: tuple[str, ...]
    arguments: dict[str, Any]
    is_instant: bool = False


class ReadSample(NamedTuple):
    """A counter's value."""

    track: Track
    at_ns: int
    value: float


@dataclass
class ReadTrace:
    """What a trace holds.

    Attributes:
        tracks: in the order of the file, to the unit; None where it is no counter.
        slices: by their end, instants among them.
        arrows: number to the slices it passes through, in order.
    """

    tracks: dict[Track, str | None] = field(default_factory=dict)
    slices: list[ReadSlice] = field(default_factory=list)
    samples: list[ReadSample] = field(default_factory=list)
    arrows: dict[int, list[ReadSlice]] = field(default_factory=dict)


def read_trace(path: Path) -> ReadTrace:
    """Return what a trace file holds, for which every rule of a sound trace is asserted."""
    data = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    trace = ReadTrace()
    names: dict[tuple[int, int | None], Track] = {}
    open_slices: dict[tuple[int, int | None], list[list[Any]]] = {}
    stops: dict[int, list[tuple[int, str, list[Any]]]] = {}
    for event in [event for event in events if event["ph"] == "M"]:
        place, is_name = (event["pid"], event.get("tid")), event["name"].endswith("_name")
        assert is_name == (place not in names)
        if is_name:
            names[place] = (*names.get((event["pid"], None), ()), event["args"]["name"])
            assert all(names[place])
            assert names[place] not in trace.tracks
            trace.tracks[names[place]] = None
    for event in sorted((event for event in events if event["ph"] != "M"), key=lambda event: event["ts"]):
        place, at_ns = (event["pid"], event.get("tid")), round(event["ts"] * 1000)
        stack = open_slices.setdefault(place, [])
        match event["ph"]:
            case "B":
                stack.append([event, at_ns, None])
            case "E":
                stack[-1][-1] = _slice(names[place], stack[-1][0], stack[-1][1], at_ns)
                trace.slices.append(stack.pop()[-1])
            case "i":
                trace.slices.append(_slice(names[place], event, at_ns, at_ns)._replace(is_instant=True))
            case "C":
                [(unit, value)] = event["args"].items()
                assert math.isfinite(value)
                track = (*names[place], event["name"])
                assert trace.tracks.setdefault(track, unit) == unit
                trace.samples.append(ReadSample(track, at_ns, value))
            case phase:
                assert phase in ("s", "t", "f")
                assert event["bp"] == "e"
                assert stack[-1][1] == at_ns  # it is tied to what has just begun
                stops.setdefault(event["id"], []).append((at_ns, phase, stack[-1]))
    assert not any(open_slices.values())
    for number, chain in stops.items():
        times = [at_ns for at_ns, _, _ in chain]
        assert times == sorted(set(times))
        assert [phase for _, phase, _ in chain] == ["s", *"t" * (len(chain) - 2), "f"]
        trace.arrows[number] = [opened[-1] for _, _, opened in chain]
    return trace


def _slice(track: Track, event: dict[str, Any], start_ns: int, end_ns: int) -> ReadSlice:
    assert event["name"]
    categories = tuple(event["cat"].split(","))
    assert all(categories)
    return ReadSlice(track, event["name"], start_ns, end_ns, categories, event.get("args", {}))
