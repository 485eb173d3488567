"""Read the files of a run's folder, of which any may be damaged, cut short or somebody else's.

Whatever is wrong with one is a ``UserError`` that names the file, and in JSONL the line. A last line without its end is
what a killed process leaves: it is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from harness.core.errors import UserError
from harness.core.regular_files import MOST_BYTES, read_regular
from harness.results.rows import SCHEMA_VERSION, Row, SpanRow, Whole

T = TypeVar("T")
AnyRow = TypeVar("AnyRow", bound=Row | SpanRow)

MOST_FACTS_BYTES = 2**22
"""Of a manifest, a resolved scenario and whatever else is no file of rows."""
MOST_LEVELS = 5
"""Objects and lists within a value that is free in form; ours have 4."""
RESTORE = "restore the file from a copy, or leave this run out"
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What a reader of a damaged file may raise."""

if TYPE_CHECKING:
    Free = Any
else:
    Free = str | Whole | float | bool | None
    for _ in range(MOST_LEVELS):
        Free = str | Whole | float | bool | None | list[Free] | dict[str, Free]


def read_checked(path: Path, parse: Callable[[bytes], T], most_bytes: int = MOST_FACTS_BYTES) -> T:
    """Read a file of at most so many bytes and parse its content, which may raise what is in ``DAMAGE``.

    Raises:
        UserError: it is missing, no regular file, too large, or damaged.
    """
    try:
        return parse(read_regular(path, most_bytes))
    except UserError:
        raise
    except DAMAGE as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is damaged: {error}"
        raise UserError(f"cannot read {str(path)!r}: {reason}", str(path), RESTORE) from error


def read_json(path: Path, kind: type[T]) -> T:
    """Read a file of one JSON value of a type that msgspec knows.

    Raises:
        UserError: it is missing, no regular file, or damaged.
    """
    return read_checked(path, lambda data: cast(T, decode_json(data, kind)), MOST_BYTES)


def decode_json(data: bytes, kind: Any) -> Any:
    """Return a JSON value of a type that msgspec knows; NaN and infinity stand there as Python writes them.

    Raises:
        ValueError, RecursionError: it is no JSON, or none of this type.
    """
    if b"non_finite" not in data:
        try:
            return _decoder(kind).decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:  # NaN, infinity or half of a surrogate pair, which Python writes; or no JSON
            pass
    return msgspec.convert(_restored(json.loads(data)), kind, str_keys=True)


@cache
def _decoder(kind: Any) -> Any:
    return msgspec.json.Decoder(kind)


def _restored(row: Any) -> Any:
    """Put back what former writers took out: null, with its JSON pointer (RFC 6901) under ``non_finite``."""
    places = row.pop("non_finite", {}) if isinstance(row, dict) else {}
    for pointer, text in places.items():
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        holder = row
        for part in parents:
            holder = holder[int(part) if isinstance(holder, list) else part]
        holder[int(last) if isinstance(holder, list) else last] = float(text)
    return row


def read_rows(folder: Path, *kinds: type[AnyRow]) -> list[AnyRow]:
    """Read the rows of these kinds from their file in a run's folder; others are skipped.

    Returns:
        the rows in the order of the file; none if there is no file.

    Raises:
        UserError: the file is damaged (named with its line) or of an unknown schema version.
    """
    path = folder / kinds[0].file
    if not os.path.lexists(path):
        return []
    return read_checked(path, lambda data: _rows(data, path, kinds), MOST_BYTES)


def _rows(data: bytes, path: Path, kinds: tuple[type[AnyRow], ...]) -> list[AnyRow]:
    head, end, body = data[: data.rfind(b"\n") + 1].partition(b"\n")
    if not end:
        return []
    kind: Any = reduce(or_, kinds)
    number, rows = 1, list[AnyRow]()
    try:
        check_schema(head, f"harness.{path.stem}", f"{path}, line 1")
        if b"non_finite" not in body:
            with suppress(ValueError, RecursionError):
                return list(_decoder(kind).decode_lines(body))  # all lines in one go
        for line in body.split(b"\n")[:-1]:
            number += 1
            rows += _row(line, kind, kinds)
    except UserError:
        raise
    except DAMAGE as error:
        what = f"{str(path)!r} is damaged at line {number}: {error}"
        raise UserError(what, f"{path}, line {number}", RESTORE) from error
    return rows


def _row(line: bytes, kind: Any, kinds: tuple[type[AnyRow], ...]) -> list[AnyRow]:
    try:
        return [decode_json(line, kind)]
    except msgspec.ValidationError:
        name = decode_json(line, _Header).kind
        if name == "header":
            raise ValueError("a second header: rows of two runs stand in one file") from None
        if name in [known.__struct_config__.tag for known in kinds]:
            raise
        return []


class _Header(msgspec.Struct):
    kind: str | None = None
    schema: str | None = None
    schema_version: Any = None


def check_schema(data: bytes, schema: str, where: str) -> None:
    """Refuse a header row, or a whole JSON file, of another schema or of a version that this reader does not know.

    Raises:
        ValueError: it is no JSON, or of another schema.
        UserError: naming the version that it has and the one that is known.
    """
    header = decode_json(data, _Header)
    if header.schema != schema:
        raise ValueError(f"its schema is not {schema!r}")
    if header.schema_version != SCHEMA_VERSION:
        raise UserError(
            f"{schema} has schema_version {header.schema_version!r}; this harness reads {SCHEMA_VERSION}",
            where=where,
            fix="read it with the version of the harness that wrote it (the manifest's versions.harness)",
        )
