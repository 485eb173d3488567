"""The track of training steps and the metrics over them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.report.trace.events import Instant, Sample, Slice
from harness.report.trace.steps import StepWindow, metric_tracks, metric_unit, step_windows, steps_track
from harness.results import EvaluationRow, StepRow, TailRow

LOOP_NS = 2_000_000_000


def row(step: int, elapsed_s: float, wall_s: float = 1.0, **more: Any) -> StepRow:
    return StepRow(step, step + 1, wall_s, elapsed_s, 1, {}, {}, **({"metrics": {}} | more))


def test_windows_follow_each_other_whatever_the_rounding() -> None:
    # 1/3 + 1/3 is not 2/3 - 1/3 + 1/3 in nanoseconds; the second row claims to begin 2 ns before the first one ends
    rows = [row(0, 0.333333333, 0.333333333), row(1, 0.666666667, 0.333333336), row(2, 1.5, 0.5)]

    assert step_windows(rows, LOOP_NS) == [
        StepWindow(LOOP_NS, LOOP_NS + 333_333_333, ()),
        StepWindow(LOOP_NS + 333_333_333, LOOP_NS + 666_666_667, ()),
        StepWindow(LOOP_NS + 1_000_000_000, LOOP_NS + 1_500_000_000, ()),  # a turn of another arm lay between
    ]


def test_the_track_marks_warm_up_and_profiled_steps_and_names_what_is_not_finite() -> None:
    rows = [
        row(0, 1.0, warmup=True),
        row(1, 2.0, profiled=True, metrics={"loss": {"mean": math.nan, "count": 4}, "grad_norm": {"mean": 1.5}}),
        row(2, 3.0),
    ]
    evaluations = [EvaluationRow(3, 3, 3.25, {"validation/reward": {"mean": 0.5, "count": 8}})]

    track = steps_track(rows, step_windows(rows, LOOP_NS), evaluations, TailRow(0.5, 3.5, {}, {}), LOOP_NS)

    assert track.slices == [
        Slice(2_000_000_000, 3_000_000_000, "step 0, warmup", ("step", "warmup"), facts(0, warmup=True)),
        Slice(
            3_000_000_000,
            4_000_000_000,
            "step 1, profiled",
            ("step", "profiled"),
            facts(1, profiled=True, not_finite="loss nan"),
        ),
        Slice(4_000_000_000, 5_000_000_000, "step 2", ("step",), facts(2)),
        Slice(5_000_000_000, 5_500_000_000, "after the last step", ("step",)),
    ]
    arguments = (("version", 3), ("validation/reward", 0.5))
    assert track.instants == [Instant(5_250_000_000, "evaluated version 3", ("evaluation",), arguments)]


def facts(step: int, **more: Any) -> tuple[tuple[str, Any], ...]:
    return (("step", step), ("version", step + 1), *more.items())


def test_a_metric_stands_over_its_step_and_gaps_are_left_out() -> None:
    rows = [
        row(0, 1.0, metrics={"loss": {"mean": 0.5, "count": 4}, "grad_norm": {"max": 2.0, "count": 1}}),
        row(1, 2.0, metrics={"loss": {"mean": math.inf, "count": 4}}),
        row(2, 3.0, metrics={"loss": {"mean": 0.25, "count": 4}}),
    ]

    tracks = metric_tracks(rows, step_windows(rows, LOOP_NS))

    assert [(track.name, track.samples) for track in tracks] == [
        ("grad_norm", [Sample(2_000_000_000, 2.0)]),  # one of those shown first
        ("loss", [Sample(2_000_000_000, 0.5), Sample(4_000_000_000, 0.25)]),
    ]


def test_the_lag_comes_from_the_histogram_where_there_is_no_metric() -> None:
    rows = [row(0, 1.0, lags={0: 6, 3: 2})]  # mean 6/8 of a version

    tracks = metric_tracks(rows, step_windows(rows, LOOP_NS))

    assert [(track.name, track.unit, track.samples[0].value) for track in tracks] == [
        ("off_policy/mean", "versions", 0.75),
        ("off_policy/max", "versions", 3),
    ]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("off_policy/in_queue", "rollouts"),
        ("off_policy/mean", "versions"),
        ("perf/throughput_total", "tokens/s"),
        ("sync/bytes", "bytes"),
        ("sync/load_s", "s"),
        ("kl/reference_k3", "nats"),
        ("reward/total", ""),
    ],
)
def test_units(name: str, unit: str) -> None:
    assert metric_unit(name) == unit
