"""TensorBoard event files, written without TensorBoard.

An event file is a row of records (TensorFlow's TFRecord framing, ``tensorflow/core/lib/io/record_writer.h``): the
length of the data as uint64, the masked CRC-32C of that length as uint32, the data, and its masked CRC-32C as uint32,
all little-endian. The data is a protocol buffer message ``Event`` (``tensorflow/core/util/event.proto``). The messages
are declared here with the fields that scalars need; a reader of protocol buffers skips the others. Files of
other trainers are read in ``harness.results.importers.logs``.

tensorboardX is not used for this: importing it takes 1.4 s because it brings torch with it, it writes through a thread,
and puts the host's name into the file's name.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

FILE_VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed (RFC 3720, appendix B.4)
LENGTH, CRC = struct.Struct("<Q"), struct.Struct("<I")
HEAD_BYTES = LENGTH.size + CRC.size
_START = 1  # of SessionLog.SessionStatus
_DOUBLE, _FLOAT, _INT64, _INT32, _STRING, _BYTES, _MESSAGE = 1, 2, 3, 5, 9, 12, 11  # FieldDescriptorProto.Type
# name -> fields: name, number, type (a string: the message of that name), whether it is repeated
_MESSAGES: dict[str, tuple[tuple[str, int, int | str, bool], ...]] = {
    "Event": (
        ("wall_time", 1, _DOUBLE, False),
        ("step", 2, _INT64, False),
        ("file_version", 3, _STRING, False),
        ("summary", 5, "Summary", False),
        ("session_log", 7, "SessionLog", False),
    ),
    "SessionLog": (("status", 1, _INT32, False),),
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


def encode_scalars(values: Mapping[str, float], step: int, wall_time: float) -> bytes:
    """Return one record with all values at one step. Values are rounded to float32; NaN and infinities stay."""
    event = message("Event")(wall_time=wall_time, step=step)
    for tag, value in values.items():
        event.summary.value.add(tag=tag, simple_value=value)
    return _record(event.SerializeToString())


def encode_start(wall_time: float) -> bytes:
    """Return the record that every event file begins with."""
    return _record(message("Event")(wall_time=wall_time, file_version=FILE_VERSION).SerializeToString())


def encode_restart(step: int, wall_time: float) -> bytes:
    """Return the record of a run that goes on: TensorBoard forgets what came before it of this step and later ones.

    It is what ``purge_step`` of torch's ``SummaryWriter`` writes (``SessionLog.START``).
    """
    event = message("Event")(wall_time=wall_time, step=step)
    event.session_log.status = _START
    return _record(event.SerializeToString())


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the data; that of ``b"123456789"`` is 0xE3069283."""
    table = _crc_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _record(data: bytes) -> bytes:
    head = LENGTH.pack(len(data))
    return b"".join((head, CRC.pack(masked(crc32c(head))), data, CRC.pack(masked(crc32c(data)))))


def masked(crc: int) -> int:
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


@cache
def message(name: str) -> Any:
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
