"""The track of training steps, the metrics over them, the counters of host, GPUs and processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from harness.report.trace.chrome import Instant, Sample, Slice
from harness.report.trace.tracks import (
    StepWindow,
    metric_tracks,
    metric_unit,
    resource_tracks,
    step_windows,
    steps_track,
)
from harness.results import EvaluationRow, Manifest, Run, StepRow, TailRow
from harness.results.counters import CounterRow

SECOND = 1_000_000_000
LOOP_NS = 2 * SECOND


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

    manifest = Manifest(scenario="own", experiment="today", started_at="2026-11-21T12:00:00.000Z", simulated="abacus")
    run = Run(Path("own"), manifest, "completed", tuple(rows), tuple(evaluations), TailRow(0.5, 3.5, {}, {}))

    track = steps_track(run, step_windows(rows, LOOP_NS), LOOP_NS)

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
    told, evaluated = track.instants
    assert evaluated == Instant(5_250_000_000, "evaluated version 3", ("evaluation",), arguments)
    assert told[:3] == (0, "own: completed", ("run",))
    assert dict(told.arguments)["simulated"] == "SIMULATED by the machine profile abacus"


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
        ("off_policy/max", "versions", 3),
        ("off_policy/mean", "versions", 0.75),
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


def test_gauges_are_shown_as_read_and_growing_counters_by_their_growth() -> None:
    rows = [
        CounterRow(0, "learner", {"rss_bytes": 100, "cpu_s": 50.0}),
        CounterRow(2 * SECOND, "learner", {"rss_bytes": 300, "cpu_s": 53.0}),
        CounterRow(3 * SECOND, "learner", {"rss_bytes": 200, "cpu_s": 53.5}),
    ]

    assert [(track.name, track.unit, track.samples) for track in resource_tracks(rows)] == [
        ("learner: rss_bytes", "bytes", [Sample(0, 100), Sample(2 * SECOND, 300), Sample(3 * SECOND, 200)]),
        # 3 s of CPU in 2 s, then 0.5 in 1
        ("learner: cpu_s per second", "s/s", [Sample(0, 1.5), Sample(2 * SECOND, 0.5)]),
    ]


def test_what_was_not_read_has_a_reason_and_no_zero() -> None:
    rows = [
        CounterRow(5, "gpu0", {"utilisation": None, "power_w": 70.0}, {"utilisation": "MIG is on"}),
        CounterRow(9, "gpu0", {"utilisation": None, "power_w": None}, {"utilisation": "MIG is on", "power_w": "lost"}),
    ]

    missing, power = resource_tracks(rows)

    assert (power.name, power.unit, power.samples) == ("gpu0: power_w", "W", [Sample(5, 70.0)])
    reasons = (("power_w", "lost"), ("utilisation", "MIG is on"))
    assert missing.name == "counters of gpu0"
    assert missing.instants == [Instant(5, "not read", ("missing",), reasons)]


def test_growth_is_not_taken_across_a_turn_of_another_arm_nor_across_a_fresh_start() -> None:
    rows = [
        CounterRow(0, "sampler", {"held": 0}),
        CounterRow(0, "host", {"cpu_busy_s": 10.0}),
        CounterRow(SECOND, "sampler", {"held": 1}),
        CounterRow(SECOND, "host", {"cpu_busy_s": 12.0}),
        CounterRow(9 * SECOND, "sampler", {"held": 0}),
        CounterRow(9 * SECOND, "host", {"cpu_busy_s": 90.0}),
        CounterRow(10 * SECOND, "host", {"cpu_busy_s": 91.0}),
        CounterRow(11 * SECOND, "host", {"cpu_busy_s": 1.0}),
    ]

    host = next(track for track in resource_tracks(rows) if track.name == "host: cpu_busy_s per second")

    assert host.samples == [Sample(0, 2.0), Sample(9 * SECOND, 1.0)]


def test_a_run_without_counters_has_no_such_tracks() -> None:
    assert resource_tracks([]) == []
