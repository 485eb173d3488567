"""TensorBoard event files, written and read without TensorBoard.

An event file is a row of records (TensorFlow's TFRecord framing, ``tensorflow/core/lib/io/record_writer.h``): the
length of the data as uint64, the masked CRC-32C of that length as uint32, the data, and its masked CRC-32C as uint32,
all little-endian. The data is a protocol buffer message ``Event`` (``tensorflow/core/util/event.proto``). The messages
are declared here with the fields that scalars need; a reader of protocol buffers skips the others.

tensorboardX is not used for this: importing it takes 1.4 s because it brings torch with it, it writes through a thread,
puts the host's name into the file's name, and does not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from harness.core.errors import UserError

FILE_VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed (RFC 3720, appendix B.4)
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_HEAD_BYTES = _LENGTH.size + _CRC.size
_DOUBLE, _FLOAT, _INT64, _INT32, _STRING, _BYTES, _MESSAGE = 1, 2, 3, 5, 9, 12, 11  # FieldDescriptorProto.Type
# name -> fields: name, number, type (a string: the message of that name), whether it is repeated
_MESSAGES: dict[str, tuple[tuple[str, int, int | str, bool], ...]] = {
    "Event": (
        ("wall_time", 1, _DOUBLE, False),
        ("step", 2, _INT64, False),
        ("file_version", 3, _STRING, False),
        ("summary", 5, "Summary", False),
    ),
    "Summary": (("value", 1, "Value", True),),
    "Value": (("tag", 1, _STRING, False), ("simple_value", 2, _FLOAT, False), ("tensor", 8, "Tensor", False)),
    "Tensor": (
        ("dtype", 1, _INT32, False),
        ("tensor_content", 4, _BYTES, False),
        ("float_val", 5, _FLOAT, True),
        ("double_val", 6, _DOUBLE, True),
        ("int_val", 7, _INT32, True),
        ("int64_val", 10, _INT64, True),
    ),
}
# TensorFlow's DataType (types.proto) -> the field of its single values, and their form in tensor_content
_DTYPES = {1: ("float_val", "<f"), 2: ("double_val", "<d"), 3: ("int_val", "<i"), 9: ("int64_val", "<q")}


class ScalarEvent(NamedTuple):
    """One scalar of an event file; ``wall_time`` is in seconds since 1970."""

    tag: str
    step: int
    value: float
    wall_time: float


@dataclass(frozen=True, slots=True)
class EventFile:
    """What an event file holds.

    Attributes:
        scalars: in the order of the file.
        others: values that are no scalar: texts, images, histograms.
        cut_off_bytes: of a last record that is not whole, as a killed writer leaves it.
    """

    scalars: tuple[ScalarEvent, ...]
    others: int
    cut_off_bytes: int


def encode_scalars(values: Mapping[str, float], step: int, wall_time: float) -> bytes:
    """Return one record with all values at one step. Values are rounded to float32; NaN and infinities stay."""
    event = _message("Event")(wall_time=wall_time, step=step)
    for tag, value in values.items():
        event.summary.value.add(tag=tag, simple_value=value)
    return _record(event.SerializeToString())


def encode_start(wall_time: float) -> bytes:
    """Return the record that every event file begins with."""
    return _record(_message("Event")(wall_time=wall_time, file_version=FILE_VERSION).SerializeToString())


def read_events(data: bytes, where: str) -> EventFile:
    """Read the scalars of an event file.

    Scalars come as a plain number (``simple_value``) or, from newer writers, as a tensor with one element.

    Args:
        where: how to name the file in an error.

    Raises:
        UserError: it is no event file, or a record is damaged.
    """
    scalars: list[ScalarEvent] = []
    others = 0
    records = _Records(data, where)
    for number, record in enumerate(records):
        event = _parse(record, number, where)
        if number == 0 and not event.file_version.startswith("brain.Event:"):
            raise _not_an_event_file(where)
        for item in event.summary.value:
            value = _scalar(item)
            if value is None:
                others += 1
            else:
                scalars.append(ScalarEvent(item.tag, event.step, value, event.wall_time))
    return EventFile(tuple(scalars), others, records.cut_off_bytes)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the data; that of ``b"123456789"`` is 0xE3069283."""
    table = _crc_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


class _Records:
    """The whole records of a file; after they were iterated, ``cut_off_bytes`` says what is left behind the last."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        self.cut_off_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        at, size = 0, len(self._data)
        while at < size:
            if size - at < _HEAD_BYTES:
                break
            head = self._data[at : at + _LENGTH.size]
            self._check(head, at + _LENGTH.size, at)
            start = at + _HEAD_BYTES
            end = start + _LENGTH.unpack(head)[0]
            if end + _CRC.size > size:
                break
            self._check(self._data[start:end], end, at)
            yield self._data[start:end]
            at = end + _CRC.size
        self.cut_off_bytes = size - at

    def _check(self, data: bytes, crc_at: int, record_at: int) -> None:
        if _CRC.unpack_from(self._data, crc_at)[0] == _masked(crc32c(data)):
            return
        if record_at == 0:
            raise _not_an_event_file(self._where)
        raise UserError(
            f"{self._where!r} is damaged: the checksum of the record at byte {record_at} is wrong",
            where=self._where,
            fix="restore the file from a copy, or import another log of the run",
        )


def _record(data: bytes) -> bytes:
    head = _LENGTH.pack(len(data))
    return b"".join((head, _CRC.pack(_masked(crc32c(head))), data, _CRC.pack(_masked(crc32c(data)))))


def _masked(crc: int) -> int:
    """Rotate by 15 bits and add a constant, as TensorFlow does with a CRC that is stored beside its data."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _parse(record: bytes, number: int, where: str) -> Any:
    try:
        return _message("Event").FromString(record)
    except Exception as error:  # google.protobuf.message.DecodeError, which is not imported for its name alone
        raise UserError(f"{where!r} is damaged: record {number} is no event ({error})", where=where) from error


def _scalar(item: Any) -> float | None:
    if item.HasField("simple_value"):
        return float(item.simple_value)
    if not item.HasField("tensor") or item.tensor.dtype not in _DTYPES:
        return None
    field, form = _DTYPES[item.tensor.dtype]
    values = getattr(item.tensor, field)
    if len(values) == 1:
        return float(values[0])
    content = item.tensor.tensor_content
    if len(content) == struct.calcsize(form):
        return float(struct.unpack(form, content)[0])
    return None


def _not_an_event_file(where: str) -> UserError:
    return UserError(
        f"{where!r} is no TensorBoard event file: it does not start with an event of version {FILE_VERSION}",
        where=where,
        fix="name a file whose name starts with events.out.tfevents, or the folder that holds it",
    )


@cache
def _message(name: str) -> Any:
    """Return the class of one of the messages. protobuf is imported where the first one is needed."""
    factory: Any = import_module("google.protobuf.message_factory")
    return factory.GetMessageClass(_pool().FindMessageTypeByName(f"harness.events.{name}"))


@cache
def _pool() -> Any:
    """Return a pool of its own, so that TensorBoard's messages of the same names may live in the same process."""
    descriptors: Any = import_module("google.protobuf.descriptor_pb2")
    pools: Any = import_module("google.protobuf.descriptor_pool")
    file = descriptors.FileDescriptorProto(name="harness/events.proto", package="harness.events", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            field = message.field.add(name=field_name, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                field.type, field.type_name = _MESSAGE, f".harness.events.{kind}"
            else:
                field.type = kind
    pool = pools.DescriptorPool()
    pool.Add(file)
    return pool
