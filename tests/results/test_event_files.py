"""TensorBoard event files: what is written is what tensorboardX writes, and what it writes is read."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.results.importers.logs import STEP, TIME, read_events
from harness.results.trackers import event_record
from tests.event_files import encode_scalars, encode_start

tensorboardX = pytest.importorskip("tensorboardX")


def test_a_record_is_the_one_that_tensorboardx_writes(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter

    writer = RecordWriter(str(tmp_path / "events"))
    writer.write(Event(step=4, wall_time=7.0, file_version="brain.Event:2").SerializeToString())
    writer.close()
    assert event_record(step=4, wall_time=7.0, file_version="brain.Event:2") == (tmp_path / "events").read_bytes()


def test_what_tensorboardx_writes_is_read(tmp_path: Path) -> None:
    with tensorboardX.SummaryWriter(logdir=str(tmp_path)) as writer:
        writer.add_scalar("critic/score/mean", 0.25, 1, walltime=10.0)
        writer.add_scalar("critic/score/mean", 0.5, 2, walltime=11.0)
        writer.add_text("note", "no number", 2)
    (file,) = tmp_path.iterdir()
    records = [{STEP: 1, "critic/score/mean": 0.25, TIME: 10.0}, {STEP: 2, "critic/score/mean": 0.5, TIME: 11.0}]
    assert read_events(file.read_bytes(), "log") == (records, ["1 values of TensorBoard that are no scalars"])


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
        ({"dtype": 1, "float_val": [1.0, 2.0]}, None),
        ({"dtype": 7, "string_val": [b"text"]}, None),
        ({"dtype": 1, "tensor_content": b"x"}, None),
    ],
)
def test_a_scalar_may_be_a_tensor_and_other_tensors_are_counted(fields: dict[str, object], value: float | None) -> None:
    read = [] if value is None else [{STEP: 4, "reward": value, TIME: 1.0}]
    left_out = ["1 values of TensorBoard that are no scalars"] if value is None else []
    assert read_events(_with_tensor(**fields), "log") == (read, left_out)


def test_every_cut_of_a_file_gives_the_records_before_it() -> None:
    records = [encode_start(0.0), *(encode_scalars({"loss": step / 4}, step, 1.0) for step in range(3))]
    data, ends = b"".join(records), [sum(map(len, records[: count + 1])) for count in range(4)]
    for size in range(1, len(data)):
        read, left_out = read_events(data[:size], "log")
        whole = sum(end <= size for end in ends)
        assert [record[STEP] for record in read] == list(range(max(0, whole - 1)))
        cut = size - ([0, *ends])[whole]
        assert left_out == [f"{cut} bytes of a record that is not whole, at the end of an event file"] * bool(cut)


@pytest.mark.parametrize("byte", [6, -6], ids=["a length of 2**55 bytes", "in the data"])
def test_a_flipped_byte_is_an_error_that_names_the_record(byte: int) -> None:
    first, second = encode_start(0.0), bytearray(encode_scalars({"loss": 0.5}, 1, 1.0))
    second[byte] ^= 0xFF
    data = first + second
    with pytest.raises(UserError, match=f"the record at byte {len(first)} has a wrong checksum"):
        read_events(bytes(data), "log")


@pytest.mark.parametrize("data", [b'{"step": 1, "data": {}}\n', bytes(64), encode_scalars({"a": 1.0}, 0, 0.0)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(UserError, match=r"'log' is no TensorBoard event file"):
        read_events(data, "log")
