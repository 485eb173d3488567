"""The window of a run's loop, and how long the lag bound made Generators wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.intervals import total
from harness.core.trace import Span, Stage
from harness.results import lane_kind


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
