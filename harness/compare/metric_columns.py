"""A run's step metrics by name, as columns: each read once, without an object for every value."""

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
from harness.core.types import Metric
from harness.results import StepRow
from harness.results.rows import StoredMetrics, read_metric

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
    found = [metric for item in items if (metric := read_metric({name: item}, name)) is not None]
    if not found:
        return None
    finite = [metric for metric in found if math.isfinite(metric.value)]
    try:
        combined = reduce(Metric.combine, finite) if finite else None
    except ValueError as error:
        raise UserError(f"the metric {name!r} changes its reduction within the run: {error}") from error
    return MetricColumn(combined, found[-1], len(found) - len(finite))
