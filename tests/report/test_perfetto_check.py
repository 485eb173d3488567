"""The strict reader: every rule of a sound trace, each broken once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from harness.core.errors import UserError
from harness.report.trace.events import Instant, Sample, Slice, Track
from harness.report.trace.packets import Process, TraceWriter
from tests.stand_ins.trace_check import ReadSlice, main, read_trace

LANE, COUNTER = (1 << 32) + 1, (1 << 32) + 2
Spoil = Callable[[Any], None]


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A trace of one lane with two slices joined by an arrow and an instant, and one counter."""
    lane = Track(
        "lane",
        slices=[
            Slice(10, 20, "first", ("stage",), (("step", 3),), flows=(1,)),
            Slice(20, 30, "second", ("wait",), last_of=(1,)),
        ],
        instants=[Instant(15, "now", ("version",))],
    )
    counter = Track("number", samples=[Sample(12, 0.5)], unit="tokens/s")
    path = tmp_path / "sound.pftrace"
    with path.open("wb") as stream:
        TraceWriter(stream).write(Process("run", ["a label"], [lane, counter]))
    return path


def test_a_sound_trace_comes_back_whole(sound: Path) -> None:
    trace = read_trace(sound)

    first = ReadSlice(("run", "lane"), "first", 10, 20, ("stage",), {"step": 3})
    second = ReadSlice(("run", "lane"), "second", 20, 30, ("wait",), {})
    now = ReadSlice(("run", "lane"), "now", 15, 15, ("version",), {}, is_instant=True)
    assert trace.tracks == {("run",): None, ("run", "lane"): None, ("run", "number"): "tokens/s"}
    assert trace.slices == [now, first, second]
    assert [tuple(sample) for sample in trace.samples] == [(("run", "number"), 12, 0.5)]
    assert list(trace.arrows.values()) == [[first, second]]


def test_the_file_is_one_message_for_any_other_reader(sound: Path) -> None:
    """``Trace.FromString`` is what the classes of the format itself read."""
    trace = pb.Trace.FromString(sound.read_bytes())

    events = [packet.track_event for packet in trace.packet if packet.HasField("track_event")]
    assert [event.type for event in events] == [
        pb.TrackEvent.TYPE_SLICE_BEGIN,
        pb.TrackEvent.TYPE_COUNTER,
        pb.TrackEvent.TYPE_INSTANT,
        pb.TrackEvent.TYPE_SLICE_END,
        pb.TrackEvent.TYPE_SLICE_BEGIN,
        pb.TrackEvent.TYPE_SLICE_END,
    ]
    assert [packet.timestamp for packet in trace.packet if packet.HasField("timestamp")] == [10, 12, 15, 20, 20, 30]


# The packets of the sound trace: 0 root, 1 process, 2 lane, 3 counter, 4 begin of first, 5 sample, 6 instant,
# 7 end of first, 8 begin of second, 9 end of second
def drop(number: int) -> Spoil:
    return lambda trace: trace.packet.pop(number) and None


def swap(first: int, second: int) -> Spoil:
    def change(trace: Any) -> None:
        kept = pb.TracePacket.FromString(trace.packet[first].SerializeToString())
        trace.packet[first].CopyFrom(trace.packet[second])
        trace.packet[second].CopyFrom(kept)

    return change


def put(number: int, field: str, value: Any) -> Spoil:
    def change(trace: Any) -> None:
        *parents, last = field.split(".")
        holder = trace.packet[number]
        for part in parents:
            holder = getattr(holder, part)
        setattr(holder, last, value)

    return change


def clear(number: int, part: str, field: str) -> Spoil:
    return lambda trace: (getattr(trace.packet[number], part) if part else trace.packet[number]).ClearField(field)


def flow(number: int, field: str, *arrows: int) -> Spoil:
    def change(trace: Any) -> None:
        getattr(trace.packet[number].track_event, field)[:] = arrows

    return change


def again(number: int) -> Spoil:
    return lambda trace: trace.packet.append(trace.packet[number])


def unknown_field(trace: Any) -> None:
    trace.packet[4].MergeFromString(b"\xf8\xff\x03\x01")  # field 8191, which the format does not have


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (drop(2), "is used before it is described"),
        (drop(1), "the parent of track 'lane' is not described before it"),
        (swap(1, 2), "the parent of track 'lane' is not described before it"),
        (again(2), "is described twice"),
        (put(2, "track_descriptor.name", ""), "has no name"),
        (put(3, "track_descriptor.name", "lane"), "there are two tracks"),
        (put(1, "track_descriptor.process.pid", 0), "pid 0 is taken"),
        (put(1, "track_descriptor.process.process_name", ""), "process 1 has no name"),
        (put(0, "track_descriptor.name", "root"), "the root track must have no name"),
        (put(1, "sequence_flags", pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE), "its sequence has not begun"),
        (put(4, "sequence_flags", 0), "its sequence has not begun"),
        (put(4, "trusted_packet_sequence_id", 0), "it belongs to no sequence"),
        (put(4, "timestamp_clock_id", 6), "it names a clock of its own"),
        (clear(4, "", "timestamp"), "the event has no time"),
        (put(5, "timestamp", 9), "time runs back from 10 to 9 ns"),
        (drop(9), "1 slices of ('run', 'lane') never end"),
        (again(9), "a slice ends on ('run', 'lane') that never began"),
        (put(4, "track_event.track_uuid", COUNTER), "counters and slices do not mix"),
        (put(5, "track_event.track_uuid", LANE), "counters and slices do not mix"),
        (put(5, "track_event.double_counter_value", math.nan), "is nan"),
        (put(5, "track_event.double_counter_value", math.inf), "is inf"),
        (clear(5, "track_event", "double_counter_value"), "is missing"),
        (put(5, "track_event.type", pb.TrackEvent.TYPE_UNSPECIFIED), "unknown type 0"),
        (put(6, "track_event.name", ""), "the event has no name"),
        (clear(6, "track_event", "category_iids"), "has no category"),
        (clear(4, "", "interned_data"), "is used before it is defined"),
        (put(8, "track_event.name_iid", 99), "string 99 is used before it is defined"),
        (flow(8, "terminating_flow_ids"), "has one end only"),
        (flow(8, "terminating_flow_ids", 5), "has one end only"),
        (flow(4, "terminating_flow_ids", (1 << 32) + 1), "an arrow leads from a slice to itself"),
        (unknown_field, "it has a field that this version of the format lacks"),
    ],
)
def test_each_rule_refuses_what_breaks_it(sound: Path, spoil: Spoil, problem: str) -> None:
    trace = pb.Trace.FromString(sound.read_bytes())
    spoil(trace)
    sound.write_bytes(trace.SerializeToString())

    with pytest.raises(UserError) as caught:
        read_trace(sound)

    assert problem in str(caught.value)


def test_arrows_end_once_and_lead_forward(sound: Path) -> None:
    trace = pb.Trace.FromString(sound.read_bytes())
    number = (1 << 32) + 1
    for place, fields in {4: ("flow_ids", []), 8: ("terminating_flow_ids", [])}.items():
        getattr(trace.packet[place].track_event, fields[0])[:] = fields[1]
    trace.packet[4].track_event.terminating_flow_ids.append(number)
    trace.packet[8].track_event.flow_ids.append(number)
    sound.write_bytes(trace.SerializeToString())

    with pytest.raises(UserError, match=r"arrow \d+ goes on after its end"):
        read_trace(sound)

    trace.packet[4].track_event.ClearField("terminating_flow_ids")
    trace.packet[4].track_event.flow_ids.append(number)
    sound.write_bytes(trace.SerializeToString())
    with pytest.raises(UserError, match=r"arrow \d+ never ends"):
        read_trace(sound)

    trace.packet[8].timestamp = trace.packet[7].timestamp = trace.packet[6].timestamp = trace.packet[5].timestamp = 10
    sound.write_bytes(trace.SerializeToString())
    with pytest.raises(UserError, match=r"arrow \d+ leads from 10 to 10 ns"):
        read_trace(sound)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda data: data[:-3], "the last packet is cut"),
        (lambda data: data + b"\x12", "the next byte is 0x12"),
        (lambda data: data + b"\x0a", "the length of the next packet is cut"),
        (lambda data: data + b"\x0a\xff\xff\xff\xff\x0f", "the next packet would have"),
        (lambda data: b'{"traceEvents": []}', "the next byte is 0x7b"),
    ],
)
def test_a_damaged_file_is_named(
    sound: Path, spoil: Callable[[bytes], bytes], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sound.write_bytes(spoil(sound.read_bytes()))

    assert main([str(sound)]) == 2

    assert problem in capsys.readouterr().err


def test_the_command_counts_what_it_checked(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sound)]) == 0
    assert "sound; 10 packets, 3 tracks, 3 slices and instants, 1 arrows, 1 counter values" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["nowhere.pftrace"]) == 2
