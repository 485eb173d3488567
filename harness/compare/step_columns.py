"""The measured window of step rows: for simulated runs, whose rows are read as they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import compress

import msgspec

from harness.core.intervals import Interval
from harness.core.trace import Stage
from harness.results import StepRow
from harness.results.rows import TailRow


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
    measured = [not (row.warmup or row.profiled) for row in rows]
    return measured if any(measured) else [True] * len(rows)


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
    tokens = [_value(row, "response_tokens") for row in rows]
    if any(value is None for value in tokens):
        rates = [(_value(row, "perf/throughput_total"), row.wall_s) for row in rows]
        known = [(rate, wall_s) for rate, wall_s in rates if rate is not None and math.isfinite(rate)]
        seconds = sum(wall_s for _, wall_s in known)
        return sum(rate * wall_s for rate, wall_s in known) / seconds if seconds > 0 else None
    seconds = sum(row.wall_s for row in rows)
    return sum(value for value in tokens if value is not None) / seconds if seconds > 0 else None


def _value(row: StepRow, name: str) -> float | None:
    metric = row.metric(name)
    return None if metric is None else metric.value
