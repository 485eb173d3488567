"""Keyword inclusion with prompts from files, such as ``python -m harness dataset keywords`` writes.

A row is ``{"prompt": "Write a sentence that includes the words: apple, red.", "answer": "The red apple fell."}``. The
prompt names its keywords behind its last colon, with commas between them; the wording in front of it is free. The
answer is a sentence with all of them in it: proof that the prompt can be answered, and not what a response is compared
with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.core.errors import UserError
from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.core.types import Prompt
from harness.tasks.jsonl import read_parts
from harness.tasks.keywords import keyword_reward
from harness.tasks.rows import Fields, Prompts, prompts_from, read_rows

EXAMPLE = '{"prompt": "Write a sentence that includes the words: apple, red.", "answer": "The red apple fell."}'


class KeywordFileTask:
    """Keyword inclusion with prompts from two files.

    Args:
        train: JSONL file with the training prompts.
        validation: JSONL file with the held-out prompts.
        fields: whether prompts may be turns of a chat.

    Raises:
        UserError: a file is missing, empty or damaged, a row lacks its keywords or an answer with all of them (named by
            its line), or a set of keywords is asked for in both files.
    """

    def __init__(self, train: str | Path, validation: str | Path, fields: Fields | None = None) -> None:
        parts = read_parts(train, validation, 0.0, lambda file: read_keyword_prompts(file, fields))
        self.train_prompts, self.validation_prompts, self.notes = parts
        trained_on = {_keyword_set(prompt.ground_truth) for prompt in self.train_prompts}
        shared = [prompt for prompt in self.validation_prompts if _keyword_set(prompt.ground_truth) in trained_on]
        if shared:
            raise UserError(
                f"{len(shared)} of {len(self.validation_prompts)} validation prompts ask for keywords that a training "
                f"prompt asks for too, the first for {shared[0].ground_truth!r}",
                where=f"{train} and {validation}",
                fix="remove them from one of the two files",
            )

    def reward(self, response: str, ground_truth: str) -> dict[str, float]:
        """Return ``reward``, ``format_reward`` (always 1: no format is asked for) and ``answer_reward``."""
        return keyword_reward(response, ground_truth)


def read_keyword_prompts(file: str | Path, fields: Fields | None = None) -> Prompts:
    """Read one prompt a row; the ground truth is its comma-separated list of keywords.

    Raises:
        UserError: see ``KeywordFileTask``.
    """
    fields = fields or Fields()
    return prompts_from(file, read_rows(file), lambda row: _keyword_prompt(fields.read(row)), EXAMPLE)


def keywords_of(prompt: str) -> list[str]:
    """Return the keywords that a prompt names behind its last colon; none if it names none."""
    _, colon, listed = prompt.rpartition(":")
    return [word for word in map(str.strip, listed.strip().removesuffix(".").split(",")) if word] if colon else []


def _keyword_prompt(row: Prompt) -> Prompt:
    keywords = keywords_of(row.text)
    if not keywords:
        raise UserError(
            f"the prompt names no keywords: {row.text[:80]!r}",
            where=row.where,
            fix="end it as in: Write a sentence that includes the words: apple, red.",
        )
    missing = _missing(row.ground_truth, keywords)
    if missing:
        raise UserError(
            f"the answer lacks {', '.join(map(repr, missing))}, which its prompt asks for: {row.ground_truth[:80]!r}",
            where=row.where,
            fix="remove the row, or give a sentence with every keyword",
        )
    return replace(row, ground_truth=", ".join(keywords))


def _missing(answer: str, keywords: Sequence[str]) -> list[str]:
    return [word for word in keywords if not keyword_inclusion_reward_fn(answer, [word])]


def _keyword_set(listed: str) -> frozenset[str]:
    return frozenset(word.strip().casefold() for word in listed.split(","))
