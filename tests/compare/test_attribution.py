"""The window of a run's loop, and the waits of the lag bound."""

from __future__ import annotations

from harness.compare.run_frame import BlockedTime, blocked_time
from harness.core.trace import Span, Stage
from harness.results.occupancy import loop_window

S = 1_000_000_000


def _span_s(lane: str, stage: Stage, start_s: int, end_s: int, step: int = 0) -> Span:
    return Span(lane, stage, start_s * S, end_s * S, step, 0)


def test_the_window_starts_after_start_up_and_lasts_as_long_as_the_loop() -> None:
    spans = [
        Span("learner", Stage.STARTUP, 0, 50, 0, 0),
        Span("generator", Stage.STARTUP, 0, 70, 0, 0),
        Span("learner", Stage.UPDATE, 75, 90, 0, 0),
    ]
    assert loop_window(spans, None) == (70, 90)
    assert loop_window(spans, 1.0) == (70, 1_000_000_070)
    assert loop_window(spans[2:], None) == (75, 90)


def test_only_waits_that_the_bound_causes_are_held_back() -> None:
    wait = Stage.WAIT_FOR_WEIGHTS
    spans = [
        _span_s("generator0", wait, 0, 1, step=0),  # for the first weights
        _span_s("generator0", wait, 2, 3, step=1),  # version 0 is enough for batch 1
        _span_s("generator0", wait, 4, 6, step=2),
        _span_s("generator1", wait, 4, 5, step=2),
        _span_s("generator0", wait, 8, 9, step=4),
        _span_s("generator0", wait, 9, 20, step=5),  # all batches are made
        _span_s("generator0", Stage.WAIT_FOR_ROOM, 7, 8, step=3),
        _span_s("learner", Stage.WAIT_FOR_BATCH, 0, 9, step=3),
    ]
    # batches 2, 3 and 4 need version 1 and later; generator0 waited 2 + 1 s for them, generator1 1 s
    assert blocked_time(spans, max_lag=1, steps=5) == BlockedTime(batches=2, bound_batches=3, seconds=2.0)
    assert blocked_time(spans, max_lag=4, steps=5) == BlockedTime(batches=0, bound_batches=0, seconds=0.0)
    assert blocked_time([], max_lag=1, steps=5) == BlockedTime(0, 3, 0.0)
