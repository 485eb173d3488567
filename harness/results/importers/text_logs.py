"""Records out of text: tables as Weights & Biases, TensorBoard and pandas export them, and what trainers print."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log.

    Attributes:
        values: by name, as they stand in the log.
        step: where the format itself tells it; None where it is one of the values.
        at: seconds since 1970, where the format tells them.
    """

    values: dict[str, Any]
    step: int | None = None
    at: float | None = None


_AXES = {
    "Step": "_step",
    "Wall time": "_timestamp",
    "Relative Time (Process)": "_runtime",
    "Relative Time (Wall)": "_runtime",
}
"""Columns that stand in every export -> the names under which a log of Weights & Biases has them."""
_SERIES = {"Wall time", "Step", "Value"}
_OF_CHART = ("__MIN", "__MAX")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan\b|inf\b)"
_STEP_LINE = re.compile(r"(?<![\w/])step:(\d+) - (.*)")
_FIGURE = re.compile(rf"(.+?):\s*(?:[\w.]+\()?({_NUMBER})")
_DICT = re.compile(r"""\{['"]""")
_SCALAR = re.compile(rf"\b(?:np|numpy|torch)?\.?(?:float\w*|int\w*|tensor)\(({_NUMBER})[^()]*\)")
_NOT_FINITE = re.compile(r"(?<=: )(-?(?:nan|inf))\b")


def delimiter_of(text: str) -> str | None:
    """Return what parts the cells of a table with a head; None where the text is none."""
    lines = [line for line in text[:100_000].splitlines() if line.strip()][:2]
    for delimiter in (",", ";", "\t"):
        rows = list(csv.reader(lines, delimiter=delimiter))
        if len(rows) == 2 and "{" not in lines[0] and 1 < len(rows[0]) == len(rows[1]):
            of_head, of_row = ([isinstance(_cell(cell, delimiter), float) for cell in row] for row in rows)
            if not any(of_head) and any(of_row):
                return delimiter
    return None


def read_table(text: str, delimiter: str, path: Path, run: str | None) -> tuple[list[Record], list[str], bool]:
    """Read a table, one record a row; empty cells are left out.

    Args:
        run: which one, where the columns are those of several (``RUN - NAME``, as charts are exported).

    Returns:
        the records, what was left out in words, and whether the table is one series that TensorBoard exported, which
        has its tag in the name of the file.

    Raises:
        UserError: the columns are of several runs and ``run`` is none of them, or a cell is too long.
    """
    try:
        head, *rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except csv.Error as error:
        raise UserError(f"{str(path)!r} is no table: {error}", where=str(path), fix="export it again") from None
    left_out = []
    if rows and len(rows[-1]) < len(head):
        rows.pop()
        left_out.append("the last line, which is not whole")
    if set(head) == _SERIES:
        tag = re.sub(r"^.*[-_]tag[-_]", "", path.stem)
        own = {"Value": tag, "Step": "step"}
        names: Sequence[str] = [own.get(name) or _AXES[name] for name in head]
        return _records(_of_run(names, run, path), rows, delimiter), left_out, True
    of_chart = [name for name in head if name.endswith(_OF_CHART) and name[: -len(_OF_CHART[0])] in head]
    if of_chart:
        left_out.append(f"{len(of_chart)} columns __MIN and __MAX, between which a chart's points lie")
    if "" in head:
        left_out.append("a column without a name")
    names = ["" if name in of_chart else _AXES.get(name, name) for name in head]
    return _records(_of_run(names, run, path), rows, delimiter), left_out, False


def _of_run(names: Sequence[str], run: str | None, path: Path) -> Sequence[str]:
    """Return the names of one run's columns without the run's name, and the axes; empty for all others."""
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
    wanted = run or runs[0]
    return [name if not dash else last if before == wanted else "" for before, dash, last in parts for name in [last]]


def _records(names: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str) -> list[Record]:
    found = []
    for row in rows:
        cells = {name: _cell(cell, delimiter) for name, cell in zip(names, row, strict=False) if name and cell.strip()}
        found.append(Record(cells))
    return found


def _cell(text: str, delimiter: str) -> float | str:
    """Return a number, with a decimal comma where commas part no cells, or the text."""
    try:
        return float(text.replace(",", ".") if delimiter != "," else text)
    except ValueError:
        return text


def read_printed(text: str) -> tuple[list[Record], list[str]]:
    """Read what a trainer printed: verl's ``step:1 - name:value - ...``, else TRL's Python dicts or JSON objects.

    Colours, prefixes that Ray puts before a line, and progress bars are passed over.

    Returns:
        the records, and what was left out in words.
    """
    whole = text.endswith(("\n", "\r"))
    pieces = [_CONTROL.sub("", piece) for piece in re.split(r"[\r\n]+", text) if piece.strip()]
    steps = [(place, line) for place, piece in enumerate(pieces) if (line := _STEP_LINE.search(piece))]
    if steps:
        left_out = []
        if not whole and steps[-1][0] == len(pieces) - 1:
            steps.pop()
            left_out.append("the last line, which is not whole")
        return [_step_record(int(line[1]), line[2]) for _, line in steps], left_out
    records, torn = [], 0
    for piece in pieces:
        found = _DICT.search(piece)
        record = _dict(piece[found.start() : piece.rfind("}") + 1]) if found else None
        if record is not None:
            records.append(Record(record))
        torn += record is None and re.search(r"""\{['"]\w+['"]: """, piece) is not None
    return records, [f"{torn} lines with a dict that is not whole"] * bool(torn)


def _step_record(step: int, line: str) -> Record:
    values: dict[str, Any] = {}
    for field in line.split(" - "):
        if figure := _FIGURE.match(field.strip()):
            values[figure[1]] = float(figure[2])
        else:
            name, _, value = field.strip().partition(":")
            values[name] = value
    return Record(values, step)


def _dict(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings(action="ignore"):  # of Python, about what is no Python
                value = ast.literal_eval(_NOT_FINITE.sub(r"'\1'", _SCALAR.sub(r"\1", text)))
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return None
    return value if isinstance(value, dict) and all(isinstance(name, str) for name in value) else None
