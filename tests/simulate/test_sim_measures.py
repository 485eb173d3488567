"""The figures that simulated and real runs have in common, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness.compare.run_frame import tokens_per_second
from harness.core.trace import Span, Stage
from harness.loop import Count, RolloutCounts
from harness.results import StepRow
from harness.simulate.metrics import (
    idle_shares,
    lag_shares,
    metrics_of,
    stage_times,
    step_time,
    sync_time,
    table_of_rows,
    waste_shares,
)


def row(
    step: int, wall_s: float, stages_s: dict[str, float], tokens: int = 0, elapsed_s: float = 0.0, **more: Any
) -> StepRow:
    metrics = {"response_tokens": {"sum": tokens, "count": 1}}
    return StepRow(step, step + 1, wall_s, elapsed_s, 1, {}, stages_s, metrics, **more)


ROWS = [
    row(0, 9.0, {"update": 8.0}, 7, warmup=True),
    row(1, 1.0, {"update": 0.4, "generate": 0.5}, 100),
    row(2, 5.0, {"update": 0.5, "evaluate": 4.0}, 100),
    row(3, 8.0, {"update": 7.0}, 100, profiled=True),
    row(4, 2.0, {"update": 0.8, "weight_load": 0.2}, 200),
]


def test_the_measured_window_counts_with_its_evaluations() -> None:
    table = table_of_rows(ROWS)
    assert table.steps["step"][table.is_measured].tolist() == [1, 2, 4]
    assert step_time(table) == 8 / 3  # 1, 5 and 2 s
    assert tokens_per_second(table) == 50.0  # 100 + 100 + 200 tokens in 8 s


def test_stages_are_means_over_all_counted_steps_in_pipeline_order() -> None:
    found = stage_times(table_of_rows(ROWS))
    assert list(found) == ["generate", "update", "weight_load", "evaluate"]
    # a stage that two of three steps lack took 0 s in them
    assert found == pytest.approx({"generate": 0.5 / 3, "update": 1.7 / 3, "weight_load": 0.2 / 3, "evaluate": 4 / 3})


def test_warm_up_counts_where_all_steps_are() -> None:
    assert step_time(table_of_rows([ROWS[0], ROWS[2]])) == 5.0
    assert step_time(table_of_rows([ROWS[0], ROWS[3]])) == 8.5
    with pytest.raises(ValueError, match="no training steps"):
        step_time(table_of_rows([]))


def test_lags_are_shares_of_all_rollouts_trained_on() -> None:
    rows = [row(0, 1, {}, lags={0: 64}, warmup=True), row(1, 1, {}, lags={0: 16, 1: 48})]
    assert lag_shares(table_of_rows(rows)) == {0: 80 / 128, 1: 48 / 128}
    assert lag_shares(table_of_rows([])) == {}


def test_waste_is_a_share_of_what_was_generated() -> None:
    ledger = RolloutCounts(
        generated=Count(80, 800),
        failed=Count(8, 80),
        dropped=Count(16, 160),
        trained=Count(48, 480),
        discarded=Count(4, 40),
    )
    # unused: 80 - 8 - 16 - 48 - 4 = 4; of these 2 left the replay buffer
    found = waste_shares(ledger, evicted_unused=2)
    assert found == {"failed": 0.1, "discarded": 0.05, "dropped": 0.2, "unused": 0.05, "evicted_unused": 0.025}
    assert waste_shares(RolloutCounts(), 0) == dict.fromkeys(found, 0.0)


def span(lane: str, stage: Stage, start_s: float, end_s: float, version: int = 0) -> Span:
    return Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), 0, version)


def test_idle_is_the_mean_over_the_lanes_of_a_kind() -> None:
    spans = [
        span("generator0", Stage.GENERATE, 0, 10),
        span("generator1", Stage.GENERATE, 0, 5),
        span("generator1", Stage.WAIT_FOR_WEIGHTS, 5, 10),
        span("learner", Stage.WAIT_FOR_BATCH, 0, 8),
        span("learner", Stage.UPDATE, 8, 10),
    ]
    rows = [row(0, 5.0, {}, elapsed_s=5.0), row(1, 5.0, {}, elapsed_s=10.0)]
    assert idle_shares(table_of_rows(rows), spans) == {"generator": 0.25, "learner": 0.8}
    assert idle_shares(table_of_rows(rows), []) == {}
    warm = [row(0, 5.0, {}, elapsed_s=5.0, warmup=True), rows[1]]  # in the second half all but the last 2 s of one wait
    assert idle_shares(table_of_rows(warm), spans) == {"generator": 0.5, "learner": 0.6}


def test_a_sync_is_one_publish_one_transfer_and_one_load() -> None:
    spans = [
        span("learner", Stage.WEIGHT_PUBLISH, 0, 9, version=0),  # first use, left out
        span("learner", Stage.WEIGHT_PUBLISH, 10, 11, version=1),
        span("learner", Stage.WEIGHT_PUBLISH, 20, 23, version=2),
        span("generator0", Stage.WEIGHT_TRANSFER, 11, 11.5, version=1),
        span("generator0", Stage.WEIGHT_TRANSFER, 12, 12.5, version=1),  # in two pieces, which add up
        span("generator1", Stage.WEIGHT_TRANSFER, 11, 14, version=1),
        span("generator0", Stage.WEIGHT_LOAD, 13, 13.25, version=1),
    ]
    assert sync_time(spans) == pytest.approx(2.0 + 2.0 + 0.25)  # (1 + 3) / 2, (1 + 3) / 2, 0.25
    assert sync_time(spans[:1]) == 9.0  # nothing but a first one
    assert sync_time([]) is None


def test_a_run_without_spans_has_the_figures_of_its_rows() -> None:
    found = metrics_of(table_of_rows(ROWS), [], None)
    assert (found.step_s, found.idle, found.waste, found.sync_s) == (8 / 3, {}, {}, None)
