"""The data of an experiment behind its pictures and its page: curves, counters, examples; read once."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from harness.compare.attribution import loop_window
from harness.compare.experiments import Experiment, Variant, experiment_of
from harness.compare.figures import RunFigures, run_figures
from harness.compare.learning import Evaluated, evaluations, metric_series, over_optimizer_steps
from harness.compare.sync import PARTS, SyncPoint, percentile
from harness.compare.sync_tables import pooled, sweep_points, variant_syncs
from harness.core.intervals import Interval
from harness.core.trace import Span, Stage
from harness.results import RolloutRow, Run, find_runs, load_run
from harness.results.counters import CounterRow, read_counters

MOST_PAIRS = 3  # of examples of one variant
LOG_ABOVE = 20.0  # highest over lowest gradient norm
STEP, SECONDS, OPTIMIZER_STEP = "training step", "seconds of the loop", "optimizer step"
SYNC_STAGES = {part: Stage(f"weight_{part}") for part in PARTS}
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
        counted: of each variant the first run that has counters and spans.
        examples: by variant, rollouts before and after training, of the first run that has some.
    """

    curves: Curves
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
    counted = [_counted(name, runs) for name, runs in curves.runs.items()]
    examples = {name: _examples(runs) for name, runs in curves.runs.items()}
    return ReportData(curves, tuple(item for item in counted if item is not None), examples)


def _counted(name: str, runs: Sequence[Run]) -> Counted | None:
    for run in runs:
        rows = read_counters(run.folder)
        spans = run.spans() if rows else []
        if rows and spans:
            return Counted(name, rows, spans, loop_window(spans, run.tail.elapsed_s if run.tail else None))
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


def evaluated_points(when: Callable[[Evaluated], float], what: Callable[[Evaluated], float | None]) -> Points:
    """Return what reads (when, what) of a run's evaluations; those without the figure are left out."""

    def points(run: Run) -> list[tuple[float, float]]:
        pairs = [(float(when(item)), what(item)) for item in evaluations(run)]
        return [(x, y) for x, y in pairs if y is not None]

    return points


def metric_points(name: str) -> Points:
    """Return what reads a metric's (step, value) pairs from a run.

    A value that is not finite is NaN, where a line has a gap; a run without a finite one has no pairs.
    """

    def points(run: Run) -> list[tuple[float, float]]:
        found = [(float(row.step), metric.value) for row in run.steps if (metric := row.metric(name)) is not None]
        pairs = [(step, value if math.isfinite(value) else math.nan) for step, value in found]
        return pairs if any(math.isfinite(value) for _, value in pairs) else []

    return points


@dataclass(frozen=True, slots=True)
class Panel:
    """A small drawing of one figure.

    Attributes:
        points: reads it.
        from_zero: let the axis begin at 0.
    """

    title: str
    unit: str
    points: Points
    from_zero: bool = False


REWARD, LENGTH = "reward/total", "response_length"
REWARD_WORDS = ("Training reward", "mean of the fresh rollouts")
TRAINING_PANELS = {
    REWARD: Panel(*REWARD_WORDS, metric_points(REWARD)),
    "loss": Panel("Loss", "mean over optimizer steps", metric_points("loss")),
    "zero_variance_fraction": Panel(
        "Groups without a signal", "share with equal rewards", metric_points("zero_variance_fraction"), from_zero=True
    ),
    LENGTH: Panel("Response length in training", "tokens per response", metric_points(LENGTH)),
}


def training_panels(curves: Curves) -> list[Panel]:
    """Return the panels of the training steps that any run has values for; none where all that is known is lengths."""
    found = {name: panel for name, panel in TRAINING_PANELS.items() if metric_values(curves, name)}
    return [] if list(found) == [LENGTH] else list(found.values())


def optimizer_step_points(name: str) -> Points:
    """Return what reads a metric's (optimizer step, value) pairs from a run."""
    return lambda run: [(float(step), value) for step, value in over_optimizer_steps(run, name)]


def training_reward_over_optimizer_steps(run: Run) -> list[tuple[float, float]]:
    """Return (optimizer steps made before, training reward) of a run's training steps."""
    made = _made_before(run)
    return [(made(step), reward) for step, reward in zip(*metric_series(run, REWARD), strict=True)]


def reward_over_optimizer_steps(run: Run) -> list[tuple[float, float]]:
    """Return (optimizer steps made by then, validation reward) of a run's evaluations."""
    made = _made_before(run)
    return [(made(item.step), item.reward) for item in evaluations(run)]


def _made_before(run: Run) -> Callable[[int], float]:
    """Return what counts the optimizer steps made before a training step."""
    steps = [row.step for row in run.steps]
    made = [0, *accumulate(row.optimizer_steps for row in run.steps)]
    return lambda step: float(made[bisect_left(steps, step)])


OPTIMIZER_PANELS = (
    Panel(*REWARD_WORDS, training_reward_over_optimizer_steps),
    Panel("Validation reward", "mean of the evaluation", reward_over_optimizer_steps),
    Panel("Loss", "loss", optimizer_step_points("loss")),
    Panel("Gradient norm before clipping", "L2 norm", optimizer_step_points("grad_norm"), from_zero=True),
    Panel("Clip fraction", "share of response tokens", optimizer_step_points("clip_fraction"), from_zero=True),
    Panel("KL penalty before its weight", "nats per token", optimizer_step_points("kl/penalty"), from_zero=True),
)


def optimizer_panels(curves: Curves) -> list[Panel]:
    """Return the panels over optimizer steps; none where every training step of every run is one optimizer step."""
    runs = curves.all_runs()
    if not any(row.optimizer_step_metrics for run in runs for row in run.steps):
        return []
    return [panel for panel in OPTIMIZER_PANELS if any(map(panel.points, runs))]


def over_seeds(lines: Iterable[Sequence[tuple[float, float]]]) -> list[tuple[float, float, float, float]]:
    """Return (x, mean, lowest, highest) over the lines that have a point at x, one line for each seed; by x.

    They are NaN where no line has a finite point.
    """
    at: dict[float, list[float]] = {}
    for line in lines:
        for x, y in line:
            at.setdefault(x, []).append(y)
    finite = {x: [y for y in ys if math.isfinite(y)] or [math.nan] for x, ys in at.items()}
    return [(x, fmean(ys), min(ys), max(ys)) for x, ys in sorted(finite.items())]


def metric_values(curves: Curves, name: str) -> list[float]:
    """Return a metric's values over all runs; empty where nobody logged it."""
    return [value for run in curves.all_runs() for value in metric_series(run, name)[1]]


def needs_log_scale(norms: Sequence[float]) -> bool:
    """Whether gradient norms, at least one, span too wide a range for an axis from 0."""
    return min(norms) > 0 and max(norms) / min(norms) > LOG_ABOVE


def wall_s(variant: Variant) -> list[float]:
    """Return the seconds per training step of each run that finished one."""
    return [run.step_s or 0.0 for run in variant.runs if run.steps]


def spent_s(run: RunFigures, stage: Stage) -> float:
    """Return the seconds of a stage per training step, added over lanes; the run has finished one."""
    return run.stages[stage].mean_s if stage in run.stages else 0.0


def stage_seconds(variant: Variant) -> dict[Stage, float]:
    """Return the seconds per training step of each stage that is no wait, added over lanes, as a mean over the runs."""
    runs = [run for run in variant.runs if run.steps]
    stages = [stage for stage in Stage if not stage.is_wait and any(spent_s(run, stage) for run in runs)]
    return {stage: fmean(spent_s(run, stage) for run in runs) for stage in stages}


def trained_by_lag(runs: Iterable[Run]) -> Counter[int]:
    """Return lag -> rollouts trained on, over all steps of all runs; each use of a replayed rollout counts."""
    lags: Counter[int] = Counter()
    for run in runs:
        for row in run.steps:
            lags.update(row.lags)
    return lags


def lags_by_variant(curves: Curves) -> dict[str, Counter[int]]:
    """Return ``trained_by_lag`` of each variant that has some; empty where no rollout lagged."""
    lags = {name: found for name, runs in curves.runs.items() if (found := trained_by_lag(runs))}
    return lags if any(lag for found in lags.values() for lag in found) else {}


def mean_lag(lags: Counter[int]) -> float:
    """Return the mean over the rollouts, of which there is at least one."""
    return sum(lag * rollouts for lag, rollouts in lags.items()) / lags.total()


@dataclass(frozen=True)
class SyncParts:
    """What a weight sync of a variant is made of, in milliseconds.

    Attributes:
        parts_ms: the mean of each part over the measured training steps.
        whole_ms: publish to loaded: 10th percentile, mean, 90th percentile; None where it is not known.
        transport: None where the variant's name says it.
    """

    parts_ms: dict[Stage, float]
    whole_ms: tuple[float, float, float] | None
    num_bytes: float
    transport: str | None


def sync_parts(variant: Variant) -> SyncParts | None:
    """Return what a weight sync is made of; None where no weights left the process."""
    syncs = variant_syncs(variant)
    if not syncs:
        return None
    times = {stage: pooled(syncs, part) for part, stage in SYNC_STAGES.items()}
    whole = [1e3 * seconds for seconds in pooled(syncs, "whole")]
    return SyncParts(
        parts_ms={stage: 1e3 * fmean(found) for stage, found in times.items() if found},
        whole_ms=(percentile(whole, 10), fmean(whole), percentile(whole, 90)) if whole else None,
        num_bytes=syncs[0].num_bytes,
        transport=None if syncs[0].transport in variant.name else syncs[0].transport,
    )


def sweep_lines(experiment: Experiment) -> dict[tuple[int, int], dict[str, list[SyncPoint]]]:
    """Return what a transport sweep measured: (receivers, tensors) to each transport's points by size."""
    points = sorted(sweep_points(experiment), key=lambda point: point.num_bytes)
    names = dict.fromkeys(point.transport for point in sweep_points(experiment))
    return {
        kind: {name: [p for p in points if (p.transport, p.receivers, p.tensors) == (name, *kind)] for name in names}
        for kind in sorted({(point.receivers, point.tensors) for point in points})
    }
