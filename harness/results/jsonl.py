"""Read the JSONL files of a run, naming file and line of any damage.

A last line without its end is what a killed process leaves: it is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson

from harness.errors import UserError
from harness.results.manifest import check_version
from harness.results.rows import restore_non_finite

Row = TypeVar("Row")


def read_rows(
    path: Path,
    schema: str,
    makers: Mapping[str | None, Callable[[dict[str, Any]], Row]],
    at_once: Callable[[list[dict[str, Any]]], list[Row] | None] = lambda rows: None,
) -> list[Row]:
    """Read a JSONL file: check its header, then build the rows whose kind has a maker; other kinds are skipped.

    Args:
        makers: a row's kind (None for rows that name none) to what builds it. A maker may raise KeyError, TypeError or
            ValueError on a bad row.
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
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damage(path, number, str(error)) from error
    return rows


def _header_and_body(path: Path) -> tuple[bytes | None, bytes]:
    """Return the first line and all others, without a last one that has no end; no first line if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, b""
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}", where=str(path)) from error
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
