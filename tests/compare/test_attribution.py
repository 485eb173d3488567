"""The window of a run's loop, the accounts of its lanes and the waits of the lag bound."""

from __future__ import annotations

from collections.abc import Callable

from harness.compare.run_frame import BlockedTime, blocked_time, span_times
from harness.core.trace import Span, Stage
from harness.results import RunFolder, in_pipeline_order, load_run
from harness.results.frames import read_table
from harness.results.occupancy import loop_window
from tests.run_folders import loop_accounts

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


def test_the_account_of_a_run_is_read_from_its_spans(make_run: Callable[..., RunFolder]) -> None:
    run = load_run(make_run(steps=4, gap_s=0.25, evaluations={0: (0.2, 12.0)}).folder)
    accounts = loop_accounts(run)
    assert list(accounts) == ["generator", "scorer", "learner"]
    generator, learner = accounts["generator"], accounts["learner"]
    # evaluation 1 s, then 4 steps of 1 s and a gap of 0.25 s: 6 s
    assert generator.wall_ns == learner.wall_ns == 6_000_000_000
    assert generator.busy_ns == 2_600_000_000  # 1 + 4 * (0.3 + 0.1)
    assert generator.waiting_ns == 2_400_000_000  # 4 * 0.6
    assert generator.unattributed_ns == 1_000_000_000  # 4 * 0.25
    assert learner.stages_ns == {Stage.UPDATE: 2_000_000_000, Stage.WAIT_FOR_BATCH: 3_000_000_000}


def test_a_run_without_spans_has_no_account(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run().folder
    (folder / "spans.jsonl").unlink()
    assert span_times(read_table(folder)) is None


def test_lanes_stand_in_the_order_of_the_work() -> None:
    names = ["learner", "scorer", "generator_1", "generator_0", "driver"]
    assert in_pipeline_order(names) == ["generator_0", "generator_1", "scorer", "learner", "driver"]


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
