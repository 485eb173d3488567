"""An evaluation as tables on a terminal. Prompts and responses come from files and models, so ``plain`` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.compare.tables import Table
from harness.core.terminal_text import plain, plain_ends
from harness.evaluate.categories import Category
from harness.report.text import print_table

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


def category_table(settings: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    """Return counts and shares of the categories; two that seldom occur are shown where they do."""
    kinds = results["categories"]
    shown = [kind for name, kind in kinds.items() if kind["count"] or name in ALWAYS_SHOWN]
    return Table(
        title=f"{settings['model']} on {settings['data']}: {_counted(results)}",
        header=("responses with", "count", "share", "interval"),
        rows=tuple(
            (kind["meaning"], f"{kind['count']:,}", _percent(kind["share"]), _range(kind["low"], kind["high"]))
            for kind in shown
        ),
        notes=(f"Interval: {results['interval']}.",),
    )


def figures_table(settings: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    """Return rewards, lengths, speed and times."""
    figures = results["metrics"]
    rows = [
        ("mean reward", f"{figures['reward']:.4f}"),
        ("mean format reward", f"{figures['format_reward']:.4f}"),
        ("mean answer reward", f"{figures['answer_reward']:.4f}"),
        ("response tokens, mean / median / longest", _lengths(figures)),
        (f"cut off at {settings['max_tokens']} tokens", _percent(figures["truncated_share"])),
        ("log-prob per token", f"{figures['log_prob_per_token']:.3f}"),
        ("tokens per second of sampling", f"{figures['tokens_per_s']:,.0f}"),
        ("prompts per second, grading included", f"{figures['prompts_per_s']:.2f}"),
        ("seconds of sampling / grading", f"{figures['generate_s']:,.1f} / {figures['grade_s']:,.1f}"),
    ]
    if settings["samples"] > 1:
        solved = figures["prompts_with_a_right_response"]
        rows.insert(
            0, (f"prompts with a right one among {settings['samples']}", f"{solved:,} of {results['prompts']:,}")
        )
    return Table("Rewards, lengths and speed", ("figure", "value"), tuple(rows), notes=(_how(settings),))


def _how(settings: Mapping[str, Any]) -> str:
    prompt = f", prompt {settings['prompt']}" if settings["prompt"] else ""
    return (
        f"Engine {settings['engine']}, {settings['precision']}, {settings['device']}{prompt}, "
        f"temperature {settings['temperature']:g}, top-p {settings['top_p']:g}, seed {settings['seed']}."
    )


def _counted(results: Mapping[str, Any]) -> str:
    prompts, responses = results["prompts"], results["responses"]
    return f"{prompts:,} prompts" + ("" if prompts == responses else f", {responses:,} responses")


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _range(low: float, high: float) -> str:
    return f"{low:.1%} to {high:.1%}"


def _lengths(figures: Mapping[str, float]) -> str:
    mean, median = figures["response_tokens_mean"], figures["response_tokens_median"]
    return f"{mean:.1f} / {median:g} / {figures['response_tokens_max']:,}"


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
