"""The data of an experiment behind its pictures and its page: curves, exposed time, counters, examples; read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compare.experiments import Experiment, experiment_of
from harness.compare.exposed import Exposure, exposed
from harness.compare.figures import run_figures
from harness.compare.lanes import loop_window
from harness.core.intervals import Interval
from harness.core.trace import Span
from harness.results import RolloutRow, Run, find_runs, load_run
from harness.results.counters import CounterRow, read_counters

MOST_PAIRS = 3  # of examples of one variant
Points = Callable[[Run], list[tuple[float, float]]]
"""Reads the points of one line from a run."""


@dataclass(frozen=True)
class Curves:
    """An experiment, and the rows of its runs by the variant's name."""

    experiment: Experiment
    runs: dict[str, list[Run]]

    @property
    def several_seeds(self) -> bool:
        """Whether a variant has more than one run."""
        return any(len(runs) > 1 for runs in self.runs.values())

    def all_runs(self) -> list[Run]:
        """Return every run, variant by variant."""
        return [run for runs in self.runs.values() for run in runs]

    def table(self, points: Points) -> dict[str, list[Any]]:
        """Return the points of all runs as columns variant, run, x and y."""
        numbered = [(name, index, run) for name, runs in self.runs.items() for index, run in enumerate(runs)]
        rows = [(name, index, x, y) for name, index, run in numbered for x, y in points(run)]
        columns = zip(*rows, strict=True) if rows else ([], [], [], [])
        return {name: list(column) for name, column in zip(("variant", "run", "x", "y"), columns, strict=True)}


def load_curves(experiment_folder: Path) -> Curves:
    """Read the runs of an experiment by variant; damaged ones are left out.

    Raises:
        UserError: there is no readable run.
    """
    runs, damaged = find_runs(experiment_folder)
    if not runs:
        raise damaged[0].error
    return curves_of(experiment_folder, runs)


def curves_of(folder: Path, runs: Sequence[Run]) -> Curves:
    """Arrange the runs of one experiment, at least one, by variant.

    Raises:
        UserError: a run's spans or its scenario are damaged.
    """
    figures = [run_figures(run) for run in runs]
    run_of = {id(item): run for item, run in zip(figures, runs, strict=True)}
    experiment = experiment_of(folder, figures)
    return Curves(experiment, {item.name: [run_of[id(run)] for run in item.runs] for item in experiment.variants})


@dataclass(frozen=True)
class Counted:
    """The counters of one run of a variant, its spans, and the window of its loop in nanoseconds."""

    name: str
    rows: list[CounterRow]
    spans: list[Span]
    window: Interval


@dataclass(frozen=True)
class ReportData:
    """An experiment.

    Attributes:
        exposures: by variant, with the training steps of the run; one for each run that has spans and finished a step.
        counted: of each variant the first run that has counters and spans.
        examples: by variant, rollouts before and after training, of the first run that has some.
    """

    curves: Curves
    exposures: dict[str, list[tuple[Exposure, int]]]
    counted: tuple[Counted, ...]
    examples: dict[str, list[tuple[RolloutRow, RolloutRow]]]

    @property
    def experiment(self) -> Experiment:
        """The experiment's figures."""
        return self.curves.experiment

    @property
    def names(self) -> list[str]:
        """The variants' names, in order."""
        return [variant.name for variant in self.experiment.variants]


def read_report_data(folder: Path, run_folders: Iterable[Path]) -> ReportData:
    """Read the runs of one experiment.

    Raises:
        UserError: a file of one of them is damaged.
    """
    curves = curves_of(folder, [load_run(run_folder) for run_folder in run_folders])
    exposures = {name: [part for run in runs if (part := _exposure(run))] for name, runs in curves.runs.items()}
    counted = [_counted(name, runs) for name, runs in curves.runs.items()]
    examples = {name: _examples(runs) for name, runs in curves.runs.items()}
    return ReportData(curves, exposures, tuple(item for item in counted if item is not None), examples)


def _exposure(run: Run) -> tuple[Exposure, int] | None:
    spans = run.spans()
    if not spans or not run.steps:
        return None
    found = exposed(spans, _window(run, spans))
    return None if found is None else (found, len(run.steps))


def _window(run: Run, spans: list[Span]) -> Interval:
    return loop_window(spans, run.tail.elapsed_s if run.tail else None)


def _counted(name: str, runs: Sequence[Run]) -> Counted | None:
    for run in runs:
        rows = read_counters(run.folder)
        spans = run.spans() if rows else []
        if rows and spans:
            return Counted(name, rows, spans, _window(run, spans))
    return None


def _examples(runs: Sequence[Run]) -> list[tuple[RolloutRow, RolloutRow]]:
    return next((pairs for run in runs if (pairs := before_and_after(run.rollouts(), MOST_PAIRS))), [])


def before_and_after(rollouts: Sequence[RolloutRow], most: int) -> list[tuple[RolloutRow, RolloutRow]]:
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
