"""Write tracks as Perfetto's TrackEvent protobuf, packet by packet.

Format: https://perfetto.dev/docs/reference/synthetic-track-event and the messages ``TracePacket``, ``TrackDescriptor``,
``TrackEvent`` there. A file is a ``Trace`` message, that is, packets one after the other, each with tag and length in
front: it can be written without holding it in memory. Every run is one packet sequence with its own table of strings.
Timestamps are in the trace's default clock; no packet names another one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb  # type: ignore[import-untyped]

from harness.core.plain_text import plain
from harness.report.trace.events import Arguments, Instant, Sample, Slice, Track
from harness.report.trace.nesting import edges
from harness.results.rows import MOST_WHOLE

LONGEST_TEXT = 400
_PACKET_TAG = b"\x0a"  # field 1 of Trace, length-delimited
_CLEARED, _NEEDS = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE


class Process(NamedTuple):
    """One run as a process of the trace: what its track says of it, and its tracks."""

    name: str
    labels: Sequence[str]
    tracks: Sequence[Track]


class _Event(NamedTuple):
    at_ns: int
    track_uuid: int
    what: Slice | Instant | Sample | None  # None ends the slice that began last


class TraceWriter:
    """Writes one trace.

    Args:
        stream: where the bytes go.

    Attributes:
        packets, slices, instants, samples, arrows: how many were written.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._packet = pb.TracePacket()
        self._strings = _Strings()
        self._sequence = 0
        self.packets = self.slices = self.instants = self.samples = self.arrows = 0
        root = self._next(cleared=False)
        root.track_descriptor.uuid = 0
        root.track_descriptor.process_ordering = pb.TrackDescriptor.PROCESS_ORDERING_EXPLICIT
        self._put()

    def write(self, process: Process) -> None:
        """Write a run: first what describes its tracks, then its events in the order of time."""
        self._sequence += 1
        self._strings = _Strings()
        first_uuid = self._sequence << 32
        self._describe_process(first_uuid, process)
        uuids = {id(track): first_uuid + number for number, track in enumerate(_all(process.tracks), start=1)}
        self._describe_children(first_uuid, process.tracks, uuids)
        for event in heapq.merge(*_streams(process.tracks, uuids), key=lambda event: event.at_ns):
            self._write_event(event)

    def _describe_process(self, uuid: int, process: Process) -> None:
        track = self._next(cleared=True).track_descriptor
        track.uuid, track.name = uuid, plain(process.name, LONGEST_TEXT)
        track.process.pid, track.process.process_name = self._sequence, plain(process.name, LONGEST_TEXT)
        track.process.process_labels.extend(plain(label, LONGEST_TEXT) for label in process.labels)
        track.child_ordering = pb.TrackDescriptor.EXPLICIT
        track.sibling_order_rank = self._sequence
        self._put()

    def _describe_children(self, parent: int, tracks: Sequence[Track], uuids: dict[int, int]) -> None:
        for rank, item in enumerate(tracks):
            track = self._next().track_descriptor
            track.uuid, track.parent_uuid, track.name = uuids[id(item)], parent, plain(item.name, LONGEST_TEXT)
            track.sibling_order_rank = rank
            track.sibling_merge_behavior = pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
            if item.is_counter:
                _describe_counter(track.counter, item.unit or "")
            else:
                track.child_ordering = pb.TrackDescriptor.EXPLICIT
            self._put()
            self._describe_children(uuids[id(item)], item.children, uuids)

    def _write_event(self, event: _Event) -> None:
        packet = self._next()
        packet.timestamp = event.at_ns
        body, what = packet.track_event, event.what
        body.track_uuid = event.track_uuid
        if what is None:
            body.type = pb.TrackEvent.TYPE_SLICE_END
        elif isinstance(what, Sample):
            body.type, body.double_counter_value = pb.TrackEvent.TYPE_COUNTER, what.value
            self.samples += 1
        elif isinstance(what, Instant):
            body.type, body.name = pb.TrackEvent.TYPE_INSTANT, plain(what.name, LONGEST_TEXT)
            self._describe_event(packet, what.categories, what.arguments)
            self.instants += 1
        else:
            self._begin(packet, what)
        self._put()

    def _begin(self, packet: Any, what: Slice) -> None:
        body = packet.track_event
        body.type = pb.TrackEvent.TYPE_SLICE_BEGIN
        body.name_iid = self._strings.number(packet, "event_names", plain(what.name, LONGEST_TEXT))
        self._describe_event(packet, what.categories, what.arguments)
        body.flow_ids.extend(self._arrow(number) for number in what.flows)
        body.terminating_flow_ids.extend(self._arrow(number) for number in what.last_of)
        self.slices += 1
        self.arrows += len(what.last_of)

    def _arrow(self, number: int) -> int:
        """Arrows are numbered over the whole file; within a run from 1."""
        return (self._sequence << 32) + number

    def _describe_event(self, packet: Any, categories: Sequence[str], arguments: Arguments) -> None:
        body = packet.track_event
        body.category_iids.extend(self._strings.number(packet, "event_categories", category) for category in categories)
        for name, value in arguments:
            item = body.debug_annotations.add()
            item.name_iid = self._strings.number(packet, "debug_annotation_names", plain(name, LONGEST_TEXT))
            if isinstance(value, bool):
                item.bool_value = value
            elif isinstance(value, int) and abs(value) <= MOST_WHOLE:
                item.int_value = value
            elif isinstance(value, int | float):
                item.double_value = value
            else:
                item.string_value = plain(value, LONGEST_TEXT)

    def _next(self, cleared: bool = False) -> Any:
        packet = self._packet
        packet.Clear()
        packet.trusted_packet_sequence_id = self._sequence + 1  # 0 is not a sequence
        if cleared:
            packet.sequence_flags = _CLEARED | _NEEDS
        elif self._sequence:
            packet.sequence_flags = _NEEDS
        return packet

    def _put(self) -> None:
        data = self._packet.SerializeToString(deterministic=True)
        self._stream.write(_PACKET_TAG + _varint(len(data)) + data)
        self.packets += 1


class _Strings:
    """The numbers of the strings of one sequence: each is written in full once, in the packet that needs it first."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, packet: Any, table: str, text: str) -> int:
        """Return the string's number in this table of ``InternedData``; the first time, define it in the packet."""
        known = self._numbers.get((table, text))
        if known is not None:
            return known
        number = self._numbers[table, text] = len(self._numbers) + 1
        item = getattr(packet.interned_data, table).add()
        item.iid, item.name = number, text
        return number


def _describe_counter(counter: Any, unit: str) -> None:
    if unit == "bytes":
        counter.unit = pb.CounterDescriptor.UNIT_SIZE_BYTES
    elif unit:
        counter.unit_name = unit
    else:
        counter.unit = pb.CounterDescriptor.UNIT_COUNT


def _all(tracks: Sequence[Track]) -> Iterator[Track]:
    for track in tracks:
        yield from track.walk()


def _streams(tracks: Sequence[Track], uuids: dict[int, int]) -> list[Iterable[_Event]]:
    """Return the events of each track, each in the order of time; where times are equal the order here decides."""
    streams: list[Iterable[_Event]] = []
    for track in _all(tracks):
        streams += [_slice_events(track, uuids[id(track)]), _plain_events(track, uuids[id(track)])]
    return streams


def _slice_events(track: Track, uuid: int) -> Iterator[_Event]:
    return (_Event(edge.at_ns, uuid, edge.slice) for edge in edges(track.slices))


def _plain_events(track: Track, uuid: int) -> Iterator[_Event]:
    for instant in sorted(track.instants, key=lambda item: item.at_ns):
        yield _Event(instant.at_ns, uuid, instant)
    for sample in sorted(track.samples, key=lambda item: item.at_ns):  # a track has instants or samples
        yield _Event(sample.at_ns, uuid, sample)


def _varint(number: int) -> bytes:
    """Return the number as protobuf writes lengths: seven bits a byte, the lowest first."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
