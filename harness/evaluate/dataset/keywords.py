"""A data set for keyword inclusion: a model writes sentences, and those with every keyword in them are kept.

The harness draws the keywords and asks; the model answers, several times for each prompt; the first answer that passes
every check becomes the row's. Training prompts take each word from a different block of the word list, and validation
prompts take theirs from one block (``harness.tasks.keywords``): no two words that stand together in validation stand
together in training.
"""

from __future__ import annotations

import itertools
import math
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.core.errors import RunStopped, UserError
from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.core.seeds import derive_seed
from harness.core.types import Prompt
from harness.tasks.keywords import (
    BLOCK_SIZE,
    draw_held_out_keywords,
    draw_training_keywords,
    keyword_blocks,
    keyword_prompt,
)

VALIDATION_SHARE = 0.2
MOST_ASKED = 50
"""Giving up: prompts asked for each row that is wanted."""

Split = Literal["train", "validation"]
Ask = Callable[[Sequence[Prompt], int], Sequence[Sequence[str]]]
"""Has the model answer prompts, several answers to each; the number is that of the request, from 0."""
REASONS = ("empty", "control characters", "keyword missing", "no sentence", "unfinished", "said before")
"""Why an answer is not kept: the first of these that holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt, and a sentence with all of its keywords."""

    prompt: str
    answer: str


@dataclass
class Yield:
    """What came of asking for one split.

    Attributes:
        rows: kept.
        asked: prompts.
        answers: looked at; those behind a prompt's first good one are not.
        rejected: answers by reason.
    """

    rows: list[Row] = field(default_factory=list)
    asked: int = 0
    answers: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def split_sizes(rows: int) -> dict[Split, int]:
    """Return how many of so many rows are for training and for validation, 80 to 20.

    Raises:
        UserError: there are too few for both.
    """
    validation = round(VALIDATION_SHARE * rows)
    if rows < 1 or validation < 1:
        raise UserError(f"-n is {rows}; it must be at least 3, so that 20% of it is a row", "-n", "-n 1000")
    return {"train": rows - validation, "validation": validation}


def check_split_sizes(sizes: dict[Split, int], keywords: int) -> None:
    """Refuse more rows than there are sets of words.

    Raises:
        UserError: with the numbers.
    """
    available = most_prompts(keywords)
    for split, wanted in sizes.items():
        if wanted > available[split]:
            raise UserError(
                f"{wanted} {split} rows are asked for; there are {available[split]} different sets of {keywords} words "
                f"for {split}",
                "-n",
                "lower -n, or ask for more words with --keywords",
            )


def fill(
    split: Split,
    wanted: int,
    keywords: int,
    seed: int,
    batch: int,
    ask: Ask,
    said: set[str],
    listen: Callable[[Yield], None] = lambda found: None,
) -> Yield:
    """Ask until ``wanted`` rows are there.

    Args:
        keywords: of each prompt.
        seed: of the prompts.
        batch: prompts of one request.
        ask: has the model answer.
        said: every sentence kept so far, folded; grows.
        listen: called after each request.

    Raises:
        RunStopped: the model writes too few good sentences, with the counts.
    """
    found, prompts = Yield(), draw_prompts(split, keywords, seed)
    request = 0
    while len(found.rows) < wanted:
        asked = list(itertools.islice(prompts, batch))
        if not asked or found.asked >= MOST_ASKED * wanted:
            raise RunStopped(_gave_up(split, wanted, found, bool(asked)))
        for prompt, answers in zip(asked, ask(asked, request), strict=True):
            if len(found.rows) < wanted:
                _keep_first(prompt, answers, found, said)
        request += 1
        listen(found)
    return found


def draw_prompts(split: Split, keywords: int, seed: int) -> Iterator[Prompt]:
    """Yield prompts with different sets of words, until there are no more."""
    rng = random.Random(derive_seed("keyword data set", split, keywords, seed))
    draw = draw_training_keywords if split == "train" else draw_held_out_keywords
    drawn: set[frozenset[str]] = set()
    while len(drawn) < most_prompts(keywords)[split]:
        words = draw(rng, keywords)
        if frozenset(words) not in drawn:
            drawn.add(frozenset(words))
            yield keyword_prompt(words)


def most_prompts(keywords: int) -> dict[Split, int]:
    """Return how many different sets of so many words there are for each split."""
    blocks = len(keyword_blocks())
    return {
        "train": math.comb(blocks, keywords) * BLOCK_SIZE**keywords,
        "validation": blocks * math.comb(BLOCK_SIZE, keywords),
    }


def tidy(answer: str) -> str:
    """Return the first line of the answer that has something on it, without blanks around it."""
    return answer.strip().partition("\n")[0].strip()


def fault(sentence: str, keywords: str, said: set[str]) -> str | None:
    """Return the first of ``REASONS`` for which a tidy answer is not kept, or None.

    Args:
        keywords: comma-separated.
        said: the folded sentences that are taken.
    """
    if not sentence:
        return "empty"
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in sentence):
        return "control characters"
    if not keyword_inclusion_reward_fn(sentence, keywords):
        return "keyword missing"
    if len(sentence.split()) <= len(keywords.split(",")):
        return "no sentence"
    if sentence[-1] not in ".!?":
        return "unfinished"
    return "said before" if sentence.casefold() in said else None


def _keep_first(prompt: Prompt, answers: Sequence[str], found: Yield, said: set[str]) -> None:
    """Keep the first answer without fault."""
    found.asked += 1
    for answer in map(tidy, answers):
        found.answers += 1
        reason = fault(answer, prompt.ground_truth, said)
        if reason is None:
            found.rows.append(Row(prompt.text, answer))
            said.add(answer.casefold())
            return
        found.rejected[reason] += 1


def _gave_up(split: Split, wanted: int, found: Yield, prompts_are_left: bool) -> str:
    counts = ", ".join(f"{reason} {found.rejected[reason]:,}" for reason in REASONS if found.rejected[reason])
    why = f"more than {MOST_ASKED} prompts a row" if prompts_are_left else "all the prompts there are"
    return (
        f"{len(found.rows)} of {wanted} {split} rows were found after {found.asked:,} prompts, which is {why}; "
        f"answers that were rejected: {counts or 'none'}\n"
        "  fix:   take a model that follows the prompt, more --samples, or a smaller -n; nothing was written"
    )
