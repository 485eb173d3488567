"""Read a trace back, strictly: ``python -m tests.stand_ins.trace_check FILE``.

A viewer forgives much and shows something wrong: an end without a begin, an arrow that leads back in time, a track that
nobody described. Here each of these is an error that names the packet. What is accepted is the part of the format that
``packets`` writes, not all of Perfetto's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb  # type: ignore[import-untyped]

from harness.core.errors import UserError
from harness.core.plain_text import plain
from harness.report.trace.events import Value

_TABLES = ("event_names", "event_categories", "debug_annotation_names")
_PACKET_TAG = 0x0A
_LONGEST_PACKET = 1 << 24  # bytes; what we write is far below


class ReadSlice(NamedTuple):
    """A slice or, where it has no length and ``is_instant``, an instant."""

    track: tuple[str, ...]
    name: str
    start_ns: int
    end_ns: int
    categories: tuple[str, ...]
    arguments: dict[str, Value]
    is_instant: bool = False


class ReadSample(NamedTuple):
    """A counter's value."""

    track: tuple[str, ...]
    at_ns: int
    value: float


@dataclass
class ReadTrace:
    """What a trace holds.

    Attributes:
        tracks: names from the process down, in the order of the file, to the unit; None where it is no counter.
        slices: in the order of their end, instants among them.
        arrows: number to the slices it passes through, in order.
    """

    packets: int = 0
    tracks: dict[tuple[str, ...], str | None] = field(default_factory=dict)
    slices: list[ReadSlice] = field(default_factory=list)
    samples: list[ReadSample] = field(default_factory=list)
    arrows: dict[int, list[ReadSlice]] = field(default_factory=dict)


class _Problem(Exception):
    """What is wrong with a packet."""


@dataclass
class _Open:
    name: str
    start_ns: int
    categories: tuple[str, ...]
    arguments: dict[str, Value]
    arrows: tuple[int, ...]


@dataclass
class _Sequence:
    strings: dict[str, dict[int, str]] = field(default_factory=lambda: {name: {} for name in _TABLES})
    last_ns: int = 0


class _Track(NamedTuple):
    path: tuple[str, ...]
    is_counter: bool


def read_trace(path: Path) -> ReadTrace:
    """Read a trace file and check every rule.

    Raises:
        UserError: naming the packet, counted from 1 (of a damaged file the last whole one), and what is wrong.
    """
    reader = _Reader()
    try:
        with path.open("rb") as stream:
            for packet in _packets(stream):
                reader.take(packet)
            reader.finish()
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error
    except (_Problem, DecodeError) as error:
        where = f"{path}, packet {reader.trace.packets}"
        raise UserError(f"{str(path)!r} is no sound trace: {error}", where=where) from error
    return reader.trace


def _packets(stream: BinaryIO) -> Iterator[Any]:
    while tag := stream.read(1):
        if tag[0] != _PACKET_TAG:
            raise _Problem(f"a packet must follow, and the next byte is {tag[0]:#x}")
        length = _length(stream)
        data = stream.read(length)
        if len(data) < length:
            raise _Problem(f"the last packet is cut: {len(data)} of {length} bytes")
        yield pb.TracePacket.FromString(data)


def _length(stream: BinaryIO) -> int:
    length = shift = 0
    while True:
        byte = stream.read(1)
        if not byte or shift > 28:
            raise _Problem("the length of the next packet is cut or too long")
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
    if length > _LONGEST_PACKET:
        raise _Problem(f"the next packet would have {length} bytes")
    return length


class _Reader:
    def __init__(self) -> None:
        self.trace = ReadTrace()
        self._sequences: dict[int, _Sequence] = {}
        self._tracks: dict[int, _Track] = {}
        self._pids: set[int] = set()
        self._open: dict[int, list[_Open]] = {}
        self._arrow_ns: dict[int, int] = {}
        self._ended_arrows: set[int] = set()

    def take(self, packet: Any) -> None:
        """Check one packet and keep what it says."""
        self.trace.packets += 1
        _need(not len(UnknownFieldSet(packet)), "it has a field that this version of the format lacks")
        _need(packet.trusted_packet_sequence_id > 0, "it belongs to no sequence")
        _need(not packet.HasField("timestamp_clock_id"), "it names a clock of its own")
        if packet.HasField("track_descriptor"):
            self._start_sequence(packet)
            self._describe(packet.track_descriptor)
        else:
            _need(packet.HasField("track_event"), "it is neither a track nor an event")
            self._event(packet)

    def finish(self) -> None:
        """Check what can only be known at the end."""
        for uuid, stack in self._open.items():
            _need(not stack, f"{len(stack)} slices of {self._tracks[uuid].path} never end")
        for number, slices in self.trace.arrows.items():
            _need(len(slices) > 1, f"arrow {number} has one end only")
            _need(number in self._ended_arrows, f"arrow {number} never ends")

    def _start_sequence(self, packet: Any) -> None:
        if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            self._sequences[packet.trusted_packet_sequence_id] = _Sequence()

    def _describe(self, track: Any) -> None:
        if track.uuid == 0:
            _need(not track.name and not track.HasField("parent_uuid"), "the root track must have no name, no parent")
            return
        _need(track.uuid not in self._tracks, f"track {track.uuid} is described twice")
        _need(bool(track.name), f"track {track.uuid} has no name")
        if track.HasField("process"):
            _need(track.process.pid > 0 and track.process.pid not in self._pids, f"pid {track.process.pid} is taken")
            _need(bool(track.process.process_name), f"process {track.process.pid} has no name")
            self._pids.add(track.process.pid)
            path: tuple[str, ...] = (track.name,)
        else:
            _need(track.parent_uuid in self._tracks, f"the parent of track {track.name!r} is not described before it")
            path = (*self._tracks[track.parent_uuid].path, track.name)
        _need(path not in self.trace.tracks, f"there are two tracks {path}")
        self._tracks[track.uuid] = _Track(path, track.HasField("counter"))
        self.trace.tracks[path] = _unit(track.counter) if track.HasField("counter") else None

    def _event(self, packet: Any) -> None:
        event, sequence = packet.track_event, self._sequences.get(packet.trusted_packet_sequence_id)
        needs = packet.sequence_flags & pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        if sequence is None or not needs:
            raise _Problem("its sequence has not begun")
        _need(packet.HasField("timestamp"), "the event has no time")
        _need(packet.timestamp >= sequence.last_ns, f"time runs back from {sequence.last_ns} to {packet.timestamp} ns")
        sequence.last_ns = packet.timestamp
        self._define(sequence, packet.interned_data)
        _need(event.track_uuid in self._tracks, f"track {event.track_uuid} is used before it is described")
        takes = {pb.TrackEvent.TYPE_SLICE_BEGIN: self._begin, pb.TrackEvent.TYPE_SLICE_END: self._end}
        takes |= {pb.TrackEvent.TYPE_INSTANT: self._instant, pb.TrackEvent.TYPE_COUNTER: self._sample}
        _need(event.type in takes, f"the event is of the unknown type {event.type}")
        track = self._tracks[event.track_uuid]
        is_sample = event.type == pb.TrackEvent.TYPE_COUNTER
        _need(track.is_counter == is_sample, f"counters and slices do not mix on {track.path}")
        takes[event.type](packet.timestamp, event, sequence)

    def _define(self, sequence: _Sequence, table: Any) -> None:
        for name in _TABLES:
            for item in getattr(table, name):
                _need(item.iid > 0 and item.iid not in sequence.strings[name], f"string {item.iid} is defined twice")
                _need(bool(item.name), f"string {item.iid} is empty")
                sequence.strings[name][item.iid] = item.name

    def _begin(self, at_ns: int, event: Any, sequence: _Sequence) -> None:
        arrows = (*event.flow_ids, *event.terminating_flow_ids)
        _need(len(set(arrows)) == len(arrows), "an arrow leads from a slice to itself")
        for number in arrows:
            before = self._arrow_ns.get(number, -1)
            _need(number not in self._ended_arrows, f"arrow {number} goes on after its end")
            _need(before < at_ns, f"arrow {number} leads from {before} to {at_ns} ns")
            self._arrow_ns[number] = at_ns
        self._ended_arrows.update(event.terminating_flow_ids)
        opened = _Open(*_said(event, sequence, at_ns), arrows)
        self._open.setdefault(event.track_uuid, []).append(opened)

    def _end(self, at_ns: int, event: Any, sequence: _Sequence) -> None:
        del sequence
        track, stack = self._tracks[event.track_uuid], self._open.get(event.track_uuid)
        if not stack:
            raise _Problem(f"a slice ends on {track.path} that never began")
        opened = stack.pop()
        item = ReadSlice(track.path, opened.name, opened.start_ns, at_ns, opened.categories, opened.arguments)
        self.trace.slices.append(item)
        for number in opened.arrows:
            self.trace.arrows.setdefault(number, []).append(item)
            self.trace.arrows[number].sort(key=lambda end: end.start_ns)

    def _instant(self, at_ns: int, event: Any, sequence: _Sequence) -> None:
        name, _, categories, arguments = _said(event, sequence, at_ns)
        path = self._tracks[event.track_uuid].path
        self.trace.slices.append(ReadSlice(path, name, at_ns, at_ns, categories, arguments, is_instant=True))

    def _sample(self, at_ns: int, event: Any, sequence: _Sequence) -> None:
        del sequence
        path = self._tracks[event.track_uuid].path
        _need(event.HasField("double_counter_value"), f"a counter value of {path} is missing")
        _need(math.isfinite(event.double_counter_value), f"a counter value of {path} is {event.double_counter_value}")
        self.trace.samples.append(ReadSample(path, at_ns, event.double_counter_value))


def _said(event: Any, sequence: _Sequence, at_ns: int) -> tuple[str, int, tuple[str, ...], dict[str, Value]]:
    """Return name, time, categories and arguments of a begin or an instant."""
    strings = sequence.strings
    name = _string(strings["event_names"], event.name_iid) if event.HasField("name_iid") else event.name
    _need(bool(name), "the event has no name")
    categories = tuple(_string(strings["event_categories"], number) for number in event.category_iids)
    _need(bool(categories), f"the event {name!r} has no category")
    names = strings["debug_annotation_names"]
    arguments = {_string(names, item.name_iid): _value(item) for item in event.debug_annotations}
    return name, at_ns, categories, arguments


def _string(table: dict[int, str], number: int) -> str:
    _need(number in table, f"string {number} is used before it is defined")
    return table[number]


def _value(annotation: Any) -> Value:
    kind = annotation.WhichOneof("value")
    _need(kind in ("bool_value", "int_value", "double_value", "string_value"), f"an argument is of the kind {kind}")
    value: Value = getattr(annotation, kind)
    return value


def _unit(counter: Any) -> str:
    return "bytes" if counter.unit == pb.CounterDescriptor.UNIT_SIZE_BYTES else counter.unit_name


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise _Problem(problem)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the trace files named; return the exit code: 0 sound, 2 not."""
    paths = sys.argv[1:] if arguments is None else list(arguments)
    if not paths or paths[0] in ("-h", "--help"):
        print("usage: python -m tests.stand_ins.trace_check FILE...")
        return 0 if paths else 2
    for path in paths:
        try:
            trace = read_trace(Path(path))
        except UserError as error:
            print(plain(str(error).replace("\n", " ")), file=sys.stderr)
            return 2
        counts = f"{len(trace.tracks)} tracks, {len(trace.slices)} slices and instants, {len(trace.arrows)} arrows"
        print(plain(f"{path}: sound; {trace.packets} packets, {counts}, {len(trace.samples)} counter values"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
