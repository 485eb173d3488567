"""TensorBoard event files: bytes against the formats' own test vectors and against tensorboardX, both ways."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.results.importers.logs import ScalarEvent, read_events
from harness.results.trackers.event_file import crc32c, encode_restart, encode_scalars, encode_start

tensorboardX = pytest.importorskip("tensorboardX")


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),  # the check value of CRC-32/ISCSI, https://reveng.sourceforge.io/crc-catalogue/
        (bytes(32), 0x8A9136AA),  # RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_crc32c_of_the_standards_own_examples(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_a_record_is_framed_as_tensorflow_frames_it() -> None:
    from tensorboardX.record_writer import masked_crc32c

    record = encode_scalars({"loss": 0.5}, step=3, wall_time=7.0)
    length = len(record) - 8 - 4 - 4  # length, its checksum, the data's checksum
    data = record[12:-4]
    assert record[:8] == struct.pack("<Q", length)
    assert record[8:12] == struct.pack("<I", masked_crc32c(record[:8]))
    assert record[-4:] == struct.pack("<I", masked_crc32c(data))


def test_what_is_written_is_what_the_official_messages_read() -> None:
    from tensorboardX.proto.event_pb2 import Event

    start = Event.FromString(encode_start(7.0)[12:-4])
    assert (start.wall_time, start.file_version) == (7.0, "brain.Event:2")
    event = Event.FromString(encode_scalars({"timing_s/update": 0.5, "loss": math.nan}, 3, 7.0)[12:-4])
    assert (event.step, event.wall_time) == (3, 7.0)
    assert [value.tag for value in event.summary.value] == ["timing_s/update", "loss"]
    assert event.summary.value[0].simple_value == 0.5
    assert math.isnan(event.summary.value[1].simple_value)


def test_a_run_that_goes_on_writes_what_purge_step_of_a_summary_writer_writes() -> None:
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    theirs = Event(step=4, session_log=SessionLog(status=SessionLog.START), wall_time=7.0)
    assert Event.FromString(encode_restart(4, 7.0)[12:-4]) == theirs


def test_what_tensorboardx_writes_is_read(tmp_path: Path) -> None:
    with tensorboardX.SummaryWriter(logdir=str(tmp_path)) as writer:
        writer.add_scalar("critic/score/mean", 0.25, 1, walltime=10.0)
        writer.add_scalar("critic/score/mean", 0.5, 2, walltime=11.0)
        writer.add_text("note", "no number", 2)
    (file,) = tmp_path.iterdir()
    found = read_events(file.read_bytes(), "log")
    assert found.scalars == (
        ScalarEvent("critic/score/mean", 1, 0.25, 10.0),
        ScalarEvent("critic/score/mean", 2, 0.5, 11.0),
    )
    assert found.others == 1
    assert found.cut_off_bytes == 0


def _with_tensor(**fields: object) -> bytes:
    """An event file with one value as a tensor, as TensorFlow 2 writes scalars, made with the official messages."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.proto.tensor_pb2 import TensorProto
    from tensorboardX.record_writer import masked_crc32c

    value = Summary.Value(tag="reward", tensor=TensorProto(**fields))
    data = Event(step=4, wall_time=1.0, summary=Summary(value=[value])).SerializeToString()
    head = struct.pack("<Q", len(data))
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (head, data))
    return encode_start(0.0) + head + next(checksums) + data + next(checksums)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"dtype": 1, "float_val": [0.25]}, 0.25),
        ({"dtype": 1, "tensor_content": struct.pack("<f", 0.25)}, 0.25),
        ({"dtype": 2, "double_val": [0.1]}, 0.1),
        ({"dtype": 2, "tensor_content": struct.pack("<d", 0.1)}, 0.1),
        ({"dtype": 3, "int_val": [7]}, 7.0),
        ({"dtype": 9, "tensor_content": struct.pack("<q", -7)}, -7.0),
    ],
)
def test_a_scalar_may_be_a_tensor(fields: dict[str, object], value: float) -> None:
    assert read_events(_with_tensor(**fields), "log").scalars == (ScalarEvent("reward", 4, value, 1.0),)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": 1, "float_val": [1.0, 2.0]},
        {"dtype": 7, "string_val": [b"text"]},
        {"dtype": 1, "tensor_content": b"x"},
    ],
    ids=["vector", "text", "wrong size"],
)
def test_other_tensors_are_counted(fields: dict[str, object]) -> None:
    found = read_events(_with_tensor(**fields), "log")
    assert (found.scalars, found.others) == ((), 1)


def test_every_cut_of_a_file_gives_the_records_before_it() -> None:
    records = [encode_start(0.0), *(encode_scalars({"loss": step / 4}, step, 1.0) for step in range(3))]
    data, ends = b"".join(records), [sum(map(len, records[: count + 1])) for count in range(4)]
    for size in range(1, len(data)):
        found = read_events(data[:size], "log")
        whole = sum(end <= size for end in ends)
        assert [scalar.step for scalar in found.scalars] == list(range(max(0, whole - 1)))
        assert found.cut_off_bytes == size - ([0, *ends])[whole]


def test_a_flipped_bit_is_an_error_that_names_the_record() -> None:
    first = encode_start(0.0)
    data = bytearray(first + encode_scalars({"loss": 0.5}, 1, 1.0))
    data[-6] ^= 1
    with pytest.raises(UserError, match=f"the checksum of the record at byte {len(first)} is wrong"):
        read_events(bytes(data), "log")


def test_a_false_length_is_caught_by_its_checksum() -> None:
    first = encode_start(0.0)
    data = bytearray(first + encode_scalars({"loss": 0.5}, 1, 1.0))
    data[len(first) + 6] = 0xFF  # a length of 2**55 bytes
    with pytest.raises(UserError, match="checksum"):
        read_events(bytes(data), "log")


@pytest.mark.parametrize("data", [b'{"step": 1, "data": {}}\n', bytes(64), encode_scalars({"a": 1.0}, 0, 0.0)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(UserError, match=r"'log' is no TensorBoard event file"):
        read_events(data, "log")
