"""Read the metric logs of other trainers: JSON, TensorBoard's event files, exported tables, what was printed.

What is read here is a list of records as they stand in the log; what their names mean is told elsewhere.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.errors import UserError
from harness.core.regular_files import read_regular
from harness.results.importers.text_logs import Record, delimiter_of, read_printed, read_table

LENGTH, CRC, FILE_VERSION = struct.Struct("<Q"), struct.Struct("<I"), "brain.Event:2"
HEAD_BYTES = LENGTH.size + CRC.size

TRAINER_STATE = "trainer_state.json"
FORMS = "JSON lines, a JSON file, TensorBoard's event files, a CSV export, or what the trainer printed"
_LOG_ENDINGS = (".jsonl", ".json", ".ndjson", ".log", ".out", ".txt")
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


@dataclass(frozen=True)
class Log:
    """A log as it was read.

    Attributes:
        form: ``jsonl``, ``json``, ``tensorboard``, ``csv`` or ``text``.
        digest: SHA-256 of what was read, in hex.
        left_out: what was left out because it is not whole or no figure, in words.
        others: values of TensorBoard that are no scalars.
        has_tags: whether its names are those of files that TensorBoard exported, one for each series.
    """

    records: list[Record]
    form: str
    digest: str
    left_out: list[str] = field(default_factory=list)
    others: int = 0
    has_tags: bool = False


def read_log(path: Path, run: str | None = None) -> Log:
    """Read the log at ``path``.

    Args:
        path: a file, or a folder with event files, a ``trainer_state.json``, TRL's checkpoints or exported tables.
        run: which one, where the columns of a table are those of several.

    Raises:
        UserError: there is none, it is empty, of another format or damaged, or it holds several runs.
    """
    if os.path.isdir(path):  # Path's raises where a name is too long
        log = _read_folder(path, run)
    elif "tfevents" in path.name:
        log = _read_event_files([path])
    else:
        log = _read_text(path, run)
    if run is not None and log.form != "csv":
        raise UserError(f"{str(path)!r} names no runs", where="--run", fix="leave it out: it is for exported tables")
    return log


def _read_folder(folder: Path, run: str | None) -> Log:
    files = sorted(folder.rglob("*tfevents*"))
    homes = sorted({file.parent for file in files})
    if len(homes) > 1:
        shown = ", ".join(str(home) for home in homes[:3])
        raise UserError(
            f"{str(folder)!r} holds event files in {len(homes)} folders ({shown}...): they may be different runs",
            where=str(folder),
            fix="name the folder of one run",
        )
    if files:
        return _read_event_files(files)
    states = [*folder.glob(TRAINER_STATE), *sorted(folder.glob(f"checkpoint-*/{TRAINER_STATE}"), key=_checkpoint)]
    if states:
        return _read_text(states[-1], run)
    if tables := sorted(folder.glob("*.csv")):
        return _join([_read_text(table, run) for table in tables])
    found = [item.name for item in sorted(folder.iterdir()) if item.suffix in _LOG_ENDINGS]
    raise UserError(
        f"there are no event files, no {TRAINER_STATE} and no CSV files in {str(folder)!r}",
        where=str(folder),
        fix=f"name a file, such as {found[0]}" if found else f"name a file: {FORMS}",
    )


def _join(tables: list[Log]) -> Log:
    """Return the tables of a run as one log, its records in the order of their steps."""
    records = sorted((record for table in tables for record in table.records), key=_step)
    digest = hashlib.sha256("".join(table.digest for table in tables).encode())
    left_out = [what for table in tables for what in table.left_out]
    return Log(records, "csv", digest.hexdigest(), left_out, has_tags=any(table.has_tags for table in tables))


def _step(record: Record) -> float:
    step = record.values.get("_step", record.values.get("step", 0.0))
    return step if isinstance(step, float) else 0.0


def _checkpoint(state: Path) -> int:
    """Return the number of a checkpoint; the newest has the whole history."""
    number = state.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _read_event_files(files: Iterable[Path]) -> Log:
    """Read event files into one record for each step of each file; a later file comes later."""
    records: list[Record] = []
    left_out: list[str] = []
    digest, others = hashlib.sha256(), 0
    for file in files:
        data = _bytes(file)
        digest.update(data)
        events = read_events(data, str(file))
        others += events.others
        if events.cut_off_bytes:
            left_out.append(f"{events.cut_off_bytes} bytes of a record that is not whole, at the end of an event file")
        by_step: dict[int, Record] = {}
        for scalar in events.scalars:
            record = by_step.get(scalar.step) or Record({}, scalar.step, scalar.wall_time)
            by_step[scalar.step] = Record(record.values, scalar.step, scalar.wall_time)
            record.values[scalar.tag] = scalar.value
        records += by_step.values()
    return Log(records, "tensorboard", digest.hexdigest(), left_out, others)


def _read_text(path: Path, run: str | None) -> Log:
    data = _bytes(path)
    digest, text = hashlib.sha256(data).hexdigest(), _decoded(data)
    if not text.strip():
        raise UserError(f"{str(path)!r} is empty", where=str(path), fix="name the log of a run that has begun")
    whole = _whole_json(text)
    if whole is not None:
        return Log(_as_records(whole, path), "json", digest)
    if re.match(r"\s*\{(?!')", text):
        return _read_lines(text, path, digest)
    if delimiter := delimiter_of(text):
        table, left_out, has_tags = read_table(text, delimiter, path, run)
        return Log(table, "csv", digest, left_out, has_tags=has_tags)
    records, left_out = read_printed(text)
    if not records:
        raise UserError(f"{str(path)!r} is no log: it holds no record", where=str(path), fix=f"name a log: {FORMS}")
    return Log(records, "text", digest, left_out)


def _decoded(data: bytes) -> str:
    """Return the text; with a mark at its start, as Windows' tools put there, it may be in UTF-16."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _whole_json(text: str) -> Any:
    """Return the value if the text is one JSON text with several records, else None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) or (isinstance(value, dict) and "log_history" in value) else None


def _as_records(value: Any, path: Path) -> list[Record]:
    items = value["log_history"] if isinstance(value, dict) else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UserError(
            f"{str(path)!r} is no log: it holds no list of JSON objects",
            where=str(path),
            fix=f"name a {TRAINER_STATE}, a list of objects, or JSON lines",
        )
    return [Record(item) for item in items]


def _read_lines(text: str, path: Path, digest: str) -> Log:
    records: list[Record] = []
    left_out: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and records:  # a line without its end is what a killed process leaves
                left_out.append(f"the last line ({len(line)} characters), which is not whole")
                break
            raise _not_json_lines(path, number, f"is not JSON ({error})") from error
        if not isinstance(item, dict):
            raise _not_json_lines(path, number, "is not a JSON object")
        records.append(Record(item))
    return Log(records, "jsonl", digest, left_out)


def _not_json_lines(path: Path, number: int, problem: str) -> UserError:
    return UserError(
        f"{str(path)!r} is no log in JSON lines: line {number} {problem}",
        where=f"{path}, line {number}",
        fix=f"take the line out if a process that was killed left it; else name a log: {FORMS}",
    )


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} does not exist", where=str(path), fix="name a log file or folder") from None
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error


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


class _Records:
    """The whole records of a file; after they were iterated, ``cut_off_bytes`` says what is left behind the last."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where = data, where
        self.cut_off_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        at, size = 0, len(self._data)
        while at < size:
            if size - at < HEAD_BYTES:
                break
            head = self._data[at : at + LENGTH.size]
            self._check(head, at + LENGTH.size, at)
            start = at + HEAD_BYTES
            end = start + LENGTH.unpack(head)[0]
            if end + CRC.size > size:
                break
            self._check(self._data[start:end], end, at)
            yield self._data[start:end]
            at = end + CRC.size
        self.cut_off_bytes = size - at

    def _check(self, data: bytes, crc_at: int, record_at: int) -> None:
        from tensorboardX.record_writer import masked_crc32c

        if CRC.unpack_from(self._data, crc_at)[0] == masked_crc32c(data):
            return
        if record_at == 0:
            raise _not_an_event_file(self._where)
        raise UserError(
            f"{self._where!r} is damaged: the checksum of the record at byte {record_at} is wrong",
            where=self._where,
            fix="restore the file from a copy, or import another log of the run",
        )


def _parse(record: bytes, number: int, where: str) -> Any:
    from tensorboardX.proto.event_pb2 import Event  # which loads torch where it is installed

    try:
        return Event.FromString(record)
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
