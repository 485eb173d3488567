"""Rows of data files as prompts: the one reader of every task that has files.

A file is JSON Lines, one JSON array of objects, or an object whose ``data`` is such an array. A field is named by its
key, or by keys with dots between them: ``reward_model.ground_truth``.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.errors import UserError, quoted
from harness.core.regular_files import read_regular
from harness.core.types import Prompt, Turn

MOST_BAD_ROWS_TOLD = 10
EXAMPLE = '{"prompt": "...", "answer": "..."}'
_MISSING = object()
_PROMPT_FIELDS = ("prompt", "problem", "question", "query", "instruction", "input", "messages", "text")
_ANSWER_FIELDS = ("answer", "ground_truth", "target", "final_answer", "solution", "output", "tests", "label")
"""What published data sets call them, for advice."""
_NO_ANSWERS = "; an answer may be empty, and where the reward needs none, set task.answer_field to null"
_NO_JSON = {
    b"PAR1": (
        "a Parquet file",
        "export it: python -c \"import pandas; pandas.read_parquet('{file}').to_json('rows.jsonl', orient='records', "
        'lines=True)" (needs pandas and pyarrow), and name rows.jsonl',
    ),
    b"ARROW1": (
        "an Arrow file",
        "export it: python -c \"import datasets; datasets.Dataset.from_file('{file}').to_json('rows.jsonl')\" "
        "(needs datasets), and name rows.jsonl",
    ),
    b"\x1f\x8b": ("compressed with gzip", "unpack it: gunzip --keep {file}"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it: zstd --decompress {file}"),
    b"BZh": ("compressed with bzip2", "unpack it: bunzip2 --keep {file}"),
    b"\xfd7zXZ\x00": ("compressed with xz", "unpack it: xz --decompress --keep {file}"),
    b"PK\x03\x04": ("a zip archive", "unpack it: unzip {file}"),
}
"""What files that are no text begin with."""


# ---- the file


class Row:
    """A row of a file, which is read when its fields are asked for.

    Attributes:
        name: ``line 3``, or of an array ``row 3``, counted from 1.
        where: file and line.
        text: the row as the file writes it.
        fields: of the JSON object that it is, by their keys.

    Raises:
        UserError: with ``text`` or ``fields``: the row is not UTF-8, not JSON, not an object, or has a field twice.
    """

    def __init__(self, file: str | Path, name: str, content: bytes, example: str) -> None:
        self.name, self.where = name, f"{file}, {name}"
        self._content, self._example = content, example

    @cached_property
    def text(self) -> str:
        try:
            return self._content.decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"byte {error.start + 1} of the line (0x{self._content[error.start]:02x}) is not UTF-8"
            raise UserError(what, self.where, "save the file as UTF-8") from error

    @cached_property
    def fields(self) -> dict[str, Any]:
        one_object = "write one whole JSON object on each line"
        try:
            row = json.loads(self.text, object_pairs_hook=self._without_repeats)
        except json.JSONDecodeError as error:
            what = f"not JSON: {error.msg} at column {error.colno} of {quoted(self.text.strip())}"
            raise UserError(what, self.where, f"{one_object}, or all of them as one array") from error
        except UserError:
            raise
        except (RecursionError, ValueError) as error:  # nested too deep, or a number of thousands of digits
            raise UserError(f"not usable JSON: {error}", self.where, one_object) from error
        if not isinstance(row, dict):
            what = f"it is {_json_name(row)}, not an object: {quoted(self.text.strip())}"
            raise UserError(what, self.where, f"write it as {self._example}")
        return row

    def _without_repeats(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise UserError(f"the field {twice!r} comes twice", self.where, "keep one of the two")
        return row

    def needed(self, name: str, setting: str, advice: str = "") -> Any:
        """Return the value of a field, which may be null.

        Args:
            name: of the field. A key that has dots itself goes before nested ones.
            setting: what names it in a scenario.
            advice: what else can be done where there is none.

        Raises:
            UserError: there is none; the fix names the one that may be meant.
        """
        value = _find(self.fields, name)
        if value is not _MISSING:
            return value
        there = ", ".join(map(repr, _names(self.fields))) or "no field at all"
        raise UserError(f"no field {name!r}; it has {there}", self.where, self.advice(name, setting) + advice)

    def find(self, name: str) -> Any:
        """Return the value of a field, which may be nested; None where there is none (or it is null)."""
        value = _find(self.fields, name)
        return None if value is _MISSING else value

    def advice(self, name: str, setting: str) -> str:
        """Return what to do about a field that is missing: the field that may be meant, if one looks like it."""
        there, usual = list(_names(self.fields)), _PROMPT_FIELDS if setting == "task.prompt_field" else _ANSWER_FIELDS
        lower = {each.lower(): each for each in reversed(there)}
        by_last = {each.rpartition(".")[2].lower(): each for each in reversed(there)}
        near = difflib.get_close_matches(name.lower(), lower, n=1)
        guesses = [lower[near[0]]] if near else [by_last[each] for each in usual if each in by_last]
        return f"set {setting} to {guesses[0]}" if guesses else f"add the field, or set {setting} to the one to use"

    def answer(self, name: str, advice: str = "") -> str:
        """Return a field of any JSON type as text: text as it is, a number as the file writes it, else as JSON.

        Raises:
            UserError: there is no such field, its number is not finite, or it holds half of a surrogate pair.
        """
        value = self.needed(name, "task.answer_field", advice)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"the field {name!r} is {value}, no finite number", self.where, "write it in quotes")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(_find(json.loads(self.text, parse_float=str, parse_int=str), name))
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return checked_text(text, name, self.where)


def read_rows(file: str | Path, example: str = EXAMPLE) -> list[Row]:
    """Return the rows of a file, not read yet. Blank lines are skipped.

    Args:
        file: named in errors.
        example: what a row should look like.

    Raises:
        UserError: the file cannot be read, or is compressed or in another format.
    """
    try:
        content = read_regular(file)
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        fix = "give the path of a JSONL file; a relative one counts from the folder the command is run in"
        raise UserError(f"the prompts cannot be read: {reason}", str(file), fix) from error
    for start, (kind, fix) in _NO_JSON.items():
        if content.startswith(start):
            raise UserError(f"the file is {kind}, not JSON Lines", str(file), fix.format(file=file))
    content = content.removeprefix(b"\xef\xbb\xbf")
    elements = _elements(content, file)
    if elements is not None:
        texts = (text.encode("utf-8", "surrogatepass") for text in elements)
        return [Row(file, f"row {number}", text, example) for number, text in enumerate(texts, 1)]
    lines = enumerate(content.split(b"\n"), 1)
    return [Row(file, f"line {number}", line, example) for number, line in lines if line.strip()]


def _elements(content: bytes, file: str | Path) -> list[str] | None:
    """Return the texts of the elements, where the file is one array or has one in ``data``; None for JSON Lines."""
    start = content.lstrip()[:1]
    if start != b"[" and not (start == b"{" and b'"data"' in content[:4096]):
        return None
    try:
        text = content.decode("utf-8").strip()
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        if start == b"{" or error.msg == "Extra data":  # lines, each with a value of its own
            return None
        what = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        fix = "write one JSON array of objects, or one object on each line"
        raise UserError(what, str(file), fix) from error
    except (ValueError, RecursionError):
        return None
    if isinstance(whole, list):
        return _parts(text)
    rows = whole.get("data")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    keys_and_values = _parts(text)
    by_key = dict(zip(map(json.loads, keys_and_values[::2]), keys_and_values[1::2], strict=True))
    return _parts(by_key["data"])


def _parts(text: str) -> list[str]:
    """Return the text of each element of a sound array, or in turns of each key and value of an object."""
    decoder, place = json.JSONDecoder(), 1
    parts: list[str] = []
    while True:
        while text[place] in " \t\r\n,:":
            place += 1
        if text[place] in "]}":
            return parts
        _, end = decoder.raw_decode(text, place)
        parts.append(text[place:end])
        place = end


def _find(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    for place, character in enumerate(name):
        inner = row.get(name[:place]) if character == "." else None
        if isinstance(inner, dict) and (value := _find(inner, name[place + 1 :])) is not _MISSING:
            return value
    return _MISSING


def _names(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the names of all fields, those of nested objects with dots."""
    for key, value in row.items():
        yield before + key
        if isinstance(value, dict) and before.count(".") < 2:
            yield from _names(value, f"{before}{key}.")


def _json_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def checked_text(value: Any, name: str, where: str) -> str:
    """Return the value of a field, which must be text.

    Raises:
        UserError: it is not, or holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        what = f"the field {name!r} is {_json_name(value)} ({quoted(value)}), not text"
        raise UserError(what, where, f'write it in quotes, as "{name}": "..."')
    if any("\ud800" <= character <= "\udfff" for character in value):
        what = f"the field {name!r} holds half of a surrogate pair, which is no text: {quoted(value)}"
        raise UserError(what, where, "write the character itself, in UTF-8")
    return value


# ---- prompts


class Prompts(NamedTuple):
    """The prompts of a file in its order, and how many rows were left out as they repeat one."""

    prompts: tuple[Prompt, ...]
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Fields:
    """Where prompt and answer stand in a row, and whether prompts may be turns of a chat.

    Attributes:
        prompt: name of the field; see ``Row.needed``.
        answer: name of the field; None: rows have no answers, and a reward gets an empty text.
        chat: whether prompts are asked through a chat template, so that they may be turns.
        system: whether a system prompt is put before each.
        with_rows: keep the whole row with each prompt, for reward functions that take it.
    """

    prompt: str = "prompt"
    answer: str | None = "answer"
    chat: bool = False
    system: bool = False
    with_rows: bool = False

    def read(self, row: Row) -> Prompt:
        """Return a row as a prompt.

        Raises:
            UserError: a field is missing or cannot be used.
        """
        text, turns = self.asked(row, self.prompt)
        answer = "" if self.answer is None else row.answer(self.answer, _NO_ANSWERS)
        return Prompt(text, answer, row.fields if self.with_rows else None, turns, row.where)

    def asked(self, row: Row, name: str) -> tuple[str, tuple[Turn, ...] | None]:
        """Return a prompt's text, and its turns where the field holds a chat.

        Raises:
            UserError: the field is missing, empty, or neither text nor turns; or turns cannot be asked as things are.
        """
        value = row.needed(name, "task.prompt_field")
        turns = None
        if isinstance(value, list) and value and all(isinstance(turn, dict) for turn in value):
            turns = self._turns(value, name, row.where)
            text = turns_as_text(turns)
        else:
            text = checked_text(value, name, row.where)
        if not text.strip():
            raise UserError(f"the field {name!r} is empty", row.where, "give the prompt a text")
        return text, turns

    def _turns(self, value: Sequence[Mapping[str, Any]], name: str, where: str) -> tuple[Turn, ...]:
        turns = tuple(
            _turn(turn, f"turn {number} of the field {name!r}", where) for number, turn in enumerate(value, 1)
        )
        if turns[-1][0] == "assistant":
            what = f"the last turn of the field {name!r} is the assistant's, and the policy is to answer"
            raise UserError(what, where, "end the prompt with the user's turn")
        if not self.chat:
            what = f"the field {name!r} holds turns of a chat, and no chat template is used"
            raise UserError(what, where, "turn on task.chat_template, which asks them through the model's own template")
        if self.system and any(role == "system" for role, _ in turns):
            what = f"the field {name!r} has a system turn, and the system prompt would be a second one"
            fix = "leave task.system_prompt out, or take the system turns out of the rows"
            raise UserError(what, where, fix)
        return turns


AUTO = Fields("", None)
"""Fields of a task that knows the usual names."""


def turns_as_text(turns: Sequence[Turn]) -> str:
    """Return turns as people read them: the content of a single one, else each behind its role."""
    if len(turns) == 1:
        return turns[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in turns)


def _turn(turn: Mapping[str, Any], which: str, where: str) -> Turn:
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or content is None:
        what = f"{which} has {', '.join(map(repr, turn)) or 'no field'}, no role and content"
        raise UserError(what, where, 'write each turn as {"role": "user", "content": "..."}')
    extra = [key for key, value in turn.items() if key not in ("role", "content") and value]
    if extra:
        what = f"{which} has {', '.join(map(repr, extra))}, which no chat template would be given"
        raise UserError(what, where, "leave it out: a turn is a role and a content")
    if isinstance(content, list):
        for part in content:
            if not (
                isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
            ):
                fix = 'write parts as {"type": "text", "text": "..."}; the policy reads text alone'
                raise UserError(f"{which} has a part that is no text: {quoted(part)}", where, fix)
        content = "".join(part["text"] for part in content)
    return checked_text(role, "role", where), checked_text(content, which, where)


def read_prompts(file: str | Path, fields: Fields | None = None) -> Prompts:
    """Read one prompt a row; see ``prompts_from``.

    Raises:
        UserError: the file cannot be read, or has bad rows.
    """
    fields = fields or Fields()
    example = f'{{"{fields.prompt}": "..."' + (f', "{fields.answer}": "..."}}' if fields.answer else "}")
    return prompts_from(file, read_rows(file, example), fields.read, example)


def prompts_from(file: str | Path, rows: list[Row], prompt_of: Callable[[Row], Prompt], example: str) -> Prompts:
    """Return rows as prompts, in the file's order. What comes again with the same answer is kept once and counted.

    Prompts that differ in white space alone are the same, unless it stands between their words and their answers
    differ.

    Args:
        file: named in errors.
        rows: of the file; they are taken off the list, since one that was read holds all its fields.
        prompt_of: makes a prompt of a row, or raises UserError.
        example: what a row should look like.

    Raises:
        UserError: there is no row, or some are bad or contradict an earlier one: all are counted, and the first
            ``MOST_BAD_ROWS_TOLD`` named.
    """
    if not rows:
        what = "the file holds 0 prompts; at least 1 is needed"
        raise UserError(what, str(file), f"write one JSON object a line: {example}")
    kept: list[Prompt] = []
    by_text: dict[str, Prompt] = {}
    by_words: dict[str, Prompt] = {}
    bad: list[tuple[str, UserError]] = []
    count = len(rows)
    rows.reverse()
    while rows:
        row = rows.pop()
        try:
            prompt = prompt_of(row)
            same = by_text.setdefault(prompt.text.strip(), prompt)
            if same.ground_truth != prompt.ground_truth:
                raise UserError(
                    f"the prompt {quoted(prompt.text)} has the answer {quoted(same.ground_truth)} in {same.where}, "
                    f"and here {quoted(prompt.ground_truth)}",
                    prompt.where,
                    "remove one of the two rows",
                )
            twin = by_words.setdefault(words_of(prompt.text), prompt)
            if same is prompt and (twin is prompt or twin.ground_truth != prompt.ground_truth):
                kept.append(prompt)
        except UserError as error:
            bad.append((row.name, error))
    if bad:
        told = [f"{name}: {error.what}" for name, error in bad[:MOST_BAD_ROWS_TOLD]]
        if len(bad) > len(told):
            told.append(f"and {len(bad) - len(told):,} more")
        kind = bad[0][0].partition(" ")[0]
        what = f"{len(bad):,} of {count:,} {kind}s are bad\n  " + "\n  ".join(told)
        raise UserError(what, str(file), bad[0][1].fix)
    return Prompts(tuple(kept), count - len(kept))


def words_of(text: str) -> str:
    """Return a text with one space for all white space between two words: equal for prompts that ask the same."""
    return " ".join(text.split())
