"""Read the metric logs of other trainers: each form of log becomes one frame.

A row of the frame is a record of the log, a column a name. A cell is NaN where the record does not have the name; what
the log has as NaN or null is the text ``nan``, so that the two differ. What the names mean is told elsewhere.
"""

from __future__ import annotations

import ast
import codecs
import csv
import hashlib
import io
import json
import os
import re
import struct
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from harness.core.errors import UserError
from harness.core.regular_files import read_regular

STEP, TIME = "(step)", "(time)"
"""Columns of a record's step and of its seconds since 1970, where the form of the log itself tells them."""
TRAINER_STATE = "trainer_state.json"
FORMS = "JSON lines, a JSON file, TensorBoard's event files, a CSV export, or what the trainer printed"
NOT_WHOLE = "the last line, which is not whole"
Record = dict[str, Any]
_LOG_ENDINGS = (".jsonl", ".json", ".ndjson", ".log", ".out", ".txt")


@dataclass(frozen=True)
class Log:
    """A log as it was read.

    Attributes:
        form: ``jsonl``, ``json``, ``tensorboard``, ``csv`` or ``text``.
        digest: SHA-256 of what was read, in hex.
        left_out: what was left out because it is not whole or no figure, in words.
    """

    frame: pd.DataFrame
    form: str
    digest: str
    left_out: list[str] = field(default_factory=list)


def read_log(path: Path, run: str | None = None) -> Log:
    """Read the log at ``path``.

    Args:
        path: a file, or a folder with event files, a ``trainer_state.json``, TRL's checkpoints or exported tables.
        run: which one, where the columns of a table are those of several.

    Raises:
        UserError: there is none, it is empty, of another format or damaged, or it holds several runs.
    """
    digest, form = hashlib.sha256(), ""
    records: list[Record] = []
    left_out: list[str] = []
    for file in _files(path):
        data = _content(file)
        digest.update(data)
        form, more, what = _parse(data, file, run)
        records += more
        left_out += what
    if not any(records):
        raise UserError(f"{str(path)!r} is no log: it holds no record", str(path), f"name a log: {FORMS}")
    if run is not None and form != "csv":
        raise UserError(f"{str(path)!r} names no runs", where="--run", fix="leave it out: it is for exported tables")
    return Log(frame_of(records), form, digest.hexdigest(), [*dict.fromkeys(left_out)])


def _files(path: Path) -> list[Path]:
    """Return the files of a log: event files or tables of one run, or the newest checkpoint's whole history."""
    if not os.path.isdir(path):  # Path's raises where a name is too long
        return [path]
    events = sorted(path.rglob("*tfevents*"))
    homes = sorted({str(file.parent) for file in events})
    if len(homes) > 1:
        what = f"{str(path)!r} holds event files in {len(homes)} folders ({', '.join(homes[:3])}...)"
        raise UserError(f"{what}: they may be different runs", str(path), "name the folder of one run")
    states = sorted(path.glob(f"checkpoint-*/{TRAINER_STATE}"), key=lambda state: (len(str(state)), state))
    states += path.glob(TRAINER_STATE)
    if found := events or states[-1:] or sorted(path.glob("*.csv")):
        return found
    logs = [item.name for item in sorted(path.iterdir()) if item.suffix in _LOG_ENDINGS]
    what = f"there are no event files, no {TRAINER_STATE} and no CSV files in {str(path)!r}"
    raise UserError(what, str(path), f"name a file, such as {logs[0]}" if logs else f"name a file: {FORMS}")


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} does not exist", str(path), "name a log file or folder") from None
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error


def _parse(data: bytes, path: Path, run: str | None) -> tuple[str, list[Record], list[str]]:
    """Return the form of a file, which its content shows, its records, and what was left out."""
    if "tfevents" in path.name:
        return "tensorboard", *read_events(data, str(path))
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as Windows' tools write
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    if not text.strip():
        raise UserError(f"{str(path)!r} is empty", str(path), "name the log of a run that has begun")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    items = whole.get("log_history") if isinstance(whole, dict) else whole
    if isinstance(items, list) and not all(isinstance(item, dict) for item in items):
        what = f"{str(path)!r} is no log: it holds no list of JSON objects"
        raise UserError(what, str(path), f"name a {TRAINER_STATE}, a list of objects, or JSON lines")
    if isinstance(items, list):
        return "json", items, []
    if re.match(r"\s*\{(?!')", text):
        return "jsonl", *_of_lines(text, path)
    if delimiter := _delimiter(text):
        return "csv", *_of_table(text, delimiter, path, run)
    return "text", *_of_print(text)


def frame_of(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the frame of some records; what verl's file logger has one level down, in ``data``, comes up."""
    rows = []
    for record in records:
        inner = record.get("data")
        flat = inner | {name: record[name] for name in record if name != "data"} if isinstance(inner, dict) else record
        names = [str(name).encode(errors="backslashreplace").decode() for name in flat]
        values = ["nan" if value is None or value != value else value for value in flat.values()]
        rows.append(dict(zip(names, values, strict=True)))
    return pd.DataFrame(rows, dtype=object)


def _of_lines(text: str, path: Path) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item, problem = json.loads(line), "is not a JSON object"
        except (ValueError, RecursionError) as error:
            if number == len(lines) and records:  # a line without its end is what a killed process leaves
                return records, [NOT_WHOLE]
            item, problem = None, f"is not JSON ({error})"
        if not isinstance(item, dict):
            what = f"{str(path)!r} is no log in JSON lines: line {number} {problem}"
            fix = "take the line out if a killed process left it" if records else "restore it if it was cut off"
            raise UserError(what, f"{path}, line {number}", f"{fix}; else name a log: {FORMS}")
        records.append(item)
    return records, []


# ---- tables, as Weights & Biases, TensorBoard and pandas export them

_AXES = {"Step": "_step", "Wall time": "_timestamp"}
_AXES |= dict.fromkeys(("Relative Time (Process)", "Relative Time (Wall)"), "_runtime")
"""Columns that stand in every export -> the names under which a log of Weights & Biases has them."""


def _delimiter(text: str) -> str | None:
    """Return what parts the cells of a table with a head; None where the text is none."""
    lines = [line for line in text[:100_000].splitlines() if line.strip()][:2]
    for delimiter in (",", ";", "\t"):
        rows = list(csv.reader(lines, delimiter=delimiter))
        if len(rows) == 2 and "{" not in lines[0] and 1 < len(rows[0]) == len(rows[1]):
            of_head, of_row = ([isinstance(_cell(cell, delimiter), float) for cell in row] for row in rows)
            if not any(of_head) and any(of_row):
                return delimiter
    return None


def _of_table(text: str, delimiter: str, path: Path, run: str | None) -> tuple[list[Record], list[str]]:
    """Read a table; empty cells are left out. A series of TensorBoard has its tag in the file's name."""
    try:
        head, *rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except csv.Error as error:
        raise UserError(f"{str(path)!r} is no table: {error}", str(path), "export it again") from None
    left_out = []
    if rows and len(rows[-1]) < len(head):
        rows.pop()
        left_out.append(NOT_WHOLE)
    is_series = set(head) == {"Wall time", "Step", "Value"}
    own = {"Value": re.sub(r"^.*[-_]tag[-_]", "", path.stem), "Step": "step"} if is_series else {}
    of_chart = [name for name in head if name.endswith(("__MIN", "__MAX")) and name[:-5] in head]
    if of_chart:
        left_out.append(f"{len(of_chart)} columns __MIN and __MAX, between which a chart's points lie")
    if "" in head:
        left_out.append("a column without a name")
    names = _of_run(["" if name in of_chart else (_AXES | own).get(name, name) for name in head], run, path)
    cells = (zip(names, row, strict=False) for row in rows)
    return [{name: _cell(cell, delimiter) for name, cell in row if name and cell.strip()} for row in cells], left_out


def _of_run(names: Sequence[str], run: str | None, path: Path) -> Sequence[str]:
    """Return the names of one run's columns (``RUN - NAME``) without the run's name, and the axes; else empty."""
    parts = [name.rpartition(" - ") for name in names]
    runs = list(dict.fromkeys(before for before, dash, _ in parts if dash))
    axes = {names[0], *_AXES.values()}  # a chart may be drawn over any name, such as train/global_step
    if any(name and not dash and name not in axes for name, (_, dash, _) in zip(names, parts, strict=True)):
        runs = []  # no chart's: only its axis has a name of its own there
    if run is not None and run not in runs:
        fix = f"one of {', '.join(runs)}" if runs else "leave it out: the columns name no runs"
        raise UserError(f"{str(path)!r} has no run {run!r}", where="--run", fix=fix)
    if len(runs) > 1 and run is None:
        what = f"{str(path)!r} has the columns of {len(runs)} runs: {', '.join(runs[:5])}"
        raise UserError(what, where=str(path), fix=f"name one, such as --run {runs[0]!r}")
    if not runs:
        return names
    return [last if not dash or before == (run or runs[0]) else "" for before, dash, last in parts]


def _cell(text: str, delimiter: str) -> float | str:
    """Return a number, with a decimal comma where commas part no cells, or the text."""
    try:
        return float(text.replace(",", ".") if delimiter != "," else text)
    except ValueError:
        return text


# ---- what trainers print

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan\b|inf\b)"
_STEP_LINE = re.compile(r"(?<![\w/])step:(\d+) - (.*)")
_FIGURE = re.compile(rf"(.+?):\s*(?:[\w.]+\()?({_NUMBER})")
_SCALAR = re.compile(rf"\b(?:np|numpy|torch)?\.?(?:float\w*|int\w*|tensor)\(({_NUMBER})[^()]*\)")
_NOT_FINITE = re.compile(r"(?<=: )(-?(?:nan|inf))\b")


def _of_print(text: str) -> tuple[list[Record], list[str]]:
    """Read what a trainer printed: verl's ``step:1 - name:value - ...``, else TRL's Python dicts or JSON objects.

    Colours, prefixes that Ray puts before a line, and progress bars are passed over.
    """
    pieces = [_CONTROL.sub("", piece) for piece in re.split(r"[\r\n]+", text) if piece.strip()]
    steps = [(place, line) for place, piece in enumerate(pieces) if (line := _STEP_LINE.search(piece))]
    if steps:
        is_cut = not text.endswith(("\n", "\r")) and steps[-1][0] == len(pieces) - 1
        lines = [line for _, line in steps][: -1 if is_cut else None]
        return [_step_record(line[1], line[2]) for line in lines], [NOT_WHOLE] * is_cut
    records, torn = [], 0
    for piece in pieces:
        start = re.search(r"""\{['"]""", piece)
        if start and (record := _dict(piece[start.start() : piece.rfind("}") + 1])) is not None:
            records.append(record)
        else:
            torn += re.search(r"""\{['"]\w+['"]: """, piece) is not None
    return records, [f"{torn} lines with a dict that is not whole"] * bool(torn)


def _step_record(step: str, line: str) -> dict[str, Any]:
    values = {STEP: step}
    for part in map(str.strip, line.split(" - ")):
        figure = _FIGURE.match(part)
        name, _, value = part.partition(":")
        values |= {figure[1]: figure[2]} if figure else {name: value}
    return values


def _dict(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings(action="ignore"):  # of Python, about what is no Python
                value = ast.literal_eval(_NOT_FINITE.sub(r"'\1'", _SCALAR.sub(r"\1", text)))
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return None
    return value if isinstance(value, dict) else None


# ---- TensorBoard's event files

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_DTYPES = {1: ("float_val", "<f"), 2: ("double_val", "<d"), 3: ("int_val", "<i"), 9: ("int64_val", "<q")}
"""TensorFlow's DataType (types.proto) -> the field of its single values, and their form in ``tensor_content``."""


def read_events(data: bytes, where: str) -> tuple[list[Record], list[str]]:
    """Read the scalars of an event file: records as TFRecord frames them, each a message ``Event`` (event.proto).

    A record is its length (uint64), the masked CRC-32C of that, the data, and theirs (record_writer.h). Scalars come as
    a plain number (``simple_value``) or, from newer writers, as a tensor with one element.

    Args:
        where: how to name the file in an error.

    Returns:
        a record for each step, and what was left out in words: values that are no scalars, and a last record that is
        not whole, as a killed writer leaves it.

    Raises:
        UserError: it is no event file, a record is damaged, or tensorboardX is not installed.
    """
    try:
        from tensorboardX.proto.event_pb2 import Event  # which takes seconds, since it brings torch
        from tensorboardX.record_writer import masked_crc32c
    except ImportError:
        raise UserError(f"{where!r} is read with tensorboardX", where, "install it: pip install tensorboardX") from None

    def damaged(why: str) -> UserError:
        if at == 0:
            what = f"{where!r} is no TensorBoard event file: it does not start with an event of version brain.Event:2"
            return UserError(what, where, "name a file that is called events.out.tfevents..., or the folder of it")
        what = f"{where!r} is damaged: the record at byte {at} {why}"
        return UserError(what, where, "restore the file from a copy, or import another log of the run")

    def part(start: int, size: int) -> bytes | None:
        """Return a part of a record; None where the file ends before the part's checksum does."""
        end = start + size
        if end + _CRC.size > len(data):
            return None
        if _CRC.unpack_from(data, end)[0] != masked_crc32c(data[start:end]):
            raise damaged("has a wrong checksum")
        return data[start:end]

    by_step: dict[int, Record] = {}
    at = others = 0
    while size := part(at, _LENGTH.size):
        start = at + _LENGTH.size + _CRC.size
        content = part(start, *_LENGTH.unpack(size))
        if content is None:
            break
        try:
            event = Event.FromString(content)
        except Exception as error:  # google.protobuf.message.DecodeError, which is not imported for its name alone
            raise damaged(f"is no event ({error})") from error
        if at == 0 and not event.file_version.startswith("brain.Event:"):
            raise damaged("is no first event")
        for item in event.summary.value:
            if (value := _scalar(item)) is None:
                others += 1
                continue
            record = by_step.setdefault(event.step, {STEP: event.step})
            record |= {item.tag: value, TIME: event.wall_time}
        at = start + len(content) + _CRC.size
    cut = len(data) - at
    left_out = [f"{cut} bytes of a record that is not whole, at the end of an event file"] * bool(cut)
    return list(by_step.values()), left_out + [f"{others} values of TensorBoard that are no scalars"] * bool(others)


def _scalar(item: Any) -> float | None:
    if item.HasField("simple_value"):
        return float(item.simple_value)
    if not item.HasField("tensor") or item.tensor.dtype not in _DTYPES:
        return None
    name, form = _DTYPES[item.tensor.dtype]
    values, content = getattr(item.tensor, name), item.tensor.tensor_content
    if len(values) == 1:
        return float(values[0])
    return float(struct.unpack(form, content)[0]) if len(content) == struct.calcsize(form) else None
