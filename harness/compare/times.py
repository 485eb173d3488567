"""What the spans of a run say of its time: of each lane, of each step, exposed, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.compare.attribution import (
    BlockedTime,
    LaneAccount,
    account_spans,
    blocked_time,
    exposed_in,
    lane_accounts,
    loop_window,
    overlap,
    time_by_window,
)
from harness.core.intervals import Interval, merge, total
from harness.core.trace import Span, Stage
from harness.results.frames import Numbers, RunTable
from harness.results.lane_time import parts_as_lanes
from harness.results.rows import part_of


@dataclass(frozen=True)
class SpanTimes:
    """The spans of a run, summed up; figures of time are those of the measured window.

    Attributes:
        lanes: where the time of each lane went.
        parts: the same of each part, where a Learner of several ranks is one.
        by_step_s: seconds of each stage and wait in every step, added over parts; shape [steps] each.
        exposed: nanoseconds that the loop waited for, by stage and of ``no stage``; None without a Learner's span.
        worked_s, busy_s, together_s: seconds that parts worked, added up; with one at work; with two or more.
        blocked: how the lag bound held Generators back; None at lag 0 and under ``drop``.
    """

    lanes: dict[str, LaneAccount]
    parts: dict[str, LaneAccount]
    by_step_s: dict[Stage, Numbers]
    exposed: dict[str, int] | None
    worked_s: float
    busy_s: float
    together_s: float
    blocked: BlockedTime | None


def span_times(table: RunTable) -> SpanTimes | None:
    """Sum up the spans of a run; None where none were kept.

    Raises:
        UserError: the spans or the scenario of the run are damaged.
    """
    spans = table.run.spans()
    if not spans:
        return None
    as_parts = parts_as_lanes(spans) if any(span.lane != part_of(span.lane) for span in spans) else spans
    tail = table.run.tail
    loop = loop_window(spans, tail.elapsed_s if tail else None)
    windows = step_windows(table, loop[0])
    measured = merge(window for window, is_measured in zip(windows, table.is_measured, strict=True) if is_measured)
    worked = overlap(as_parts, measured or [loop])
    exposure = exposed_in(as_parts, measured)
    if not windows:
        lanes, parts, by_step = account_spans(spans, loop), account_spans(as_parts, loop), {}
    else:
        lanes = lane_accounts(time_by_window(spans, windows), list(table.is_measured), total(measured))
        by_part = time_by_window(as_parts, windows)
        parts = lane_accounts(by_part, list(table.is_measured), total(measured))
        by_step = _added(table, by_part)
    exposed = None
    if exposure is not None:
        exposed = {stage.value: ns for stage, ns in exposure.stages_ns.items()} | {"no stage": exposure.nobody_ns}
    return SpanTimes(
        lanes, parts, by_step, exposed, worked.worked_s, worked.busy_s, worked.together_s, _blocked(table, spans)
    )


def step_windows(table: RunTable, loop_start_ns: int) -> list[Interval]:
    """Return (start, end) of each step in nanoseconds of the run's clock; the last one with the evaluation after it."""
    ends_s = table.steps["elapsed_s"]
    starts_s = ends_s - table.steps["wall_s"]
    if table.closing is not None:
        ends_s = np.append(ends_s[:-1], table.closing.elapsed_s)
    return [
        (loop_start_ns + round(start * 1e9), loop_start_ns + round(end * 1e9))
        for start, end in zip(starts_s.tolist(), ends_s.tolist(), strict=True)
    ]


def _added(table: RunTable, by_part: dict[str, dict[Stage, np.ndarray]]) -> dict[Stage, Numbers]:
    stages: dict[Stage, Numbers] = {}
    for own in by_part.values():
        for stage, ns in own.items():
            stages[stage] = stages.get(stage, np.zeros(len(table))) + ns / 1e9
    return {stage: stages[stage] for stage in Stage if stage in stages}


def _blocked(table: RunTable, spans: list[Span]) -> BlockedTime | None:
    max_lag = table.run.setting("max_lag")
    if not max_lag or table.run.setting("lag_control") == "drop":
        return None
    return blocked_time(spans, int(max_lag), len(table))
