"""A run's step rows as columns: the step times that comparisons rest on, and the metrics by name."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import compress
from operator import itemgetter, mul
from statistics import fmean
from typing import Literal

import msgspec

from harness.core.errors import UserError
from harness.core.intervals import Interval
from harness.core.trace import Stage
from harness.core.types import Metric
from harness.results import StepRow, part_of
from harness.results.occupancy import Occupancy
from harness.results.rows import StoredMetrics, TailRow, read_metric


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Times of the training steps in order: one value for each step in every tuple.

    Attributes:
        steps: their numbers.
        wall_s: wall-clock seconds, since the previous step row. An evaluation in it is part of it.
        stages_s: seconds by stage and wait, added over lanes; 0.0 in a step in which it did not run. A stage that ran
            in none of these steps is missing.
        warmup: whether the step is warm-up.
        profiled: whether a profiler ran in the step.
    """

    steps: tuple[int, ...]
    wall_s: tuple[float, ...]
    stages_s: dict[Stage, tuple[float, ...]]
    warmup: tuple[bool, ...]
    profiled: tuple[bool, ...]

    @property
    def step_s(self) -> float:
        """Mean seconds per step: of ``measured()``, the figure that everything is said of."""
        return fmean(self.wall_s)

    def measured(self) -> StepSeries:
        """Return the measured window: the series without warm-up and profiled steps; all where no other is left."""
        return self.only(_is_measured(self.warmup, self.profiled))

    def only(self, keep: Sequence[bool]) -> StepSeries:
        """Return the series of some of the steps, those where ``keep`` is True."""
        stages_s = {stage: tuple(compress(seconds, keep)) for stage, seconds in self.stages_s.items()}
        return StepSeries(
            steps=tuple(compress(self.steps, keep)),
            wall_s=tuple(compress(self.wall_s, keep)),
            stages_s={stage: seconds for stage, seconds in stages_s.items() if any(seconds)},
            warmup=tuple(compress(self.warmup, keep)),
            profiled=tuple(compress(self.profiled, keep)),
        )


def _is_measured(warmup: Sequence[bool], profiled: Sequence[bool]) -> list[bool]:
    kept = [not (warm or under) for warm, under in zip(warmup, profiled, strict=True)]
    return kept if any(kept) else [True] * len(kept)


def with_tail(rows: Sequence[StepRow], tail: TailRow | None) -> list[StepRow]:
    """Return the rows; where an evaluation ended after the last step, with that end of the loop as a part of the step.

    The last evaluation of a run in turns lies in the row of its last step, and that of a run with lag after it. So it
    counts in both, and the two can be compared.
    """
    if tail is None or not rows or not tail.stages_s.get(Stage.EVALUATE.value):
        return list(rows)
    last = rows[-1]
    lanes = {lane: _added(last.lanes.get(lane, {}), tail.lanes.get(lane, {})) for lane in {**last.lanes, **tail.lanes}}
    closed = msgspec.structs.replace(
        last,
        wall_s=last.wall_s + tail.wall_s,
        elapsed_s=tail.elapsed_s,
        lanes=lanes,
        stages_s=_added(last.stages_s, tail.stages_s),
    )
    return [*rows[:-1], closed]


def _added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def are_measured(rows: Sequence[StepRow]) -> list[bool]:
    """Return which rows are of the measured window: neither warm-up nor profiled; all where no other is left."""
    return _is_measured([row.warmup for row in rows], [row.profiled for row in rows])


def measured_rows(rows: Sequence[StepRow]) -> list[StepRow]:
    """Return the rows of the measured window."""
    return list(compress(rows, are_measured(rows)))


def step_window(row: StepRow, loop_start_ns: int) -> Interval:
    """Return (start, end) of a step in nanoseconds of the run's clock."""
    return loop_start_ns + round((row.elapsed_s - row.wall_s) * 1e9), loop_start_ns + round(row.elapsed_s * 1e9)


def tokens_per_second(rows: Sequence[StepRow]) -> float | None:
    """Return the response tokens of fresh rollouts per second of the measured window; None where not known.

    Where a log has no tokens of a step but its throughput, that is taken as a mean over the seconds.
    """
    rows = measured_rows(rows)
    tokens = [metric_value(row.metrics, "response_tokens") for row in rows]
    if any(value is None for value in tokens):
        rates = [(metric_value(row.metrics, "perf/throughput_total"), row.wall_s) for row in rows]
        known = [(rate, wall_s) for rate, wall_s in rates if rate is not None and math.isfinite(rate)]
        seconds = sum(wall_s for _, wall_s in known)
        return sum(rate * wall_s for rate, wall_s in known) / seconds if seconds > 0 else None
    seconds = sum(row.wall_s for row in rows)
    return sum(value for value in tokens if value is not None) / seconds if seconds > 0 else None


def stage_columns(rows: Sequence[StepRow], table: Occupancy | None = None) -> dict[Stage, list[float]]:
    """Return the seconds of each stage and wait in every step, in the order of ``Stage``; 0.0 where it did not run.

    Args:
        table: of the parts, with a window for each row; for a lane that is not in it, what the rows say counts.
    """
    of_rows = [{"": row.stages_s} if table is None else row.lanes for row in rows]
    columns = defaultdict[str, list[float]](lambda: [0.0] * len(rows))
    for place, by_lane in enumerate(of_rows):
        for lane, stages_s in by_lane.items():
            if table is None or part_of(lane) not in table.lanes:
                for name, seconds in stages_s.items():
                    columns[name][place] += seconds
    if table is not None:
        for stage, column in zip(Stage, table.by_window().T.tolist(), strict=True):
            if any(column):
                columns[stage.value] = [one + other for one, other in zip(columns[stage.value], column, strict=True)]
    return {stage: columns[stage.value] for stage in Stage if stage.value in columns}


def step_series(rows: Sequence[StepRow], columns: Mapping[Stage, Sequence[float]] | None = None) -> StepSeries | None:
    """Return the series of a run's steps; None for a run without any.

    Args:
        columns: ``stage_columns`` of the rows, where the caller has them.
    """
    if not rows:
        return None
    columns = stage_columns(rows) if columns is None else columns
    return StepSeries(
        steps=tuple([row.step for row in rows]),
        wall_s=tuple([row.wall_s for row in rows]),
        stages_s={stage: tuple(seconds) for stage, seconds in columns.items() if any(seconds)},
        warmup=tuple([row.warmup for row in rows]),
        profiled=tuple([row.profiled for row in rows]),
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
