"""The track of training steps, the metrics over them, the counters of host, GPUs and processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from harness.report.trace.chrome import Arguments, Slice
from harness.report.trace.tracks import counter_tracks, metric_tracks, step_windows, steps_track
from harness.results import EvaluationRow, Manifest, Run, StepRow, TailRow
from harness.results.counters import CounterRow
from harness.results.frames import RunTable, table_of

SECOND = 1_000_000_000
LOOP_NS = 2 * SECOND


def row(step: int, elapsed_s: float, wall_s: float = 1.0, **more: Any) -> StepRow:
    return StepRow(step, step + 1, wall_s, elapsed_s, 1, {}, {}, **({"metrics": {}} | more))


def a_table(*rows: StepRow, evaluations: tuple[EvaluationRow, ...] = (), tail: TailRow | None = None) -> RunTable:
    manifest = Manifest(scenario="own", experiment="today", started_at="2026-11-21T12:00:00.000Z", simulated="abacus")
    return table_of(Run(Path("own"), manifest, "completed", rows, evaluations, tail))


def test_windows_follow_each_other_whatever_the_rounding() -> None:
    # 1/3 + 1/3 is not 2/3 - 1/3 + 1/3 in nanoseconds; the second row claims to begin 2 ns before the first one ends
    table = a_table(row(0, 0.333333333, 0.333333333), row(1, 0.666666667, 0.333333336), row(2, 1.5, 0.5))

    assert step_windows(table, LOOP_NS) == [
        (LOOP_NS, LOOP_NS + 333_333_333, ""),
        (LOOP_NS + 333_333_333, LOOP_NS + 666_666_667, ""),
        (LOOP_NS + 1_000_000_000, LOOP_NS + 1_500_000_000, ""),  # a turn of another arm lay between
    ]


def test_the_track_marks_warm_up_and_profiled_steps_and_names_what_is_not_finite() -> None:
    odd = {"loss": {"mean": math.nan, "count": 4}, "grad_norm": {"mean": 1.5}}
    rows = row(0, 1.0, warmup=True), row(1, 2.0, profiled=True, metrics=odd), row(2, 3.0)
    evaluated = {"validation/reward": {"mean": 0.5, "count": 8}, "validation/odd": {"mean": math.inf}}
    table = a_table(*rows, evaluations=(EvaluationRow(3, 3, 3.25, evaluated),), tail=TailRow(0.5, 3.5, {}, {}))

    track = steps_track(table, step_windows(table, LOOP_NS), LOOP_NS)

    odd_step: Arguments = {"step": 1, "version": 2, "not_finite": "loss nan"}
    assert track.slices == [
        Slice(2 * SECOND, 3 * SECOND, "step 0, warmup", "step,warmup", {"step": 0, "version": 1}),
        Slice(3 * SECOND, 4 * SECOND, "step 1, profiled", "step,profiled", odd_step),
        Slice(4 * SECOND, 5 * SECOND, "step 2", "step", {"step": 2, "version": 3}),
        Slice(5_000_000_000, 5_500_000_000, "after the last step", "step"),
    ]
    at_ns, simulated = 5_250_000_000, "SIMULATED by the machine profile abacus"
    about: Arguments = {"simulated": simulated, "scenario": "own", "experiment": "today", "seed": 0}
    assert track.flags == [
        Slice(0, 0, "own: completed", "run", about),
        Slice(at_ns, at_ns, "evaluated version 3", "evaluation", {"version": 3, "validation/reward": 0.5}),
    ]


def test_a_metric_stands_over_its_step_with_its_unit_and_gaps_are_left_out() -> None:
    table = a_table(
        row(0, 1.0, metrics={"loss": {"mean": 0.5, "count": 4}, "off_policy/in_queue": {"max": 2, "count": 1}}),
        row(1, 2.0, metrics={"loss": {"mean": math.inf, "count": 4}, "perf/throughput_total": {"mean": 9.0}}),
        row(2, 3.0, metrics={"loss": {"mean": 0.25, "count": 4}, "off_policy/mean": {"mean": 1.5, "count": 4}}),
    )

    tracks = metric_tracks(table, step_windows(table, LOOP_NS))

    assert [(track.name, track.unit, track.samples) for track in tracks] == [
        ("loss", "", [(2 * SECOND, 0.5), (4 * SECOND, 0.25)]),
        ("off_policy/in_queue", "rollouts", [(2 * SECOND, 2.0)]),
        ("off_policy/mean", "versions", [(4 * SECOND, 1.5)]),
        ("perf/throughput_total", "tokens/s", [(3 * SECOND, 9.0)]),
    ]


def test_gauges_are_shown_as_read_and_growing_counters_by_their_growth() -> None:
    rows = [
        CounterRow(0, "learner", {"rss_bytes": 100, "cpu_s": 50.0}),
        CounterRow(2 * SECOND, "learner", {"rss_bytes": 300, "cpu_s": 53.0}),
        CounterRow(3 * SECOND, "learner", {"rss_bytes": 200, "cpu_s": 53.5}),
    ]

    assert [(track.name, track.unit, track.samples) for track in counter_tracks(rows)] == [
        ("learner: rss_bytes", "bytes", [(0, 100), (2 * SECOND, 300), (3 * SECOND, 200)]),
        ("learner: cpu_s per second", "s/s", [(0, 1.5), (2 * SECOND, 0.5)]),  # 3 s of CPU in 2 s, then 0.5 in 1
    ]


def test_what_was_not_read_has_a_reason_and_no_zero() -> None:
    rows = [
        CounterRow(5, "gpu0", {"utilisation": None, "power_w": 70.0}, {"utilisation": "MIG is on"}),
        CounterRow(9, "gpu0", {"utilisation": None, "power_w": None}, {"utilisation": "MIG is on", "power_w": "lost"}),
    ]

    missing, power = counter_tracks(rows)

    assert (power.name, power.unit, power.samples) == ("gpu0: power_w", "W", [(5, 70.0)])
    assert missing.name == "counters of gpu0"
    assert missing.flags == [Slice(5, 5, "not read", "missing", {"power_w": "lost", "utilisation": "MIG is on"})]


def test_growth_is_not_taken_across_a_turn_of_another_arm_nor_across_a_fresh_start() -> None:
    held = [CounterRow(at * SECOND, "sampler", {"held": number}) for at, number in ((0, 0), (1, 1), (9, 0))]
    busy = ((0, 10.0), (1, 12.0), (9, 90.0), (10, 91.0), (11, 1.0))
    rows = [*held, *(CounterRow(at * SECOND, "host", {"cpu_busy_s": value}) for at, value in busy)]

    tracks = {track.name: track.samples for track in counter_tracks(sorted(rows, key=lambda row: row.at_ns))}

    assert tracks["host: cpu_busy_s per second"] == [(0, 2.0), (9 * SECOND, 1.0)]
