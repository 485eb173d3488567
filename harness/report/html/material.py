"""What an experiment's chapter is made from: figures, rows, exposed time, counters and examples, read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compare.experiments import Experiment
from harness.compare.exposed import Exposure, exposed
from harness.compare.lanes import loop_window
from harness.core.intervals import Interval
from harness.core.trace import Span
from harness.report.curves import Curves
from harness.report.pictures import curves_of
from harness.report.summary import before_and_after
from harness.results import RolloutRow, Run, load_run
from harness.results.counters import CounterRow, read_counters

MOST_PAIRS = 3  # of examples of one variant


@dataclass(frozen=True)
class Counted:
    """The counters of one run of a variant, its spans, and the window of its loop in nanoseconds."""

    name: str
    rows: list[CounterRow]
    spans: list[Span]
    window: Interval


@dataclass(frozen=True)
class Material:
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


def read_material(folder: Path, run_folders: Iterable[Path]) -> Material:
    """Read the runs of one experiment.

    Raises:
        UserError: a file of one of them is damaged.
    """
    curves = curves_of(folder, [load_run(run_folder) for run_folder in run_folders])
    exposures = {name: [part for run in runs if (part := _exposure(run))] for name, runs in curves.runs.items()}
    counted = [_counted(name, runs) for name, runs in curves.runs.items()]
    examples = {name: _examples(runs) for name, runs in curves.runs.items()}
    return Material(curves, exposures, tuple(item for item in counted if item is not None), examples)


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
