"""Open and parse the files of a run. Any damage is a ``UserError`` that names the file, and in JSONL the line.

A last line without its end is what a killed process leaves: it is dropped.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core.errors import UserError
from harness.core.regular_files import MOST_BYTES, read_regular
from harness.results.manifest import check_version
from harness.results.rows import MOST_WHOLE, restore_non_finite

T = TypeVar("T")
Row = TypeVar("Row", bound=msgspec.Struct)


MOST_LINE_BYTES = 2**24
"""Of one row: 1,000 times our longest."""
MOST_FACTS_BYTES = 2**22
"""Of a manifest, a resolved scenario and whatever else is no file of rows."""


def read_file(path: Path, most_bytes: int = MOST_FACTS_BYTES) -> bytes:
    """Return what a file holds.

    Raises:
        FileNotFoundError: there is none.
        UserError: it is no regular file, has more than ``most_bytes``, or cannot be read.
    """
    try:
        return read_regular(path, most_bytes)
    except FileNotFoundError:
        raise
    except OSError as error:
        what = f"cannot read {str(path)!r}: {error.strerror}"
        raise UserError(what, str(path), "restore the file from a copy, or leave this run out") from error


def parse_json(data: bytes) -> Any:
    """Parse a JSON text of a run's files.

    Raises:
        ValueError: it is not JSON, nests too deeply for the parser, or holds a whole number of more than 64 bits.
    """
    try:
        return json.loads(data, parse_int=_parse_whole)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json_of(path: Path, kind: type[T], what: str) -> T:
    """Read a file that holds one value as JSON, NaN and infinity as Python writes them.

    Args:
        path: the file.
        kind: of the value.
        what: it belongs to, for the error.

    Raises:
        UserError: it is missing, or not what it must be.
    """
    try:
        return msgspec.convert(json.loads(path.read_bytes()), kind)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{what} cannot be read: {error}", str(path)) from None


def _parse_whole(digits: str) -> int:
    number = int(digits)
    if abs(number) > MOST_WHOLE:
        raise ValueError(f"the whole number {digits:.24} has {number.bit_length()} bits and a sign, at most 63 do")
    return number


def read_rows(path: Path, schema: str, kinds: tuple[type[Row], ...]) -> list[Row]:
    """Read a JSONL file: check its header, then build the rows of known kinds; others are skipped.

    Args:
        kinds: the classes of rows; each says what a row of its kind holds.

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
    _check_line_lengths(body, path)
    decoder = _decoder(kinds)
    try:  # all lines in one go
        rows: list[Row] = decoder.decode_lines(body)
        if len(rows) == body.count(b"\n"):
            return rows
    except (ValueError, RecursionError):
        pass
    read = (_row(line, kinds, path, number) for number, line in enumerate(body.split(b"\n")[:-1], start=2))
    return [row for row in read if row is not None]


@cache
def _decoder(kinds: tuple[type[Row], ...]) -> Any:
    return msgspec.json.Decoder(reduce(or_, kinds))


def _row(line: bytes, kinds: tuple[type[Row], ...], path: Path, number: int) -> Row | None:
    """Read a row by itself; None if its kind is not known. msgspec refuses NaN, which Python writes and reads."""
    with suppress(ValueError, RecursionError):
        row: Row = _decoder(kinds).decode(line)
        return row
    data = _parse_line(line, path, number)
    try:
        if data.get("kind") == "header":
            raise ValueError("a second header: rows of two runs stand in one file")
        known = {kind.__struct_config__.tag: kind for kind in kinds}.get(data.get("kind"))
        if known is None:
            return None
        return msgspec.convert(restore_non_finite(data), known, str_keys=True)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damage(path, number, str(error)) from error


def _check_line_lengths(body: bytes, path: Path) -> None:
    """Refuse a row so long that nothing of ours can have written it."""
    if len(body) <= MOST_LINE_BYTES:
        return
    begin, number = 0, 2
    while (end := body.find(b"\n", begin)) >= 0:
        if end - begin > MOST_LINE_BYTES:
            raise _damage(path, number, f"a line of {end - begin:,} bytes, at most {MOST_LINE_BYTES:,} are read")
        begin, number = end + 1, number + 1


def _header_and_body(path: Path) -> tuple[bytes | None, bytes]:
    """Return the first line and all others, without a last one that has no end; no first line if there is no file."""
    try:
        data = read_file(path, MOST_BYTES)
    except FileNotFoundError:
        return None, b""
    head, end, rest = data.partition(b"\n")
    return (head, rest[: rest.rfind(b"\n") + 1]) if end else (None, b"")


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
