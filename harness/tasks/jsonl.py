"""A user's own task: prompts from a JSONL file, and a reward function named in the scenario."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.core.regular_files import read_regular
from harness.core.types import Prompt
from harness.tasks.rewards import RewardFunction, UserReward


class JsonlTask:
    """Prompts from JSONL files, rewarded by a user's function.

    The reward function is tried once while the task is built, on the first prompt with an empty response, so that a
    broken one is reported before any model is loaded.

    Args:
        train: file with one JSON object a line. Blank lines are skipped.
        reward: ``package.module:function``, or functions with their weights, see ``UserReward``.
        validation: file with the held-out prompts; None splits them off ``train``.
        validation_fraction: share of ``train`` that is split off, above 0 and below 1; unused with a validation file.
        prompt_field: the field with the prompt.
        answer_field: the field with the ground truth, which the reward function gets beside the response.

    Attributes:
        reward: the function or functions; they pickle by their names, without the prompts.

    Raises:
        UserError: a file is missing or empty, a line is bad (named by its number), a prompt comes twice or is in both
            splits, or the reward function cannot be used.
    """

    def __init__(
        self,
        train: str | Path,
        reward: str | Sequence[RewardFunction],
        validation: str | Path | None = None,
        validation_fraction: float = 0.1,
        prompt_field: str = "prompt",
        answer_field: str = "answer",
    ) -> None:
        self.reward = UserReward(reward)
        prompts = read_prompts(train, prompt_field, answer_field, self.reward.needs_rows)
        if validation is None:
            self.train_prompts, self.validation_prompts = split_prompts(prompts, validation_fraction, str(train))
        else:
            self.train_prompts = prompts
            self.validation_prompts = read_prompts(validation, prompt_field, answer_field, self.reward.needs_rows)
            refuse_shared(prompts, self.validation_prompts, str(train), str(validation))
        first = self.train_prompts[0]
        self.reward.try_out(first.ground_truth, first.row)


def read_prompts(file: str | Path, prompt_field: str, answer_field: str, with_rows: bool = False) -> tuple[Prompt, ...]:
    """Read one prompt a line, in the file's order.

    Args:
        file: JSONL; blank lines are skipped.
        prompt_field: the field with the prompt.
        answer_field: the field with the ground truth.
        with_rows: keep the whole row with each prompt, for reward functions that take it.

    Raises:
        UserError: see ``JsonlTask``.
    """
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    for number, line in read_lines(file):
        prompt = _parse_line(line, f"{file}, line {number}", prompt_field, answer_field, with_rows)
        earlier = first_line.setdefault(prompt.text, number)
        if earlier != number:
            raise UserError(
                f"the prompt {_short(prompt.text)} is on line {earlier} already; each prompt may come once",
                where=f"{file}, line {number}",
                fix="remove one of the two lines",
            )
        prompts.append(prompt)
    if not prompts:
        raise UserError(
            "the file holds 0 prompts; at least 1 is needed",
            where=str(file),
            fix=f'write one JSON object a line: {{"{prompt_field}": "...", "{answer_field}": "..."}}',
        )
    return tuple(prompts)


def split_prompts(
    prompts: tuple[Prompt, ...], validation_fraction: float, where: str
) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Split into (train, validation), each in the file's order.

    The validation part are the ``ceil(fraction * n)`` prompts whose texts have the smallest digests. It depends neither
    on a seed nor on the order of the lines, and adding lines moves few prompts.

    Raises:
        UserError: the fraction is not between 0 and 1, or a part would be empty.
    """
    if not 0 < validation_fraction < 1:
        raise UserError(
            f"validation_fraction is {validation_fraction}; it must be above 0 and below 1",
            where="task.validation_fraction",
            fix="set task.validation_fraction to 0.1, or name a file in task.validation",
        )
    count = math.ceil(validation_fraction * len(prompts))
    if count >= len(prompts):
        raise UserError(
            f"{len(prompts)} prompts, of which {count} would be held out for validation, leave 0 to train on",
            where=where,
            fix="add prompts, or lower task.validation_fraction",
        )
    held_out = set(sorted((prompt.text for prompt in prompts), key=_digest)[:count])
    train = tuple(prompt for prompt in prompts if prompt.text not in held_out)
    return train, tuple(prompt for prompt in prompts if prompt.text in held_out)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def read_lines(file: str | Path) -> list[tuple[int, bytes]]:
    """Return the lines of a file that are not blank, each with its number from 1.

    Raises:
        UserError: the file cannot be read.
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
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8",
            where=where,
            fix="save the file as UTF-8",
        ) from error


def parse_object(line: bytes, where: str, example: str) -> dict[str, Any]:
    """Return the JSON object that a line is.

    Args:
        line: as ``read_lines`` gives it.
        where: named in errors.
        example: what a line should look like.

    Raises:
        UserError: the line is not UTF-8, not JSON, not an object, or has a field twice.
    """
    text = _decode(line, where)
    try:
        row = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(pairs, where))
    except json.JSONDecodeError as error:
        raise UserError(
            f"not JSON: {error.msg} at column {error.colno} of {_short(text.strip())}",
            where=where,
            fix="write one whole JSON object on each line",
        ) from error
    except UserError:
        raise
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of thousands of digits
        raise UserError(
            f"not usable JSON: {error}", where=where, fix="write one whole JSON object on each line"
        ) from error
    if not isinstance(row, dict):
        raise UserError(
            f"the line is {_json_name(row)}, not an object: {_short(text.strip())}",
            where=where,
            fix=f"write it as {example}",
        )
    return row


def _parse_line(line: bytes, where: str, prompt_field: str, answer_field: str, with_row: bool) -> Prompt:
    row = parse_object(line, where, f'{{"{prompt_field}": "...", "{answer_field}": "..."}}')
    prompt = _text_field(row, prompt_field, "prompt_field", where)
    if not prompt.strip():
        raise UserError(f"the field {prompt_field!r} is empty", where=where, fix="give the prompt a text")
    answer = _text_field(row, answer_field, "answer_field", where)
    return Prompt(text=prompt, ground_truth=answer, row=row if with_row else None)


def _without_repeats(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise UserError(f"the field {key!r} comes twice", where=where, fix="keep one of the two")
        row[key] = value
    return row


def _text_field(row: dict[str, Any], name: str, setting: str, where: str) -> str:
    if name not in row:
        near = difflib.get_close_matches(name, row, n=1)
        raise UserError(
            f"no field {name!r}; the line has {', '.join(map(repr, row)) or 'no field at all'}",
            where=where,
            fix=f"add the field, or set task.{setting} to {near[0] if near else 'the one to use'}",
        )
    return checked_text(row[name], name, where)


def checked_text(value: Any, name: str, where: str) -> str:
    """Return the value of a field, which must be text.

    Raises:
        UserError: it is not, or holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise UserError(
            f"the field {name!r} is {_json_name(value)} ({_short(value)}), not text",
            where=where,
            fix=f'write it in quotes, as "{name}": "..."',
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(
            f"the field {name!r} holds half of a surrogate pair, which is no text: {_short(value)}",
            where=where,
            fix="write the character itself, in UTF-8",
        )
    return value


def refuse_shared(train: tuple[Prompt, ...], validation: tuple[Prompt, ...], train_file: str, file: str) -> None:
    """Raise UserError if a prompt is both trained on and held out."""
    trained_on = {prompt.text for prompt in train}
    shared = [prompt.text for prompt in validation if prompt.text in trained_on]
    if shared:
        raise UserError(
            f"{len(shared)} of {len(validation)} validation prompts are training prompts too, "
            f"the first is {_short(shared[0])}; held-out prompts must not be trained on",
            where=f"{train_file} and {file}",
            fix="remove them from one of the two files, or set task.validation to null to split the first",
        )


def _json_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
