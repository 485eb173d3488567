"""Keyword inclusion with prompts from files, such as ``python -m harness dataset keywords`` writes.

A row is ``{"prompt": "Write a sentence that includes the words: apple, red.", "answer": "The red apple fell."}``. The
prompt names its keywords behind its last colon, with commas between them; the wording in front of it is free. The
answer is a sentence with all of them in it: proof that the prompt can be answered, and not what a response is compared
with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.core.errors import UserError
from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.core.types import Prompt
from harness.tasks.jsonl import read_parts
from harness.tasks.keywords import keyword_reward
from harness.tasks.rows import Fields, Prompts, Row, prompts_from, read_rows

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

    reward = staticmethod(keyword_reward)

    def __init__(self, train: str | Path, validation: str | Path, fields: Fields | None = None) -> None:
        parts = read_parts(train, validation, 0.0, lambda file: read_keyword_prompts(file, fields))
        self.train_prompts, self.validation_prompts, self.notes = parts
        trained_on = {_keyword_set(prompt) for prompt in self.train_prompts}
        shared = [prompt for prompt in self.validation_prompts if _keyword_set(prompt) in trained_on]
        if shared:
            raise UserError(
                f"{len(shared)} of {len(self.validation_prompts)} validation prompts ask for keywords that a training "
                f"prompt asks for too, the first for {shared[0].ground_truth!r}",
                where=f"{train} and {validation}",
                fix="remove them from one of the two files",
            )


def read_keyword_prompts(file: str | Path, fields: Fields | None = None) -> Prompts:
    """Read one prompt a row; the ground truth is its comma-separated list of keywords.

    Raises:
        UserError: see ``KeywordFileTask``.
    """
    fields = fields or Fields()

    def read(row: Row) -> Prompt:
        prompt = fields.read(row)
        keywords = keywords_of(prompt.text)
        if not keywords:
            fix = "end it as in: Write a sentence that includes the words: apple, red."
            raise UserError(f"the prompt names no keywords: {prompt.text[:80]!r}", row.where, fix)
        answer = prompt.ground_truth
        missing = ", ".join(repr(word) for word in keywords if not keyword_inclusion_reward_fn(answer, [word]))
        if missing:
            what = f"the answer lacks {missing}, which its prompt asks for: {answer[:80]!r}"
            raise UserError(what, row.where, "remove the row, or give a sentence with every keyword")
        return replace(prompt, ground_truth=", ".join(keywords))

    return prompts_from(file, read_rows(file, EXAMPLE), read, EXAMPLE)


def keywords_of(prompt: str) -> list[str]:
    """Return the keywords that a prompt names behind its last colon; none if it names none."""
    _, colon, listed = prompt.rpartition(":")
    return [word for word in map(str.strip, listed.strip().removesuffix(".").split(",")) if word] if colon else []


def _keyword_set(prompt: Prompt) -> frozenset[str]:
    return frozenset(word.strip().casefold() for word in prompt.ground_truth.split(","))
