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
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.errors import UserError
from harness.core.regular_files import read_regular
from harness.core.types import Prompt, Turn

MOST_BAD_ROWS_TOLD = 10
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


class RawRow(NamedTuple):
    """A row that is not read yet: ``line 3``, or of an array ``row 3``, counted from 1; and its JSON text."""

    name: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file: a JSON object.

    Attributes:
        fields: by their keys.
        where: file and line.
        text: the row as the file writes it.
    """

    fields: dict[str, Any]
    where: str
    text: str

    def find(self, name: str) -> Any:
        """Return the value of a field, which may be nested; None where there is none (or it is null)."""
        value = _find(self.fields, name)
        return None if value is _MISSING else value

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
        return checked_text(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), name, self.where
        )


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
            turns = _turns(value, name, row.where)
            self._check_chat(turns, name, row.where)
            text = turns_as_text(turns)
        else:
            text = checked_text(value, name, row.where)
        if not text.strip():
            raise UserError(f"the field {name!r} is empty", where=row.where, fix="give the prompt a text")
        return text, turns

    def _check_chat(self, turns: tuple[Turn, ...], name: str, where: str) -> None:
        if not self.chat:
            raise UserError(
                f"the field {name!r} holds turns of a chat, and no chat template is used",
                where=where,
                fix="turn on task.chat_template, which asks them through the model's own template",
            )
        if self.system and any(role == "system" for role, _ in turns):
            raise UserError(
                f"the field {name!r} has a system turn, and the system prompt would be a second one",
                where=where,
                fix="leave task.system_prompt out, or take the system turns out of the rows",
            )


AUTO = Fields("", None)
"""Fields of a task that knows the usual names."""


def read_prompts(file: str | Path, fields: Fields | None = None) -> Prompts:
    """Read one prompt a row; see ``prompts_from``.

    Raises:
        UserError: the file cannot be read, or has bad rows.
    """
    fields = fields or Fields()
    example = f'{{"{fields.prompt}": "..."' + (f', "{fields.answer}": "..."}}' if fields.answer else "}")
    return prompts_from(file, read_rows(file), fields.read, example)


def prompts_from(file: str | Path, rows: Sequence[RawRow], prompt_of: Callable[[Row], Prompt], example: str) -> Prompts:
    """Return rows as prompts, in the file's order. What comes again with the same answer is kept once and counted.

    Prompts that differ in white space alone are the same, unless it stands between their words and their answers
    differ.

    Args:
        file: named in errors.
        rows: of the file.
        prompt_of: makes a prompt of a row, or raises UserError.
        example: what a row should look like.

    Raises:
        UserError: there is no row, or some are bad or contradict an earlier one: all are counted, and the first
            ``MOST_BAD_ROWS_TOLD`` named.
    """
    if not rows:
        raise UserError(
            "the file holds 0 prompts; at least 1 is needed",
            where=str(file),
            fix=f"write one JSON object a line: {example}",
        )
    kept: list[Prompt] = []
    asked: dict[str, Prompt] = {}
    in_words: dict[str, Prompt] = {}
    bad: list[tuple[str, UserError]] = []
    for raw in rows:
        try:
            prompt = prompt_of(parse_row(raw, file, example))
            is_new = _is_new(prompt, asked)
            twin = in_words.setdefault(words_of(prompt.text), prompt)
            if is_new and (twin is prompt or twin.ground_truth != prompt.ground_truth):
                kept.append(prompt)
        except UserError as error:
            bad.append((raw.name, error))
    if bad:
        raise _bad_rows(file, len(rows), bad)
    return Prompts(tuple(kept), len(rows) - len(kept))


def words_of(text: str) -> str:
    """Return a text with one space for all white space between two words: equal for prompts that ask the same."""
    return " ".join(text.split())


def _is_new(prompt: Prompt, asked: dict[str, Prompt]) -> bool:
    """Tell whether no row before has this text, white space within it included, and add it to them.

    Raises:
        UserError: one has, with another answer.
    """
    earlier = asked.setdefault(prompt.text.strip(), prompt)
    if earlier is prompt or earlier.ground_truth == prompt.ground_truth:
        return earlier is prompt
    raise UserError(
        f"the prompt {short(prompt.text)} has the answer {short(earlier.ground_truth)} in {earlier.where}, and here "
        f"{short(prompt.ground_truth)}",
        where=prompt.where,
        fix="remove one of the two rows",
    )


def _bad_rows(file: str | Path, count: int, bad: list[tuple[str, UserError]]) -> UserError:
    told = [f"{name}: {error.what}" for name, error in bad[:MOST_BAD_ROWS_TOLD]]
    more = len(bad) - len(told)
    rest = [f"and {more:,} more"] if more else []
    kind = bad[0][0].partition(" ")[0]
    what = f"{len(bad):,} of {count:,} {kind}s are bad\n  " + "\n  ".join(told + rest)
    return UserError(what, where=str(file), fix=bad[0][1].fix)


# ---- the file


def read_rows(file: str | Path) -> list[RawRow]:
    """Return the rows of a file, not read yet. Blank lines are skipped.

    Raises:
        UserError: the file cannot be read, or is compressed or in another format.
    """
    try:
        content = read_regular(file)
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError(
            f"the prompts cannot be read: {reason}",
            where=str(file),
            fix="give the path of a JSONL file; a relative one counts from the folder the command is run in",
        ) from error
    for start, (kind, fix) in _NO_JSON.items():
        if content.startswith(start):
            raise UserError(f"the file is {kind}, not JSON Lines", str(file), fix.format(file=file))
    content = content.removeprefix(b"\xef\xbb\xbf")
    rows = _elements(content, file)
    if rows is not None:
        return [RawRow(f"row {number}", text.encode("utf-8", "surrogatepass")) for number, text in enumerate(rows, 1)]
    lines = enumerate(content.split(b"\n"), start=1)
    return [RawRow(f"line {number}", line) for number, line in lines if line.strip()]


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
        raise UserError(
            f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            where=str(file),
            fix="write one JSON array of objects, or one object on each line",
        ) from error
    except (ValueError, RecursionError):
        return None
    if isinstance(whole, list):
        return [text[first:end] for first, end in _places(text)]
    rows = whole.get("data")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    parts = iter(_places(text))
    for (first, end), (value, value_end) in zip(parts, parts, strict=True):
        if json.loads(text[first:end]) == "data":
            inner = text[value:value_end]
            return [inner[first:end] for first, end in _places(inner)]
    return None


def _places(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each element of a sound array stands in its text, or in turns each key and value of an object."""
    decoder, place = json.JSONDecoder(), 1
    while True:
        while text[place] in " \t\r\n,:":
            place += 1
        if text[place] in "]}":
            return
        _, end = decoder.raw_decode(text, place)
        yield place, end
        place = end


def parse_row(raw: RawRow, file: str | Path, example: str) -> Row:
    """Return the JSON object that a row is.

    Args:
        raw: the row.
        file: named in errors.
        example: what a row should look like.

    Raises:
        UserError: the row is not UTF-8, not JSON, not an object, or has a field twice.
    """
    where = f"{file}, {raw.name}"
    text = _decode(raw.text, where)
    try:
        row = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(pairs, where))
    except json.JSONDecodeError as error:
        raise UserError(
            f"not JSON: {error.msg} at column {error.colno} of {short(text.strip())}",
            where=where,
            fix="write one whole JSON object on each line, or all of them as one array",
        ) from error
    except UserError:
        raise
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of thousands of digits
        raise UserError(
            f"not usable JSON: {error}", where=where, fix="write one whole JSON object on each line"
        ) from error
    if not isinstance(row, dict):
        raise UserError(
            f"it is {_json_name(row)}, not an object: {short(text.strip())}", where=where, fix=f"write it as {example}"
        )
    return Row(row, where, text)


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8",
            where=where,
            fix="save the file as UTF-8",
        ) from error


def _without_repeats(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise UserError(f"the field {key!r} comes twice", where=where, fix="keep one of the two")
        row[key] = value
    return row


# ---- fields


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


def checked_text(value: Any, name: str, where: str) -> str:
    """Return the value of a field, which must be text.

    Raises:
        UserError: it is not, or holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise UserError(
            f"the field {name!r} is {_json_name(value)} ({short(value)}), not text",
            where=where,
            fix=f'write it in quotes, as "{name}": "..."',
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(
            f"the field {name!r} holds half of a surrogate pair, which is no text: {short(value)}",
            where=where,
            fix="write the character itself, in UTF-8",
        )
    return value


# ---- turns of a chat


def turns_as_text(turns: Sequence[Turn]) -> str:
    """Return turns as people read them: the content of a single one, else each behind its role."""
    if len(turns) == 1:
        return turns[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in turns)


def _turns(value: Sequence[Mapping[str, Any]], name: str, where: str) -> tuple[Turn, ...]:
    turns = tuple(_turn(each, f"turn {number} of the field {name!r}", where) for number, each in enumerate(value, 1))
    if turns[-1][0] == "assistant":
        raise UserError(
            f"the last turn of the field {name!r} is the assistant's, and the policy is to answer",
            where=where,
            fix="end the prompt with the user's turn",
        )
    return turns


def _turn(turn: Mapping[str, Any], which: str, where: str) -> Turn:
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or content is None:
        raise UserError(
            f"{which} has {', '.join(map(repr, turn)) or 'no field'}, no role and content",
            where=where,
            fix='write each turn as {"role": "user", "content": "..."}',
        )
    extra = [key for key, value in turn.items() if key not in ("role", "content") and value]
    if extra:
        raise UserError(
            f"{which} has {', '.join(map(repr, extra))}, which no chat template would be given",
            where=where,
            fix="leave it out: a turn is a role and a content",
        )
    if isinstance(content, list):
        content = "".join(_part(part, which, where) for part in content)
    return checked_text(role, "role", where), checked_text(content, which, where)


def _part(part: Any, which: str, where: str) -> str:
    if isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise UserError(
        f"{which} has a part that is no text: {short(part)}",
        where=where,
        fix='write parts as {"type": "text", "text": "..."}; the policy reads text alone',
    )


def _json_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def short(value: Any, limit: int = 80) -> str:
    """Return a value as errors show it, cut behind ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
