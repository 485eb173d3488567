"""The track of training steps, metrics, counters of host, GPUs and processes; arrows from span to span."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from harness.core.trace import Span, Stage
from harness.report.trace.chrome import Arguments, Slice
from harness.report.trace.tracks import arrows, chains, counter_tracks, metric_tracks, step_windows, steps_track
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


def test_a_metric_stands_over_its_step_and_gaps_are_left_out() -> None:
    table = a_table(
        row(0, 1.0, metrics={"loss": {"mean": 0.5, "count": 4}}),
        row(1, 2.0, metrics={"loss": {"mean": math.inf, "count": 4}, "perf/throughput_total": {"mean": 9.0}}),
        row(2, 3.0, metrics={"loss": {"mean": 0.25, "count": 4}, "off_policy/mean": {"mean": 1.5, "count": 4}}),
    )

    tracks = metric_tracks(table, step_windows(table, LOOP_NS))

    assert [(track.name, track.samples) for track in tracks] == [
        ("loss", [(2 * SECOND, 0.5), (4 * SECOND, 0.25)]),
        ("off_policy/mean", [(4 * SECOND, 1.5)]),
        ("perf/throughput_total", [(3 * SECOND, 9.0)]),
    ]


def test_gauges_are_shown_as_read_and_growing_counters_by_their_growth() -> None:
    """Growth is not taken across a turn of another arm, in which the sampler was held, nor across a fresh start."""
    held = [CounterRow(at * SECOND, "sampler", {"held": number}) for at, number in ((0, 0), (1, 1), (9, 0))]
    busy = ((0, 10.0), (1, 12.0), (9, 90.0), (10, 91.0), (11, 1.0))
    rows = [*held, *(CounterRow(at * SECOND, "host", {"cpu_busy_s": value}) for at, value in busy)]
    rows += [CounterRow(at * SECOND, "learner", {"rss_bytes": number}) for at, number in ((0, 100), (2, 300))]

    tracks = {
        track.name: (track.unit, track.samples) for track in counter_tracks(sorted(rows, key=lambda row: row.at_ns))
    }

    assert tracks["host: cpu_busy_s per second"] == ("s/s", [(0, 2.0), (9 * SECOND, 1.0)])
    assert tracks["learner: rss_bytes"] == ("bytes", [(0, 100), (2 * SECOND, 300)])


def test_what_was_not_read_has_a_reason_and_no_zero() -> None:
    rows = [
        CounterRow(5, "gpu0", {"utilisation": None, "power_w": 70.0}, {"utilisation": "MIG is on"}),
        CounterRow(9, "gpu0", {"utilisation": None, "power_w": None}, {"utilisation": "MIG is on", "power_w": "lost"}),
    ]

    missing, power = counter_tracks(rows)

    assert (power.name, power.unit, power.samples) == ("gpu0: power_w", "W", [(5, 70.0)])
    assert missing.name == "counters of gpu0"
    assert missing.flags == [Slice(5, 5, "not read", "missing", {"power_w": "lost", "utilisation": "MIG is on"})]


def spans(text: str) -> list[Span]:
    """Return spans written as ``lane stage start end step version``."""
    words = (each.split() for each in text.split("|"))
    return [Span(lane, Stage(stage), *map(int, numbers)) for lane, stage, *numbers in words]


ONE_STEP = spans(
    "learner weight_publish 0 2 0 0 | generator weight_transfer 2 3 0 0 | generator weight_load 3 4 0 0 |"
    "generator generate 5 9 0 0 | scorer score 9 10 0 0 | learner update 11 19 0 0 |"
    "learner weight_publish 20 22 1 1 | generator weight_transfer 22 23 1 1 | generator weight_load 23 24 1 1 |"
    "generator evaluate 24 30 1 1"
)
ITS_CHAINS = {"rollouts": [[3, 4, 5]], "weights": [[0, 2, 3], [5, 6, 8, 9]]}


def linked(spans: list[Span]) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for name, chain in chains(spans, True):
        found.setdefault(name, []).append(chain)
    return found


def test_a_step_of_a_synchronous_run_is_one_story_whatever_the_order_of_the_file() -> None:
    assert linked(ONE_STEP) == ITS_CHAINS
    order = random.Random(0).sample(range(len(ONE_STEP)), len(ONE_STEP))
    shuffled = linked([ONE_STEP[place] for place in order])
    assert {name: [[order[at] for at in chain] for chain in found] for name, found in shuffled.items()} == ITS_CHAINS


def test_arrows_are_numbered_and_each_begins_and_ends_once() -> None:
    stops = {place: {(name, phase) for name, _, phase in found} for place, found in arrows(ONE_STEP, True).items()}

    assert stops == {
        0: {("weights", "s")},
        2: {("weights", "t")},
        3: {("weights", "f"), ("rollouts", "s")},  # the way of version 0 ends here, the rollouts begin here
        4: {("rollouts", "t")},
        5: {("rollouts", "f"), ("weights", "s")},
        6: {("weights", "t")},
        8: {("weights", "t")},
        9: {("weights", "f")},
    }
    assert {number for found in arrows(ONE_STEP, True).values() for _, number, _ in found} == {1, 2, 3}


CASES: dict[str, tuple[str, dict[str, list[list[int]]]]] = {
    "shards of a step are scored in the order in which they end": (
        "generator0 generate 0 9 4 4 | generator1 generate 0 5 4 4 |"
        "scorer score 10 11 4 4 | scorer score 11 12 4 4 | learner update 12 20 4 4",
        {"rollouts": [[1, 2, 4], [0, 3, 4]]},
    ),
    "of attempts on parts that died the last one counts": (
        "generator generate 0 4 0 0 | generator generate 6 9 0 0 | scorer score 10 11 0 0",
        {"rollouts": [[1, 2]]},
    ),
    "rollouts that nobody scored": ("generator generate 0 4 0 0", {}),
    "scores of rollouts that nobody generated": ("scorer score 0 4 0 0", {}),
    "each Generator takes a version along its own arrow, to the first use of it": (
        "learner update 0 10 2 2 | learner weight_publish 11 12 3 3 | generator1 weight_load 13 14 3 3 |"
        "generator0 weight_load 15 16 3 3 | generator0 generate 17 20 4 3 | generator0 generate 21 25 5 3",
        {"weights": [[0, 1, 2], [0, 1, 3, 4]]},
    ),
    "weights that arrive during a batch lead to the next one": (
        "learner weight_publish 0 1 1 1 | generator generate 0 10 1 0 |"
        "generator weight_load 4 5 1 1 | generator generate 11 20 2 1",
        {"weights": [[0, 2, 3]]},
    ),
    "a version that nobody took": ("learner update 0 10 2 2 | learner weight_publish 11 12 3 3", {"weights": [[0, 1]]}),
    "an arrow has two ends": ("learner weight_publish 11 12 3 3", {}),
    "an arrow leads forward in time: no load as the publish begins, as on a virtual clock, no score before its batch": (
        "learner update 0 10 0 0 | learner weight_publish 10 10 1 1 | generator weight_load 10 10 1 1 |"
        "generator generate 11 12 1 1 | scorer score 5 6 1 1",
        {"weights": [[0, 1, 3]]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_arrows(case: str) -> None:
    text, expected = CASES[case]
    assert linked(spans(text)) == expected
