"""What the spans of a run say of its time: of each lane, of each step, on the critical path, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.core.intervals import total
from harness.core.trace import Span, Stage
from harness.results.frames import Numbers, RunTable
from harness.results.occupancy import STAGES, LaneAccount, Occupancy, part_spans
from harness.results.rows import lane_kind, part_of

UNATTRIBUTED = "unattributed"


def loop_window(spans: Sequence[Span], loop_s: float | None) -> tuple[int, int]:
    """Return (start, end) of the loop in nanoseconds.

    It starts where the last ``startup`` span ends (without one, where the first span starts) and lasts ``loop_s``
    seconds; with None, as in a run that was cut short, until the last span ends.
    """
    startups = [span.end_ns for span in spans if span.stage is Stage.STARTUP]
    start_ns = max(startups) if startups else min(span.start_ns for span in spans)
    if loop_s is not None:
        return start_ns, start_ns + round(loop_s * 1e9)
    return start_ns, max(start_ns, max(span.end_ns for span in spans))


@dataclass(frozen=True, slots=True)
class BlockedTime:
    """How the lag bound held the Generators back.

    Attributes:
        batches: rollout batches before which at least one Generator waited for newer weights because of the bound.
        bound_batches: batches that the bound applied to.
        seconds: of these waits, as a mean over the Generators.
    """

    batches: int
    bound_batches: int
    seconds: float


def blocked_time(spans: Sequence[Span], max_lag: int, steps: int) -> BlockedTime:
    """Return how often and how long ``max_lag`` held the Generators back.

    Batch b needs policy version b - max_lag at least, so the first ``max_lag + 1`` batches wait for no training step.
    Waits after the last batch (``step`` is the number of steps then) are not the bound's.
    """
    generators = {lane for lane in {span.lane for span in spans} if lane_kind(lane) == "generator"}
    waits = [
        span for span in spans if span.stage is Stage.WAIT_FOR_WEIGHTS and span.lane in generators
        and max_lag < span.step < steps and span.end_ns > span.start_ns
    ]  # fmt: skip
    by_lane = [total((span.start_ns, span.end_ns) for span in waits if span.lane == lane) for lane in generators]
    seconds = sum(by_lane) / max(1, len(generators)) / 1e9
    return BlockedTime(len({span.step for span in waits}), max(0, steps - max_lag - 1), seconds)


@dataclass(frozen=True)
class SpanTimes:
    """The spans of a run, summed up; numbers of time are those of the measured window.

    Attributes:
        lanes: where the time of each lane went.
        parts: the same of each part, where a Learner of several ranks is one.
        by_step_s: seconds of each stage and wait in every step, added over parts; shape [steps] each.
        exposed: nanoseconds that the loop waited for, by stage and of ``unattributed``; None without a Learner's span.
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
    max_lag = table.run.setting("max_lag")
    is_held_back = isinstance(max_lag, int) and max_lag > 0 and table.run.setting("lag_control") != "drop"
    has_ranks = any(span.lane != part_of(span.lane) for span in spans)
    tail = table.run.tail
    loop = loop_window(spans, tail.elapsed_s if tail else None)
    windows, measured = step_windows(table, loop[0]), table.is_measured.tolist()
    by_lane = Occupancy.of(spans, windows or [loop])
    by_part = Occupancy.of(part_spans(spans), windows or [loop]) if has_ranks else by_lane
    lanes = by_lane.within(measured) if windows else by_lane
    parts = lanes if by_part is by_lane else by_part.within(measured) if windows else by_part
    exposure, overlap = parts.exposed() if windows else None, parts.overlap()
    exposed = None
    if exposure is not None:
        exposed = {stage.value: ns for stage, ns in exposure.stages_ns.items()} | {UNATTRIBUTED: exposure.nobody_ns}
    by_step = dict(zip(STAGES, by_part.by_window().T, strict=True)) if windows else {}
    return SpanTimes(
        lanes=lanes.accounts(),
        parts=parts.accounts(),
        by_step_s={stage: seconds for stage, seconds in by_step.items() if seconds.any()},
        exposed=exposed,
        worked_s=overlap.worked_s,
        busy_s=overlap.busy_s,
        together_s=overlap.together_s,
        blocked=blocked_time(spans, max_lag, len(table)) if is_held_back else None,
    )


def step_windows(table: RunTable, loop_start_ns: int) -> list[tuple[int, int]]:
    """Return (start, end) of each step in nanoseconds of the run's clock; the last one with the evaluation after it."""
    ends_s = table.steps["elapsed_s"]
    starts_s = ends_s - table.steps["wall_s"]
    if table.closing is not None:
        ends_s = np.append(ends_s[:-1], table.closing.elapsed_s)
    return [
        (loop_start_ns + round(start * 1e9), loop_start_ns + round(end * 1e9))
        for start, end in zip(starts_s.tolist(), ends_s.tolist(), strict=True)
    ]
