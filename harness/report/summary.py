"""What ``make bench`` prints at its end: the comparison, rollouts before and after, and where the pictures are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.compare.experiments import gather
from harness.core.terminal_text import plain, plain_ends
from harness.report.console import Output
from harness.report.text import print_experiment
from harness.results import RolloutRow, Run, find_runs
from harness.results.writer import PICTURES, REPORT

EXAMPLES = 2
LONGEST_TEXT = 400


def print_run_summary(
    experiment_folder: Path, console: Console | None = None, files: Sequence[Path] | None = None
) -> None:
    """Print an experiment's tables, sentences, example rollouts, and the paths of its page and pictures.

    Args:
        experiment_folder: an experiment's folder, or a run's.
        console: where to print; default: standard output.
        files: page and pictures; default: those in the experiment's folder.

    Raises:
        UserError: there is no readable run.
    """
    console = console or Output()
    experiments, damaged = gather([experiment_folder])
    for experiment in experiments:
        print_experiment(console, experiment)
    for item in damaged:
        console.print(Text(f"left out {plain(str(item.folder))}: {plain(item.error.what)}", style="yellow"))
    runs, _ = find_runs(experiment_folder)
    _print_examples(console, runs)
    _print_paths(console, experiment_folder, files)


def before_and_after(rollouts: Sequence[RolloutRow], most: int = EXAMPLES) -> list[tuple[RolloutRow, RolloutRow]]:
    """Pair validation rollouts of the first and the last evaluated version that answer the same prompt.

    Prompts whose reward changed come first; within these, the file's order is kept.
    """
    evaluated = [item for item in rollouts if item.purpose == "evaluate"]
    versions = [item.version for item in evaluated]
    if not versions or min(versions) == max(versions):
        return []
    first = [item for item in evaluated if item.version == min(versions)]
    last = {item.prompt: item for item in evaluated if item.version == max(versions)}
    pairs = [(item, last[item.prompt]) for item in first if item.prompt in last]
    return sorted(pairs, key=lambda pair: pair[0].reward == pair[1].reward)[:most]


def _print_examples(console: Console, runs: Sequence[Run]) -> None:
    """Show the example rollouts of the last run that has pairs; generated text is printed with nothing left to act."""
    for run in reversed(runs):
        pairs = before_and_after(run.rollouts())
        if not pairs:
            continue
        name = run.manifest.arm or run.manifest.scenario
        console.print(Text(f"\nRollouts of {plain(name)} before and after", style="bold"))
        for before, after in pairs:
            console.print(Padding(Text(f"prompt: {plain_ends(before.prompt, LONGEST_TEXT)}"), (0, 1)))
            for item in (before, after):
                _print_rollout(console, item)
        return


def _print_rollout(console: Console, item: RolloutRow) -> None:
    facts = f"version {item.version}, reward {item.reward:g}, {item.num_tokens} tokens: "
    text = Text(facts, style="dim")
    text.append(plain(item.response, LONGEST_TEXT), style="not dim")
    console.print(Padding(text, (0, 1, 0, 3)))


def _print_paths(console: Console, experiment_folder: Path, files: Sequence[Path] | None) -> None:
    if files is None:
        files = [*experiment_folder.glob(REPORT), *sorted((experiment_folder / PICTURES).glob("*.png"))]
    console.print(Text("\nFiles", style="bold"))
    for path in (experiment_folder, *files):
        console.print(Text(f" {plain(shown_path(path))}"), soft_wrap=True)


def shown_path(path: Path) -> str:
    """Return the path relative to the current folder where it lies below it, else as it is."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
