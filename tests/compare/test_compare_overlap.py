"""What lanes did side by side, and what the lag bound held back, from spans made by hand."""

from __future__ import annotations

from harness.compare.attribution import BlockedTime, Overlap, blocked_time, overlap
from harness.core.trace import Span, Stage

S = 1_000_000_000


def _span(lane: str, stage: Stage, start_s: int, end_s: int, step: int = 0) -> Span:
    return Span(lane, stage, start_s * S, end_s * S, step, 0)


def test_overlap_counts_each_lane_once_and_no_waits() -> None:
    spans = [
        _span("generator", Stage.STARTUP, 0, 10),
        _span("generator", Stage.GENERATE, 10, 20),
        _span("generator", Stage.WEIGHT_LOAD, 18, 20),  # inside of generate: the same lane, counted once
        _span("learner", Stage.WAIT_FOR_BATCH, 10, 15),
        _span("learner", Stage.UPDATE, 15, 25),
        _span("scorer", Stage.SCORE, 19, 22),
        _span("scorer", Stage.SCORE, 38, 45),  # ends after the window
    ]
    # worked: 10 + 10 + 3 + 2; busy: 10..25 and 38..40; together: 15..22
    found = overlap(spans, (10 * S, 40 * S))
    assert found == Overlap(loop_s=30.0, worked_s=25.0, busy_s=17.0, together_s=7.0)
    assert found.saved_s == 8.0


def test_lanes_in_turn_save_nothing() -> None:
    spans = [_span("generator", Stage.GENERATE, 0, 4), _span("learner", Stage.UPDATE, 4, 6)]
    found = overlap(spans, (0, 6 * S))
    assert (found.worked_s, found.busy_s, found.together_s, found.saved_s) == (6.0, 6.0, 0.0, 0.0)


def test_only_waits_that_the_bound_causes_are_held_back() -> None:
    wait = Stage.WAIT_FOR_WEIGHTS
    spans = [
        _span("generator0", wait, 0, 1, step=0),  # for the first weights
        _span("generator0", wait, 2, 3, step=1),  # version 0 is enough for batch 1
        _span("generator0", wait, 4, 6, step=2),
        _span("generator1", wait, 4, 5, step=2),
        _span("generator0", wait, 8, 9, step=4),
        _span("generator0", wait, 9, 20, step=5),  # all batches are made
        _span("generator0", Stage.WAIT_FOR_ROOM, 7, 8, step=3),
        _span("learner", Stage.WAIT_FOR_BATCH, 0, 9, step=3),
    ]
    # batches 2, 3 and 4 need version 1 and later; generator0 waited 2 + 1 s for them, generator1 1 s
    assert blocked_time(spans, max_lag=1, steps=5) == BlockedTime(batches=2, bound_batches=3, seconds=2.0)
    assert blocked_time(spans, max_lag=4, steps=5) == BlockedTime(batches=0, bound_batches=0, seconds=0.0)
    assert blocked_time([], max_lag=1, steps=5) == BlockedTime(0, 3, 0.0)
