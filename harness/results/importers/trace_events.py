"""Chrome's trace events (torch.profiler's Kineto, Ray's timeline, Perfetto's JSON) become a recording, by names.

The format: "Trace Event Format", Chromium, 2016: an array of events, or an object with ``traceEvents``. Complete events
(``X``) and pairs (``B``, ``E``) are spans, metadata (``M``) names processes and threads; times are microseconds.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.core.errors import UserError
from harness.core.named_files import NamedFiles
from harness.core.regular_files import MOST_BYTES, open_regular
from harness.record import format as form
from harness.record.event_file import EventFile
from harness.record.private import shown
from harness.record.recording import MAIN_LANE, RecordingError, begin_folder
from harness.results.jsonl import read_checked
from harness.results.reader import parse_settings

NAMES = NamedFiles("file of names", "profiles/traces", "stages: {generate: [rollout]}")
STARTUP = "startup"
"""A stage before the first step."""
_GZIP = b"\x1f\x8b"
Event = dict[str, Any]


class TraceNames(msgspec.Struct, forbid_unknown_fields=True):
    """What a trace's names become here; see ``profiles/traces/torch.yaml``.

    Attributes:
        stages: for each stage, regular expressions for the whole name of an event.
        step: for the name of those that are training steps; what stands in brackets is the number.
        step_is: whether such an event is the step, or its end.
        events: for the category of those that are read; None reads all.
        lane: for the category of an event; what stands in brackets is its lane. None: lanes are threads.
        others: whether events with another name are kept under it.
    """

    stages: dict[str, list[str]]
    step: str
    step_is: Literal["whole", "end"] = "whole"
    events: str | None = None
    lane: str | None = None
    others: Literal["keep", "drop"] = "keep"


@dataclass(frozen=True, slots=True)
class Traced:
    """What came of a trace: spans and training steps, and how many events had a name that is not known."""

    spans: int
    steps: int
    others: tuple[str, ...]


def read_names(name: str) -> TraceNames:
    """Read a file of names: one that is shipped, or a path.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = NAMES.find(name)
    names = read_checked(path, lambda content: msgspec.convert(parse_settings(content.decode()), TraceNames))
    for pattern in [
        *(each for several in names.stages.values() for each in several),
        names.step,
        names.events,
        names.lane,
    ]:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise UserError(f"{pattern!r} is no regular expression: {error}", str(path), "mend it there") from error
    return names


def import_trace(trace: Path, names: TraceNames, folder: Path, **said: Any) -> Traced:
    """Make a recording of a trace; ``said`` are facts of it, see ``harness.results.recordings.Facts``.

    Raises:
        UserError: the trace cannot be read, has no training step, or the folder cannot be written.
    """
    lanes, spans, steps = _read(trace, names)
    first_us: float = min(event["ts"] for _, event in [*spans, *steps])

    def at(moment_us: float) -> int:
        return round((moment_us - first_us) * 1000)

    known = {name: stage for stage, patterns in names.stages.items() for name in _fitting(patterns, spans)}
    kept = [(key, each) for key, each in spans if each["name"] in known or names.others == "keep"]
    edges = _steps(steps, names, [each["ts"] for _, each in kept if known.get(each["name"]) != STARTUP])
    try:
        begin_folder(
            folder, [], **{"trainer": "", "arguments": [], "environment": [], "versions": {}, "threads": None} | said
        )
    except RecordingError as error:
        raise UserError(str(error), str(folder), "choose another folder with --out DIR") from error
    file = EventFile(folder / form.EVENTS / "1.jsonl")
    try:
        file.add(form.line([form.PROCESS, 0, "trace", 0, 0]))
        for number, begin_us, end_us in edges:
            file.add(form.line([form.STEP, number, at(begin_us)]))
            file.add(form.line([form.END_OF_STEP, number, at(end_us)]))
        ends = [(number, end_us) for number, _, end_us in edges]
        for key, each in sorted(kept, key=lambda item: item[1]["ts"]):
            end_us = each["ts"] + each["dur"]
            step = next((number for number, until_us in ends if each["ts"] < until_us), form.NO_STEP)
            name = known.get(each["name"], shown(each["name"]))
            file.add(form.line([form.SPAN, lanes[key], name, at(each["ts"]), at(end_us), step]))
        last_us = max(each["ts"] + each["dur"] for _, each in [*kept, *steps])
        file.add(form.line([form.END, "completed", None, at(last_us)]))
    finally:
        file.close()
    others = tuple(sorted({each["name"] for _, each in spans} - set(known)))
    return Traced(len(kept), len(edges), others)


# ---- reading

Key = tuple[str, str]
"""Process and thread, or the lane that a category names."""
Keyed = tuple[Key, Event]


def _read(trace: Path, names: TraceNames) -> tuple[dict[Key, str], list[Keyed], list[Keyed]]:
    """Return the lanes, the spans and the events that are steps."""
    events, where = _events(trace), str(trace)
    is_step, is_read = re.compile(names.step), re.compile(names.events or "(?s).*")
    titles: dict[tuple[str, str | None], str] = {}
    spans, steps = list[Keyed](), list[Keyed]()
    for event in events:
        if event.get("ph") == "M" and isinstance(event.get("args"), dict):
            thread = str(event.get("tid")) if event.get("name") == "thread_name" else None
            if event.get("name") in ("thread_name", "process_name"):
                titles[str(event.get("pid")), thread] = str(event["args"].get("name", ""))
    for event in _complete(events):
        if not is_read.fullmatch(str(event.get("cat", ""))):
            continue
        keyed = (_key(event, names), event)
        if is_step.fullmatch(event["name"]):
            steps.append(keyed)
        if names.step_is == "end" or not is_step.fullmatch(event["name"]):
            spans.append(keyed)
    if not steps:
        seen = ", ".join(sorted({str(each["name"]) for _, each in spans})[:8]) or "none at all"
        what = f"none of the {len(spans)} events that are read is a training step, called like {names.step}: {seen}"
        fix = (
            "trace steps (of torch.profiler: schedule= and profiler.step()), or name a file of names with --names FILE"
        )
        raise UserError(what, where, fix)
    return _lanes(spans, steps, titles, names), spans, steps


def _events(trace: Path) -> list[Event]:
    """Return the events of a file, also of one that is packed."""

    def parse(data: bytes) -> list[Event]:
        content = msgspec.json.decode(data)
        if isinstance(content, dict):
            content = content.get("traceEvents")
        if not isinstance(content, list):
            raise ValueError("it has no array of trace events")
        return [event for event in content if isinstance(event, dict)]

    try:
        with open_regular(trace) as file:
            packed = file.peek(2)[:2] == _GZIP
        if not packed:
            return read_checked(trace, parse)
        with gzip.open(trace) as unpacked:
            data = unpacked.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UserError(f"the trace is larger than {MOST_BYTES:,} bytes", str(trace), "trace fewer steps")
        return parse(data)
    except (OSError, EOFError, ValueError) as error:
        what = f"the trace {str(trace)!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise UserError(what, str(trace), "name a JSON file of trace events, packed by gzip or not") from error


def _complete(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events with begin and duration; pairs are put together by thread, as they are nested."""
    open_: dict[tuple[Any, Any], list[Event]] = {}
    for event in events:
        phase, begin = event.get("ph"), event.get("ts")
        thread = str(event.get("pid")), str(event.get("tid"))
        if not isinstance(begin, int | float) or isinstance(begin, bool):
            continue
        if phase == "B":
            open_.setdefault(thread, []).append(event)
        elif phase == "E" and open_.get(thread):
            started = open_[thread].pop()
            if begin >= started["ts"]:
                yield started | {"name": str(started.get("name", "")), "dur": begin - started["ts"]}
        elif phase == "X" and isinstance(length := event.get("dur", 0), int | float) and length >= 0:
            yield event | {"name": str(event.get("name", "")), "dur": length}


def _key(event: Event, names: TraceNames) -> Key:
    if names.lane is not None and (fits := re.fullmatch(names.lane, str(event.get("cat", "")))) and fits.groups():
        return ("", str(fits[1]).lower())
    return str(event.get("pid")), str(event.get("tid"))


def _lanes(
    spans: Sequence[Keyed], steps: Sequence[Keyed], titles: Mapping[tuple[str, str | None], str], names: TraceNames
) -> dict[Key, str]:
    """Name each lane: that of the steps is the Learner's, where no category names it; others by thread or number."""
    lanes: dict[Key, str] = {} if names.lane is not None else {steps[0][0]: MAIN_LANE}
    for key, _ in [*spans, *steps]:
        if key in lanes:
            continue
        process, thread = key
        name = thread if not process else titles.get((process, thread)) or titles.get((process, None)) or "thread"
        name = re.sub(r"\s*\d{3,}\s*", " ", shown(name)).strip() or "thread"  # numbers of processes say nothing
        taken = list(lanes.values())
        lanes[key] = name if name not in taken else f"{name}-{sum(each.startswith(name) for each in taken) + 1}"
    return lanes


def _fitting(patterns: Sequence[str], spans: Sequence[Keyed]) -> Iterator[str]:
    compiled = [re.compile(pattern) for pattern in patterns]
    for name in {each["name"] for _, each in spans}:
        if any(pattern.fullmatch(name) for pattern in compiled):
            yield name


def _steps(steps: Sequence[Keyed], names: TraceNames, begins_us: Sequence[float]) -> list[tuple[int, float, float]]:
    """Return number, begin and end of each training step, in order."""
    edges, is_step, before_us = list[tuple[int, float, float]](), re.compile(names.step), min(begins_us, default=0.0)
    for place, (_, event) in enumerate(sorted(steps, key=lambda item: item[1]["ts"])):
        fits = is_step.fullmatch(event["name"])
        numbered = fits is not None and fits.groups() and str(fits[1] or "").isdecimal()
        number = int(fits[1]) if fits is not None and numbered else place
        end_us = event["ts"] + event["dur"]
        begin_us = event["ts"] if names.step_is == "whole" else before_us
        if edges and number <= edges[-1][0]:
            continue  # the same step of another process
        edges.append((number, begin_us, end_us))
        before_us = end_us
    return edges
