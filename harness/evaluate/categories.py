"""Counts, shares, examples and metrics of an evaluation, from its recorded rows alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from harness.compare.stats import t_interval, wilson_interval
from harness.core.types import Prompt
from harness.evaluate.record import BatchRow, PromptRow, Response
from harness.tasks.rewards import PARTS

EARNED = 1.0
"""A part of the reward counts as earned from here on."""


class Category(StrEnum):
    """What came of a response."""

    RIGHT = "right"
    FORMAT_ONLY = "format_only"
    ANSWER_ONLY = "answer_only"
    NEITHER = "neither"
    NOT_GRADED = "not_graded"


MEANING = {
    Category.RIGHT: "format and answer right",
    Category.FORMAT_ONLY: "format right only",
    Category.ANSWER_ONLY: "answer right only",
    Category.NEITHER: "neither",
    Category.NOT_GRADED: "could not be graded",
}


METHODS = {
    True: "95%, Wilson",
    False: "95%, Student over the prompts' shares; Wilson with a trial for each prompt where all shares are equal",
}
"""How the intervals are taken, by whether each prompt has one response."""


@dataclass(frozen=True, slots=True)
class Share:
    """Responses of one category: how many, which share, and the 95% interval of the share."""

    count: int
    share: float
    low: float
    high: float


def category(response: Response) -> Category:
    """Return the category of a response."""
    rewards = response.rewards
    if rewards is None:
        return Category.NOT_GRADED
    answered, formatted = rewards["answer_reward"] >= EARNED, rewards["format_reward"] >= EARNED
    if formatted:
        return Category.RIGHT if answered else Category.FORMAT_ONLY
    return Category.ANSWER_ONLY if answered else Category.NEITHER


def shares(rows: Sequence[PromptRow]) -> dict[Category, Share]:
    """Return every category's share of the responses.

    With one response to each prompt the interval is Wilson's. Several responses to a prompt are alike, so then it is
    Student's over the prompts' own shares, cut to 0 and 1; and Wilson's with a trial for each prompt where all prompts
    have the same share, as where nothing is right.
    """
    counted = [[category(response) for response in row.responses] for row in rows]
    return {which: _share([[found is which for found in of_prompt] for of_prompt in counted]) for which in Category}


def _share(hits: Sequence[Sequence[bool]]) -> Share:
    count, total = sum(map(sum, hits)), sum(map(len, hits))
    if total == len(hits):
        return Share(count, count / total if total else 0.0, *wilson_interval(count, total))
    of_prompts = [sum(hit) / len(hit) for hit in hits]
    interval = t_interval(of_prompts)
    if interval is None or interval.low == interval.high:
        ends = wilson_interval(round(of_prompts[0] * len(hits)), len(hits))
    else:
        ends = max(0.0, interval.low), min(1.0, interval.high)
    return Share(count, count / total, *ends)


def results(
    rows: Sequence[PromptRow], batches: Sequence[BatchRow], prompts: Sequence[Prompt], examples: int
) -> dict[str, Any]:
    """Return what ``evaluation.json`` says under ``results``.

    Args:
        rows: of every prompt.
        batches: of every batch.
        prompts: by prompt id.
        examples: most examples of each category, the first ones by prompt id.
    """
    found = shares(rows)
    chosen = _examples(rows, prompts, examples)
    return {
        "prompts": len(rows),
        "responses": sum(len(row.responses) for row in rows),
        "interval": METHODS[len(rows) == sum(len(row.responses) for row in rows)],
        "categories": {
            which.value: {
                "meaning": MEANING[which],
                "count": share.count,
                "share": share.share,
                "low": share.low,
                "high": share.high,
                "examples": chosen[which],
            }
            for which, share in found.items()
        },
        "metrics": metrics(rows, batches),
    }


def metrics(rows: Sequence[PromptRow], batches: Sequence[BatchRow]) -> dict[str, float]:
    """Return the figures of an evaluation; a response that could not be graded has reward 0.

    Seconds are on the wall clock, summed over the batches: loading the model is not among them.
    """
    responses = [response for row in rows for response in row.responses]
    lengths = [response.tokens for response in responses]
    tokens, generate_s, grade_s = sum(lengths), sum(b.generate_s for b in batches), sum(b.grade_s for b in batches)
    return {
        **{part: _mean([(response.rewards or {}).get(part, 0.0) for response in responses]) for part in PARTS},
        "prompts_with_a_right_response": sum(
            any(category(response) is Category.RIGHT for response in row.responses) for row in rows
        ),
        "prompt_tokens_mean": _mean([row.prompt_tokens for row in rows]),
        "response_tokens_mean": _mean(lengths),
        "response_tokens_median": float(np.median(lengths)) if lengths else 0.0,
        "response_tokens_max": max(lengths, default=0),
        "truncated_share": _mean([float(response.is_truncated) for response in responses]),
        "log_prob_per_token": math.fsum(response.log_prob for response in responses) / tokens if tokens else 0.0,
        "tokens": tokens,
        "generate_s": generate_s,
        "grade_s": grade_s,
        "tokens_per_s": tokens / generate_s if generate_s else 0.0,
        "prompts_per_s": len(rows) / (generate_s + grade_s) if generate_s + grade_s else 0.0,
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _examples(rows: Sequence[PromptRow], prompts: Sequence[Prompt], most: int) -> dict[Category, list[dict[str, Any]]]:
    chosen: dict[Category, list[dict[str, Any]]] = {which: [] for which in Category}
    for row in rows:
        for response in row.responses:
            examples = chosen[category(response)]
            if len(examples) < most:
                examples.append(_example(row.prompt_id, prompts[row.prompt_id], response))
    return chosen


def _example(prompt_id: int, prompt: Prompt, response: Response) -> dict[str, Any]:
    return {
        "prompt_id": prompt_id,
        "prompt": prompt.text,
        "ground_truth": prompt.ground_truth,
        "response": response.text,
        "tokens": response.tokens,
        "finish_reason": response.finish_reason,
        "failure": response.failure,
    }
