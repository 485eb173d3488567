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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import pandas as pd

from harness.core.errors import UserError
from harness.core.regular_files import read_regular

STEP, TIME = "(step)", "(time)"
"""Columns of a record's step and of its seconds since 1970, where the form of the log itself tells them."""
TRAINER_STATE = "trainer_state.json"
FORMS = "JSON lines, a JSON file, TensorBoard's event files, a CSV export, or what the trainer printed"
NOT_WHOLE = "the last line, which is not whole"
_LOG_ENDINGS = (".jsonl", ".json", ".ndjson", ".log", ".out", ".txt")


@dataclass(frozen=True)
class Log:
    """A log as it was read.

    Attributes:
        form: ``jsonl``, ``json``, ``tensorboard``, ``csv`` or ``text``.
        digest: SHA-256 of what was read, in hex.
        left_out: what was left out because it is not whole or no figure, in words.
        has_tags: whether its names are those of files that TensorBoard exported, one for each series.
    """

    frame: pd.DataFrame
    form: str
    digest: str
    left_out: list[str] = field(default_factory=list)
    has_tags: bool = False


def read_log(path: Path, run: str | None = None) -> Log:
    """Read the log at ``path``.

    Args:
        path: a file, or a folder with event files, a ``trainer_state.json``, TRL's checkpoints or exported tables.
        run: which one, where the columns of a table are those of several.

    Raises:
        UserError: there is none, it is empty, of another format or damaged, or it holds several runs.
    """
    logs = [_read(file, run) for file in _files(path)]
    log = logs[0]
    if len(logs) > 1:
        frame = pd.concat([each.frame for each in logs], ignore_index=True)
        if log.form == "csv":  # the series of one run, each in a file of its own
            steps = frame.reindex(columns=["_step", "step"]).apply(pd.to_numeric, errors="coerce")
            frame = frame.loc[steps.bfill(axis=1).iloc[:, 0].fillna(0.0).sort_values(kind="stable").index]
        digest = hashlib.sha256("".join(each.digest for each in logs).encode()).hexdigest()
        left_out = [what for each in logs for what in each.left_out]
        log = Log(frame.reset_index(drop=True), log.form, digest, left_out, any(each.has_tags for each in logs))
    if run is not None and log.form != "csv":
        raise UserError(f"{str(path)!r} names no runs", where="--run", fix="leave it out: it is for exported tables")
    return log


def _files(path: Path) -> list[Path]:
    """Return the files of a log: event files or tables of one run, or the newest checkpoint's whole history."""
    if not os.path.isdir(path):  # Path's raises where a name is too long
        return [path]
    events = sorted(path.rglob("*tfevents*"))
    homes = sorted({str(file.parent) for file in events})
    if len(homes) > 1:
        what = f"{str(path)!r} holds event files in {len(homes)} folders ({', '.join(homes[:3])}...)"
        raise UserError(f"{what}: they may be different runs", str(path), "name the folder of one run")
    states = [*sorted(path.glob(f"checkpoint-*/{TRAINER_STATE}"), key=_checkpoint), *path.glob(TRAINER_STATE)]
    if found := events or states[-1:] or sorted(path.glob("*.csv")):
        return found
    logs = [item.name for item in sorted(path.iterdir()) if item.suffix in _LOG_ENDINGS]
    what = f"there are no event files, no {TRAINER_STATE} and no CSV files in {str(path)!r}"
    raise UserError(what, str(path), f"name a file, such as {logs[0]}" if logs else f"name a file: {FORMS}")


def _checkpoint(state: Path) -> int:
    number = state.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _read(path: Path, run: str | None) -> Log:
    """Read one file: of which form it is, its content shows."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        raise UserError(f"{str(path)!r} does not exist", str(path), "name a log file or folder") from None
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error
    digest = hashlib.sha256(data).hexdigest()
    if "tfevents" in path.name:
        records, left_out = read_events(data, str(path))
        return Log(frame_of(records), "tensorboard", digest, left_out)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as Windows' tools write
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    if not text.strip():
        raise UserError(f"{str(path)!r} is empty", str(path), "name the log of a run that has begun")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, list) or (isinstance(whole, dict) and "log_history" in whole):
        items = whole["log_history"] if isinstance(whole, dict) else whole
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            what = f"{str(path)!r} is no log: it holds no list of JSON objects"
            raise UserError(what, str(path), f"name a {TRAINER_STATE}, a list of objects, or JSON lines")
        return Log(frame_of(items), "json", digest)
    if re.match(r"\s*\{(?!')", text):
        records, left_out = _of_lines(text, path)
        return Log(frame_of(records), "jsonl", digest, left_out)
    if delimiter := _delimiter(text):
        records, left_out, has_tags = _of_table(text, delimiter, path, run)
        return Log(frame_of(records), "csv", digest, left_out, has_tags)
    records, left_out = _of_print(text)
    if not records:
        raise UserError(f"{str(path)!r} is no log: it holds no record", str(path), f"name a log: {FORMS}")
    return Log(frame_of(records), "text", digest, left_out)


def frame_of(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the frame of some records; what verl's file logger has one level down, in ``data``, comes up."""
    rows = []
    for record in records:
        inner = record.get("data")
        flat = {**inner, **{name: record[name] for name in record if name != "data"}} if _is_dict(inner) else record
        names = [name.encode(errors="backslashreplace").decode() for name in flat]
        values = ["nan" if value is None or value != value else value for value in flat.values()]
        rows.append(dict(zip(names, values, strict=True)))
    return pd.DataFrame(rows, dtype=object)


def _is_dict(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _of_lines(text: str, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    records: list[dict[str, Any]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            problem = "" if isinstance(item, dict) else "is not a JSON object"
        except (ValueError, RecursionError) as error:
            if number == len(lines) and records:  # a line without its end is what a killed process leaves
                return records, [f"the last line ({len(line)} characters), which is not whole"]
            problem = f"is not JSON ({error})"
        if problem:
            raise UserError(
                f"{str(path)!r} is no log in JSON lines: line {number} {problem}",
                where=f"{path}, line {number}",
                fix=f"take the line out if a process that was killed left it; else name a log: {FORMS}",
            )
        records.append(item)
    return records, []


# ---- tables, as Weights & Biases, TensorBoard and pandas export them

_AXES = {
    "Step": "_step",
    "Wall time": "_timestamp",
    "Relative Time (Process)": "_runtime",
    "Relative Time (Wall)": "_runtime",
}
"""Columns that stand in every export -> the names under which a log of Weights & Biases has them."""
_OF_CHART = ("__MIN", "__MAX")


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


def _of_table(text: str, delimiter: str, path: Path, run: str | None) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Read a table; empty cells are left out.

    Returns:
        the records, what was left out, and whether it is a series of TensorBoard, with its tag in the file's name.
    """
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
    of_chart = [name for name in head if name.endswith(_OF_CHART) and name[: -len(_OF_CHART[0])] in head]
    if of_chart:
        left_out.append(f"{len(of_chart)} columns __MIN and __MAX, between which a chart's points lie")
    if "" in head:
        left_out.append("a column without a name")
    names = _of_run(["" if name in of_chart else (_AXES | own).get(name, name) for name in head], run, path)
    cells = (zip(names, row, strict=False) for row in rows)
    records = [{name: _cell(cell, delimiter) for name, cell in row if name and cell.strip()} for row in cells]
    return records, left_out, is_series


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
_DICT = re.compile(r"""\{['"]""")
_SCALAR = re.compile(rf"\b(?:np|numpy|torch)?\.?(?:float\w*|int\w*|tensor)\(({_NUMBER})[^()]*\)")
_NOT_FINITE = re.compile(r"(?<=: )(-?(?:nan|inf))\b")


def _of_print(text: str) -> tuple[list[dict[str, Any]], list[str]]:
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
        found = _DICT.search(piece)
        record = _dict(piece[found.start() : piece.rfind("}") + 1]) if found else None
        if record is not None:
            records.append(record)
        torn += record is None and re.search(r"""\{['"]\w+['"]: """, piece) is not None
    return records, [f"{torn} lines with a dict that is not whole"] * bool(torn)


def _step_record(step: str, line: str) -> dict[str, Any]:
    values: dict[str, Any] = {STEP: step}
    for part in map(str.strip, line.split(" - ")):
        name, _, value = part.partition(":")
        figure = _FIGURE.match(part)
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
    return value if _is_dict(value) else None


# ---- TensorBoard's event files

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_DTYPES = {1: ("float_val", "<f"), 2: ("double_val", "<d"), 3: ("int_val", "<i"), 9: ("int64_val", "<q")}
"""TensorFlow's DataType (types.proto) -> the field of its single values, and their form in ``tensor_content``."""


def read_events(data: bytes, where: str) -> tuple[list[dict[str, Any]], list[str]]:
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

    def check(content: bytes, crc_at: int) -> None:
        if _CRC.unpack_from(data, crc_at)[0] == masked_crc32c(content):
            return
        if at == 0:
            raise _not_an_event_file(where)
        what = f"{where!r} is damaged: the checksum of the record at byte {at} is wrong"
        raise UserError(what, where, "restore the file from a copy, or import another log of the run")

    by_step: dict[int, dict[str, Any]] = {}
    at = others = 0
    while (start := at + _LENGTH.size + _CRC.size) <= len(data):
        check(data[at : at + _LENGTH.size], at + _LENGTH.size)
        end = start + _LENGTH.unpack_from(data, at)[0]
        if end + _CRC.size > len(data):
            break
        check(data[start:end], end)
        try:
            event = Event.FromString(data[start:end])
        except Exception as error:  # google.protobuf.message.DecodeError, which is not imported for its name alone
            what = f"{where!r} is damaged: the record at byte {at} is no event ({error})"
            raise UserError(what, where) from error
        if at == 0 and not event.file_version.startswith("brain.Event:"):
            raise _not_an_event_file(where)
        for item in event.summary.value:
            if (value := _scalar(item)) is None:
                others += 1
            else:
                record = by_step.setdefault(event.step, {STEP: event.step})
                record |= {item.tag: value, TIME: event.wall_time}
        at = end + _CRC.size
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


def _not_an_event_file(where: str) -> UserError:
    return UserError(
        f"{where!r} is no TensorBoard event file: it does not start with an event of version brain.Event:2",
        where=where,
        fix="name a file whose name starts with events.out.tfevents, or the folder that holds it",
    )
