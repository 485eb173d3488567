"""Hostile values, put at every place of a sound document; and documents damaged at random, for Hypothesis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]
_HERE = "a place that is filled in"
IMPOSSIBLE = {
    "400 digits": "1" + "0" * 400,
    "5000 digits": "9" * 5000,
    "nested 100000 deep": "[" * 100_000 + "]" * 100_000,
    "a null byte": '"a\\u0000b"',
    "half a pair": '"a\\ud800b"',
}
"""JSON texts that mean nothing anywhere in a scenario."""
VALUES = IMPOSSIBLE | {
    "nothing": "null",
    "true": "true",
    "minus one": "-1",
    "zero": "0",
    "a half": "0.5",
    "tiny": "1e-300",
    "huge": "1e300",
    "infinite": "1e400",
    "no number": "NaN",
    "64 bits": str(2**63),
    "31 bits": str(2**31 - 1),
    "text": '"x"',
    "empty text": '""',
    "a number as text": '"7"',
    "digits of another script": '"\uff11\uff10"',
    "long text": '"' + "x" * 5000 + '"',
    "a path": '"../../../etc/passwd"',
    "a terminal's escape": '"\\u001b[2J\\u202e"',
    "an empty list": "[]",
    "a list": "[1]",
    "a list of lists": "[[1], [2]]",
    "an empty mapping": "{}",
    "a mapping": '{"x": 1}',
    "nested 100 deep": "[" * 100 + "]" * 100,
}
"""JSON texts of values of every wrong kind."""
TOKENS = ["{", "}", "[", "]", '"', ":", ",", "\n", "\x00", "\ufeff", "\ud800", "-", "1e999", "&a ", "*a", "!!x ", "- "]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of everything in a document, the outer before the inner; of a list its first item alone."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def with_value(document: Any, path: Path, text: str) -> str:
    """Return the JSON text of a document with a JSON text at one place."""
    return _changed(document, path, lambda holder, key: holder.__setitem__(key, _HERE)).replace(json.dumps(_HERE), text)


def without(document: Any, path: Path) -> str:
    """Return the JSON text of a document that lacks one place."""
    return _changed(document, path, lambda holder, key: holder.__delitem__(key))


def with_homoglyph(document: Any, path: Path) -> str | None:
    """Return the JSON text with a key whose first Latin e, o or a is Cyrillic; None where there is none."""
    key = path[-1]
    if not isinstance(key, str) or not set(key) & set("eoa"):
        return None
    at = min(key.index(letter) for letter in "eoa" if letter in key)
    other = key[:at] + {"e": "\u0435", "o": "\u043e", "a": "\u0430"}[key[at]] + key[at + 1 :]
    return _changed(document, path, lambda holder, key: holder.__setitem__(other, holder.pop(key)))


def _changed(document: Any, path: Path, change: Any) -> str:
    copied = json.loads(json.dumps(document))
    holder = copied
    for key in path[:-1]:
        holder = holder[key]
    change(holder, path[-1])
    return json.dumps(copied, ensure_ascii=False)


def each_place(document: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (place, name of the value, text) with every value at every place, and with each place left out."""
    for path in places(document):
        where = ".".join(map(str, path))
        for name, text in VALUES.items():
            yield where, name, with_value(document, path, text)
        yield where, "left out", without(document, path)
        if (other := with_homoglyph(document, path)) is not None:
            yield where, "a Cyrillic letter", other


@st.composite
def damaged(draw: st.DrawFn, sound: Sequence[bytes]) -> bytes:
    """Draw a sound document and damage it: values at places of its JSON objects, or bytes anywhere."""
    data = draw(st.sampled_from(sound))
    for _ in range(draw(st.integers(1, 3))):
        data = draw(_other_value(data) | _other_bytes(data))
    return data


@st.composite
def _other_value(draw: st.DrawFn, data: bytes) -> bytes:
    """Put a value at a place of one line that is a JSON object, or of the whole where it is one."""
    lines = data.split(b"\n")
    at = draw(st.integers(0, len(lines) - 1))
    before, line, after = lines[:at], lines[at], lines[at + 1 :]
    document = _object(data)
    if document is not None:
        before, after = [], []
    else:
        document = _object(line)
    found = list(places(document))
    if not found:
        return data
    path = draw(st.sampled_from(found))
    text = draw(st.sampled_from(list(VALUES.values())) | _json_texts())
    try:
        changed = with_value(document, path, text).encode("utf-8", "surrogatepass")
    except RecursionError:
        return data
    return b"\n".join([*before, changed, *after])


def _object(data: bytes) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _json_texts() -> st.SearchStrategy[str]:
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    values = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
    return values.map(json.dumps)


@st.composite
def _other_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Cut, repeat or replace a stretch of bytes, or put a token somewhere."""
    begin = draw(st.integers(0, len(data)))
    end = draw(st.integers(begin, min(len(data), begin + 200)))
    token = draw(st.sampled_from(TOKENS)).encode("utf-8", "surrogatepass")
    middle = draw(st.sampled_from([b"", data[begin:end] * 2, token]) | st.binary(max_size=8))
    return data[:begin] + middle + data[end:]
