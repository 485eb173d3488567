"""Counts, shares, examples and metrics of an evaluation, from its recorded rows alone, and their tables on a terminal.

Prompts and responses come from files and models, so ``plain`` shows them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.compare.stats.intervals import t_interval, wilson_interval
from harness.core.terminal_text import plain, plain_ends
from harness.core.types import Prompt
from harness.evaluate.record import BatchRow, PromptRow, Response
from harness.report.document import Table
from harness.report.terminal import print_table
from harness.tasks.rewards import PARTS


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
    rewards = response.rewards
    if rewards is None:
        return Category.NOT_GRADED
    answered, formatted = rewards["answer_reward"] >= 1.0, rewards["format_reward"] >= 1.0
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
    return {which: _share([[each is which for each in of_prompt] for of_prompt in counted]) for which in Category}


def _share(hits: Sequence[Sequence[bool]]) -> Share:
    count, total = sum(map(sum, hits)), sum(map(len, hits))
    of_prompts = [sum(hit) / len(hit) for hit in hits]
    interval = None if total == len(hits) else t_interval(of_prompts)
    if total == len(hits):
        ends = wilson_interval(count, total)
    elif interval is None or interval.low == interval.high:
        ends = wilson_interval(round(of_prompts[0] * len(hits)), len(hits))
    else:
        ends = max(0.0, interval.low), min(1.0, interval.high)
    return Share(count, count / total if total else 0.0, *ends)


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
    graded = [(row.prompt_id, response, category(response)) for row in rows for response in row.responses]

    def examples_of(which: Category) -> list[dict[str, Any]]:
        first = islice(((number, response) for number, response, its in graded if its is which), examples)
        return [
            {
                "prompt_id": number,
                "prompt": prompts[number].text,
                "ground_truth": prompts[number].ground_truth,
                "response": response.text,
                "tokens": response.tokens,
                "finish_reason": response.finish_reason,
                "failure": response.failure,
            }
            for number, response in first
        ]

    return {
        "prompts": len(rows),
        "responses": len(graded),
        "interval": METHODS[len(rows) == len(graded)],
        "categories": {
            which.value: {"meaning": MEANING[which], **asdict(share), "examples": examples_of(which)}
            for which, share in shares(rows).items()
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
        "truncated_share": _mean([float(response.finish_reason == "length") for response in responses]),
        "log_prob_per_token": math.fsum(response.log_prob for response in responses) / tokens if tokens else 0.0,
        "tokens": tokens,
        "generate_s": generate_s,
        "grade_s": grade_s,
        "tokens_per_s": tokens / generate_s if generate_s else 0.0,
        "prompts_per_s": len(rows) / (generate_s + grade_s) if generate_s + grade_s else 0.0,
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


LONGEST_TEXT = 400
ALWAYS_SHOWN = (Category.RIGHT, Category.FORMAT_ONLY, Category.NEITHER)


def print_evaluation(console: Console, evaluation: Mapping[str, Any], examples: int) -> None:
    """Print categories, figures and the first examples of each category.

    Args:
        evaluation: the content of ``evaluation.json``.
        examples: most examples of each category.
    """
    settings, results = evaluation["settings"], evaluation["results"]
    print_table(console, category_table(settings, results))
    print_table(console, figures_table(settings, results))
    for kind in results["categories"].values():
        if examples and kind["examples"]:
            console.print(Text(f"\nExamples: {plain(kind['meaning'])}", style="bold"))
        for example in kind["examples"][:examples]:
            _print_example(console, example)


def line_of(evaluation: Mapping[str, Any]) -> str:
    """Say in one line what came of an evaluation."""
    settings, results = evaluation["settings"], evaluation["results"]
    right = results["categories"][Category.RIGHT]
    share = f"{right['share']:.1%} right ({right['low']:.1%} to {right['high']:.1%})"
    return f"{_title(settings, results)}, {share}, mean reward {results['metrics']['reward']:.4f}."


def category_table(settings: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    """Return counts and shares of the categories; two that seldom occur are shown where they do."""
    shown = [kind for name, kind in results["categories"].items() if kind["count"] or name in ALWAYS_SHOWN]
    rows = tuple(
        (kind["meaning"], f"{kind['count']:,}", f"{kind['share']:.1%}", f"{kind['low']:.1%} to {kind['high']:.1%}")
        for kind in shown
    )
    header, notes = ("responses with", "count", "share", "interval"), (f"Interval: {results['interval']}.",)
    return Table(_title(settings, results), header, rows, notes=notes)


def figures_table(settings: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    """Return rewards, lengths, speed and times."""
    figures = results["metrics"]
    mean, median, longest = (figures[f"response_tokens_{which}"] for which in ("mean", "median", "max"))
    rows = [
        ("mean reward", f"{figures['reward']:.4f}"),
        ("mean format reward", f"{figures['format_reward']:.4f}"),
        ("mean answer reward", f"{figures['answer_reward']:.4f}"),
        ("response tokens, mean / median / longest", f"{mean:.1f} / {median:g} / {longest:,}"),
        (f"cut off at {settings['max_tokens']} tokens", f"{figures['truncated_share']:.1%}"),
        ("log-prob per token", f"{figures['log_prob_per_token']:.3f}"),
        ("tokens per second of sampling", f"{figures['tokens_per_s']:,.0f}"),
        ("prompts per second, grading included", f"{figures['prompts_per_s']:.2f}"),
        ("seconds of sampling / grading", f"{figures['generate_s']:,.1f} / {figures['grade_s']:,.1f}"),
    ]
    if settings["samples"] > 1:
        solved = f"{figures['prompts_with_a_right_response']:,} of {results['prompts']:,}"
        rows.insert(0, (f"prompts with a right one among {settings['samples']}", solved))
    prompt = f", prompt {settings['prompt']}" if settings["prompt"] else ""
    chat = ", as a chat" if settings.get("chat_template_sha256") else ""
    chat += f" of {settings['chat_date']}" if settings.get("chat_date") else ""
    note = (
        f"Engine {settings['engine']}, {settings['precision']}, {settings['device']}{prompt}{chat}, "
        f"temperature {settings['temperature']:g}, top-p {settings['top_p']:g}, seed {settings['seed']}."
    )
    return Table("Rewards, lengths and speed", ("figure", "value"), tuple(rows), notes=(note,))


def _title(settings: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    prompts, responses = results["prompts"], results["responses"]
    more = "" if prompts == responses else f", {responses:,} responses"
    return f"{settings['model']} on {settings['data']}: {prompts:,} prompts{more}"


def _print_example(console: Console, example: Mapping[str, Any]) -> None:
    lines = [
        ("prompt", plain_ends(example["prompt"], LONGEST_TEXT)),
        ("response", plain(example["response"], LONGEST_TEXT)),
        ("expected", plain(example["ground_truth"], LONGEST_TEXT)),
    ]
    if example["failure"]:
        lines.append(("failure", plain(example["failure"], LONGEST_TEXT)))
    console.print(Text(f"  prompt {example['prompt_id']}, {example['tokens']} tokens", style="dim"))
    for name, text in lines:
        console.print(Padding(Text.assemble((f"{name:<9}", "bold"), text), (0, 4)))
