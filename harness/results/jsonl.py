"""Read the JSONL files of a run, naming file and line of any damage.

A last line without its end is what a killed process leaves: it is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UserError
from harness.results.manifest import check_version
from harness.results.rows import restore_non_finite

Row = TypeVar("Row")


def read_rows(path: Path, schema: str, makers: Mapping[str | None, Callable[[dict[str, Any]], Row]]) -> list[Row]:
    """Read a JSONL file: check its header, then build the rows whose kind has a maker; other kinds are skipped.

    Args:
        makers: a row's kind (None for rows that name none) to what builds it. A maker may raise KeyError, TypeError or
            ValueError on a bad row.

    Returns:
        the rows in the order of the file; none if there is no file.

    Raises:
        UserError: the file is damaged (named with its line) or of an unknown schema version.
    """
    lines = _whole_lines(path)
    if not lines:
        return []
    header = _parse_line(lines[0], path, 1)
    if header.get("kind") != "header" or header.get("schema") != schema:
        raise _damage(path, 1, f"the header of {schema} is missing")
    check_version(schema, header.get("schema_version"), f"{path}, line 1")
    rows = []
    for number, data in enumerate(_parse_lines(lines[1:], path), start=2):
        maker = makers.get(data.get("kind"))
        if maker is not None:
            rows.append(_make(maker, data, path, number))
    return rows


def _make(maker: Callable[[dict[str, Any]], Row], data: dict[str, Any], path: Path, number: int) -> Row:
    try:
        return maker(restore_non_finite(data) if "non_finite" in data else data)
    except KeyError as error:
        raise _damage(path, number, f"the row lacks {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damage(path, number, str(error)) from error


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines of the file, without a last one that has no end; none if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error
    return data.split(b"\n")[:-1]


def _parse_lines(lines: list[bytes], path: Path) -> Iterable[dict[str, Any]]:
    """Parse all lines, in one go where every one of them is an object."""
    try:
        rows: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        rows = []
    if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
        return rows
    return [_parse_line(line, path, number) for number, line in enumerate(lines, start=2)]


def _parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _damage(path, number, f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise _damage(path, number, f"not a JSON object but {row!r:.60}")
    return row


def _damage(path: Path, number: int, problem: str) -> UserError:
    return UserError(
        f"{str(path)!r} is damaged at line {number}: {problem}",
        where=f"{path}, line {number}",
        fix="restore the file from a copy, or leave this run out",
    )
