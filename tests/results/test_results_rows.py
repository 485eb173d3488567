"""Rows: what is written of numbers that JSON does not know, of metrics, and of stage seconds."""

from __future__ import annotations

import json
import math

from harness.core.types import Metric
from harness.results.rows import (
    VersionChange,
    lane_kind,
    read_metric,
    restore_non_finite,
    step_row,
    store_metrics,
    tail_row,
    with_nulls,
)


def test_numbers_json_does_not_know_become_null_and_come_back() -> None:
    row = {
        "kind": "step",
        "metrics": {"kl/reference_k3": {"mean": math.inf, "count": 4}, "loss": {"mean": math.nan, "count": 8}},
        "list": [1.0, -math.inf],
    }
    stored = with_nulls(row)
    assert stored == {
        "kind": "step",
        "metrics": {"kl/reference_k3": {"mean": None, "count": 4}, "loss": {"mean": None, "count": 8}},
        "list": [1.0, None],
        "non_finite": {"/metrics/kl~1reference_k3/mean": "inf", "/metrics/loss/mean": "nan", "/list/1": "-inf"},
    }
    restored = restore_non_finite(json.loads(json.dumps(stored, allow_nan=False)))
    assert math.isnan(restored["metrics"]["loss"]["mean"])
    assert restored["metrics"]["kl/reference_k3"] == {"mean": math.inf, "count": 4}
    assert restored["list"] == [1.0, -math.inf]
    assert "non_finite" not in restored


def test_a_row_of_plain_numbers_is_left_as_it_is() -> None:
    row = {"wall_s": 1.5, "metrics": {"loss": {"mean": 0.0, "count": 2}}}
    assert with_nulls(row) is row


def test_metrics_keep_their_reduction_and_count() -> None:
    metrics = {"loss": Metric(0.25, count=64), "off_policy/max": Metric(2, "max", 8), "tokens": Metric(90, "sum", 3)}
    stored = store_metrics(metrics)
    assert stored == {
        "loss": {"mean": 0.25, "count": 64},
        "off_policy/max": {"max": 2, "count": 8},
        "tokens": {"sum": 90, "count": 3},
    }
    assert {name: read_metric(stored, name) for name in stored} == metrics
    assert read_metric(stored, "absent") is None


def test_stage_seconds_are_summed_over_lanes() -> None:
    lanes = {"generator": {"generate": 0.3, "evaluate": 0.3}, "scorer": {"evaluate": 0.05}}
    row = step_row(step=0, version=1, wall_s=0.65, elapsed_s=0.65, optimizer_steps=1, lanes=lanes, metrics={})
    assert row["stages_s"] == {"generate": 0.3, "evaluate": 0.35}
    assert row["lanes"] == lanes


def test_versions_and_lags_are_stored_in_a_form_that_json_knows() -> None:
    changes = [VersionChange(0.1234567891, "generator0", 3), VersionChange(0.5, "learner", 4)]
    row = step_row(
        step=3, version=4, wall_s=1.0, elapsed_s=4.0, optimizer_steps=1, lanes={}, metrics={},
        versions={"learner": 4, "generator0": 3}, version_changes=changes, lags={2: 8, 0: 24},
    )  # fmt: skip
    assert row["versions"] == {"learner": 4, "generator0": 3}
    assert row["version_changes"] == [[0.123456789, "generator0", 3], [0.5, "learner", 4]]
    assert list(row["lags"].items()) == [("0", 24), ("2", 8)]
    tail = tail_row(wall_s=0.0, elapsed_s=4.0, lanes={}, version_changes=changes[1:])
    assert tail["version_changes"] == [[0.5, "learner", 4]]


def test_the_kind_of_a_lane_is_its_name_without_the_number() -> None:
    lanes = ["generator", "generator0", "generator12", "scorer_1", "learner"]
    assert [lane_kind(lane) for lane in lanes] == ["generator", "generator", "generator", "scorer", "learner"]
