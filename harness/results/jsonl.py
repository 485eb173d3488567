"""Open and parse the files of a run. Any damage is a ``UserError`` that names the file, and in JSONL the line.

A last line without its end is what a killed process leaves: it is dropped.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson

from harness.core.errors import UserError
from harness.results.manifest import check_version
from harness.results.rows import MOST_WHOLE, restore_non_finite

Row = TypeVar("Row")


def read_file(path: Path) -> bytes:
    """Return what a file holds. Only a regular file is read: a pipe or a device may never end.

    Raises:
        FileNotFoundError: there is none.
        UserError: it is no regular file, or cannot be read.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{str(path)!r} is no regular file", str(path), "leave this run out")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for whoever may write into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse_json(data: bytes) -> Any:
    """Parse a JSON text of a run's files.

    Raises:
        ValueError: it is not JSON, nests too deeply for the parser, or holds a whole number of more than 64 bits.
    """
    try:
        return json.loads(data, parse_int=_parse_whole)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _parse_whole(digits: str) -> int:
    number = int(digits)
    if abs(number) > MOST_WHOLE:
        raise ValueError(f"the whole number {digits:.24} has {number.bit_length()} bits and a sign, at most 63 do")
    return number


def read_rows(
    path: Path,
    schema: str,
    makers: Mapping[str | None, Callable[[dict[str, Any]], Row]],
    at_once: Callable[[list[dict[str, Any]]], list[Row] | None] = lambda rows: None,
) -> list[Row]:
    """Read a JSONL file: check its header, then build the rows whose kind has a maker; other kinds are skipped.

    Args:
        makers: a row's kind (None for rows that name none) to what builds it. A maker may raise KeyError, TypeError,
            ValueError, OverflowError or RecursionError on a bad row.
        at_once: builds all rows together where it can, and returns None where each has to be looked at.

    Returns:
        the rows in the order of the file; none if there is no file.

    Raises:
        UserError: the file is damaged (named with its line) or of an unknown schema version.
    """
    head, body = _header_and_body(path)
    if head is None:
        return []
    header = _parse_line(head, path, 1)
    if header.get("kind") != "header" or header.get("schema") != schema:
        raise _damage(path, 1, f"the header of {schema} is missing")
    check_version(schema, header.get("schema_version"), f"{path}, line 1")
    parsed = _parse_lines(body, path)
    if (made := at_once(parsed)) is not None:
        return made
    rows = []
    for number, data in enumerate(parsed, start=2):
        try:
            maker = makers.get(data.get("kind"))
            if maker is not None:
                rows.append(maker(restore_non_finite(data) if "non_finite" in data else data))
        except KeyError as error:
            raise _damage(path, number, f"the row lacks {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise _damage(path, number, str(error)) from error
    return rows


def _header_and_body(path: Path) -> tuple[bytes | None, bytes]:
    """Return the first line and all others, without a last one that has no end; no first line if there is no file."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return None, b""
    head, end, rest = data.partition(b"\n")
    return (head, rest[: rest.rfind(b"\n") + 1]) if end else (None, b"")


def _parse_lines(body: bytes, path: Path) -> list[dict[str, Any]]:
    """Parse all lines: in one go where every one of them is an object, else line by line, to name the one that is not.

    orjson is several times as fast as json but refuses a little more, such as NaN; json then has the word.
    """
    if not body:
        return []
    try:
        listed = memoryview(body.replace(b"\n", b","))[:-1]
        rows: Any = orjson.loads(b"".join((b"[", listed, b"]")))
    except ValueError:
        rows = []
    if len(rows) == body.count(b"\n") and set(map(type, rows)) == {dict}:
        return cast(list[dict[str, Any]], rows)
    return [_parse_line(line, path, number) for number, line in enumerate(body.split(b"\n")[:-1], start=2)]


def _parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = parse_json(line)
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
