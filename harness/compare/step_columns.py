"""A run's step rows as columns: the step times that comparisons rest on, and the metrics by name."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import compress
from operator import itemgetter, mul
from typing import Literal

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.core.types import Metric
from harness.results import StepRow
from harness.results.rows import StoredMetrics, read_metric

UNFLAGGED_WARMUP = 2
"""First steps that count as warm-up in verdicts where the recorder flagged none, as in runs of before it did."""


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Times of the training steps without an evaluation, in order: one value for each step in every tuple.

    Steps in whose time an evaluation ended are left out; where every step had one, all are in.

    Attributes:
        steps: their numbers.
        wall_s: wall-clock seconds, since the previous step row.
        stages_s: seconds by stage and wait, added over lanes; 0.0 in a step in which it did not end. A stage that ran
            in none of these steps is missing.
        warmup: whether the recorder flagged the step as warm-up.
        profiled: whether a profiler ran in the step.
        flagged: whether any step of the run is flagged as warm-up; False in runs of before it was written.
        evaluated: how many steps were left out for their evaluation.
    """

    steps: tuple[int, ...]
    wall_s: tuple[float, ...]
    stages_s: dict[Stage, tuple[float, ...]]
    warmup: tuple[bool, ...]
    profiled: tuple[bool, ...]
    flagged: bool
    evaluated: int

    def measured(self, unflagged_warmup: int = 0) -> StepSeries:
        """Return the series without warm-up and profiled steps.

        Args:
            unflagged_warmup: how many of the run's first steps count as warm-up where none is flagged; figures take 0,
                verdicts ``UNFLAGGED_WARMUP``.
        """
        first = 0 if self.flagged else unflagged_warmup
        keep = [
            not warm and not profiled and step >= first
            for step, warm, profiled in zip(self.steps, self.warmup, self.profiled, strict=True)
        ]
        return StepSeries(
            steps=tuple(compress(self.steps, keep)),
            wall_s=tuple(compress(self.wall_s, keep)),
            stages_s={stage: tuple(compress(seconds, keep)) for stage, seconds in self.stages_s.items()},
            warmup=tuple(compress(self.warmup, keep)),
            profiled=tuple(compress(self.profiled, keep)),
            flagged=self.flagged,
            evaluated=self.evaluated,
        )


def is_measured(row: StepRow) -> bool:
    """Whether a step is neither warm-up nor profiled, and so belongs in statistics."""
    return not (row.warmup or row.profiled)


def stage_columns(rows: Sequence[StepRow]) -> dict[Stage, list[float]]:
    """Return the seconds of each stage and wait in every step, in the order of ``Stage``; 0.0 where it did not end."""
    windows = [row.stages_s for row in rows]
    named = set().union(*windows)
    names = {stage: stage.value for stage in Stage if stage.value in named}
    return {stage: [stages_s.get(name, 0.0) for stages_s in windows] for stage, name in names.items()}


def step_series(rows: Sequence[StepRow], columns: Mapping[Stage, Sequence[float]] | None = None) -> StepSeries | None:
    """Return the series of a run's steps; None for a run without any.

    Args:
        columns: ``stage_columns`` of the rows, where the caller has them.
    """
    if not rows:
        return None
    columns = stage_columns(rows) if columns is None else columns
    evaluated = columns.get(Stage.EVALUATE, ())
    keep = [not seconds for seconds in evaluated] if evaluated and not all(evaluated) else [True] * len(rows)
    kept = list(compress(rows, keep))
    stages_s = {stage: tuple(compress(seconds, keep)) for stage, seconds in columns.items()}
    return StepSeries(
        steps=tuple([row.step for row in kept]),
        wall_s=tuple([row.wall_s for row in kept]),
        stages_s={stage: seconds for stage, seconds in stages_s.items() if any(seconds)},
        warmup=tuple([row.warmup for row in kept]),
        profiled=tuple([row.profiled for row in kept]),
        flagged=any(row.warmup for row in rows),
        evaluated=len(rows) - len(kept),
    )


Stored = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric over the steps that have it.

    Attributes:
        combined: over all steps with a finite value (a mean weighted by its counts), or None.
        last: of the last step that has it.
        non_finite: in how many steps it was NaN or infinite.
    """

    combined: Metric | None
    last: Metric
    non_finite: int


def metric_columns(rows: Sequence[StepRow]) -> dict[str, MetricColumn]:
    """Return the metrics of the steps by name.

    Raises:
        UserError: a metric is reduced in one way in one step and in another in the next.
    """
    columns = {name: _column(items) or _one_by_one(name, items) for name, items in _by_name(rows).items()}
    return {name: column for name, column in columns.items() if column is not None}


def _by_name(rows: Sequence[StepRow]) -> Mapping[str, Stored]:
    metrics = [row.metrics for row in rows]
    if not metrics:
        return {}
    names = list(metrics[0])
    if all(list(item) == names for item in metrics):  # as nearly always: then there is a quick way
        return dict(zip(names, zip(*(item.values() for item in metrics), strict=True), strict=True))
    stored: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for step_metrics in metrics:
        for name, item in step_metrics.items():
            stored[name].append(item)
    return stored


def metric_value(metrics: StoredMetrics, name: str) -> float | None:
    """Return a metric's value, finite or not, or None; quick where it is a mean, as nearly all are."""
    stored = metrics.get(name)
    if stored is None:
        return None
    mean = stored.get("mean")
    if mean is not None:
        return mean
    metric = read_metric(metrics, name)
    return None if metric is None else metric.value


def _column(items: Stored) -> MetricColumn | None:
    """Return the column where every item has the reduction of the first, with its count; None otherwise."""
    reduction = next((name for name in REDUCTIONS if name in items[0]), None)
    if reduction is None:
        return None
    try:
        values, counts = list(map(itemgetter(reduction), items)), list(map(itemgetter("count"), items))
    except KeyError:
        return None
    last = Metric(values[-1], reduction, int(counts[-1]))
    combine = REDUCTIONS[reduction]
    if all(map(math.isfinite, values)):
        return MetricColumn(Metric(combine(values, counts), reduction, int(sum(counts))), last, 0)
    finite = list(map(math.isfinite, values))
    values, counts = list(compress(values, finite)), list(compress(counts, finite))
    combined = Metric(combine(values, counts), reduction, int(sum(counts))) if values else None
    return MetricColumn(combined, last, finite.count(False))


def _mean(values: Sequence[float], counts: Sequence[float]) -> float:
    total = sum(counts)
    return sum(map(mul, values, counts)) / total if total else math.nan


REDUCTIONS: dict[Literal["mean", "sum", "max", "min"], Callable[[Sequence[float], Sequence[float]], float]] = {
    "mean": _mean,
    "sum": lambda values, _: sum(values),
    "max": lambda values, _: max(values),
    "min": lambda values, _: min(values),
}


def _one_by_one(name: str, items: Stored) -> MetricColumn | None:
    metrics = [metric for item in items if (metric := read_metric({name: item}, name)) is not None]
    if not metrics:
        return None
    finite = [metric for metric in metrics if math.isfinite(metric.value)]
    try:
        combined = reduce(Metric.combine, finite) if finite else None
    except ValueError as error:
        raise UserError(f"the metric {name!r} changes its reduction within the run: {error}") from error
    return MetricColumn(combined, metrics[-1], len(metrics) - len(finite))
