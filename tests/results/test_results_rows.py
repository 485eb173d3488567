"""Rows: what is written of numbers that JSON does not know, of metrics, and of stage seconds."""

from __future__ import annotations

import json
import math

import pytest

from harness.core.types import Metric
from harness.results.jsonl import decode_json
from harness.results.rows import (
    EvaluationRow,
    Row,
    StepRow,
    TailRow,
    VersionChange,
    lane_kind,
    store_metrics,
    with_nulls,
)

OLD = {
    "kind": "step", "step": 0, "version": 1, "wall_s": 1.0, "elapsed_s": 1.0, "optimizer_steps": 1, "lanes": {},
    "metrics": {"kl/reference_k3": {"mean": None, "count": 4}, "loss": {"mean": None, "count": 8}},
    "optimizer_step_metrics": {"loss": [1.0, None]},
    "non_finite": {
        "/metrics/kl~1reference_k3/mean": "inf", "/metrics/loss/mean": "nan", "/optimizer_step_metrics/loss/1": "-inf",
    },
}  # fmt: skip


def test_numbers_json_does_not_know_come_back_and_those_of_older_files_do() -> None:
    old = decode_json(json.dumps(OLD).encode(), StepRow)
    for row in (old, decode_json(old.line(), StepRow)):
        assert math.isnan(row.metric("loss").value)
        assert row.metric("kl/reference_k3") == Metric(math.inf, count=4)
        assert row.optimizer_step_metrics == {"loss": (1.0, -math.inf)}
    assert b"non_finite" not in old.line()


@pytest.mark.parametrize(
    "row",
    [
        StepRow(3, 4, 1.0, 4.0, 1, {"learner": {"update": 0.5}}, lags={0: 24}, metrics={"loss": {"mean": 0.5}}),
        EvaluationRow(4, 4, 2.0, {"validation/reward": {"mean": 0.25, "count": 8}}),
        TailRow(0.5, 9.0, {}, version_changes=(VersionChange(0.5, "learner", 4),)),
    ],
)
def test_a_row_comes_back_as_it_was_written_without_what_is_as_usual(row: Row) -> None:
    assert decode_json(row.line(), type(row)) == row
    assert not json.loads(row.line()).keys() & {"warmup", "ranks"}


def test_json_for_other_programs_has_null() -> None:
    assert with_nulls({"a": [1.5, math.nan, {"b": math.inf}], "c": "nan"}) == {
        "a": [1.5, None, {"b": None}],
        "c": "nan",
    }


def test_metrics_keep_their_reduction_and_count() -> None:
    metrics = {"loss": Metric(0.25, count=64), "off_policy/max": Metric(2, "max", 8), "tokens": Metric(90, "sum", 3)}
    row = EvaluationRow(4, 4, 2.0, store_metrics(metrics))
    assert row.metrics["off_policy/max"] == {"max": 2, "count": 8}
    assert {name: row.metric(name) for name in row.metrics} == metrics
    assert row.metric("absent") is None


def test_stage_seconds_are_summed_over_lanes() -> None:
    lanes = {"generator": {"generate": 0.3, "evaluate": 0.3}, "scorer": {"evaluate": 0.05}}
    assert StepRow(0, 1, 0.65, 0.65, 1, lanes).stages_s == {"generate": 0.3, "evaluate": 0.35}


def test_the_kind_of_a_lane_is_its_name_without_the_number() -> None:
    lanes = ["generator", "generator0", "generator12", "scorer_1", "learner"]
    assert [lane_kind(lane) for lane in lanes] == ["generator", "generator", "generator", "scorer", "learner"]
