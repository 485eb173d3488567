"""The figures of a run, against arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.compare.experiment import Member, member_of
from harness.compare.run_frame import RAN, TIMING, TOTAL, BlockedTime, blocked_time
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics
from harness.results import RunFolder, StepRow, TailRow, load_run
from harness.results.frames import Column, read_table
from harness.results.occupancy import loop_window
from tests.stand_ins.members import made_run

Make = Callable[..., RunFolder]
EVALUATIONS = {0: (0.2, 12.0), 2: (0.6, 20.0), 4: (0.5, 18.0)}


def read(folder: Path) -> Member:
    return member_of(read_table(folder))


def some(member: Member, *names: str) -> dict[str, Any]:
    return {name: member.figures.get(name) for name in names}


def totals(member: Member) -> dict[str, float]:
    return {name: value for name, value in member.figures.items() if name.startswith(TOTAL)}


def _metrics(step: int) -> Metrics:
    return {
        "clip_fraction": Metric([0.0, 0.1, 0.3, 0.1][step], count=[100, 100, 100, 300][step]),
        "grad_norm": Metric([1.0, 2.0, 50.0, 3.0][step]),
        "perf/throughput_total": Metric([100.0, 400.0, 200.0, 300.0][step]),
        "loss": Metric(math.nan if step == 2 else 0.5, count=64),
        "kl/reference_k3": Metric(0.01 * (step + 1), count=100),
    }


def test_step_and_stage_times_are_means_over_the_measured_window(make_run: Make) -> None:
    member = read(make_run(evaluations=EVALUATIONS, gap_s=0.25).folder)
    # rows: 1 + 1 + 0.25 (evaluation before the first step), 1.25 + 1 (after step 2), 1.25, 1.25 + 1
    assert member.table.wall_s.tolist() == [2.25, 2.25, 1.25, 2.25]
    expected: dict[str, Any] = {"first_measured": 2, "last_measured": 3, "measured_steps": 2, "steps": 4, "loop_s": 8.0}
    expected |= {"step_s": 1.75, "median_step_s": 1.75, "step_s_p10": 1.35, "step_s_p90": 2.15}  # of 1.25 and 2.25 s
    expected |= {TIMING + "generate": 0.3, RAN + "generate": 2, TOTAL + "generate": 1.2}
    expected |= {TIMING + "evaluate": 0.5, RAN + "evaluate": 1, TOTAL + "evaluate": 3.0, "stages_s": 1.5}
    assert some(member, *expected) == pytest.approx(expected, abs=1e-9)
    assert sum(value for name, value in totals(member).items() if "wait" not in name) == pytest.approx(7.0)


def test_a_load_in_flight_counts_once_in_figures_and_lanes(make_run: Make) -> None:
    """Failed before: older rows have it in ``generate`` and in ``weight_load``; the spans set it right."""
    run = make_run(steps=0, status="running")
    for step in range(4):
        start_ns = 2_000_000_000 + step * 1_000_000_000
        spans = [
            Span("generator", Stage.WEIGHT_LOAD, start_ns + 400_000_000, start_ns + 600_000_000, step, step),
            Span("generator", Stage.GENERATE, start_ns, start_ns + 1_000_000_000, step, step),
        ]
        lanes = {"generator": {"weight_load": 0.2, "generate": 1.0}}  # as it was written
        row = {"step": step, "version": step + 1, "wall_s": 1.0, "elapsed_s": step + 1.0, "lanes": lanes}
        run.append(StepRow(**row, optimizer_steps=1, metrics={}))
        run.append_spans(spans)
    run.flush()
    member = read(run.folder)
    assert some(member, "timing_s/generate", "timing_s/weight_load") == pytest.approx(
        {"timing_s/generate": 0.8, "timing_s/weight_load": 0.2}, abs=1e-12
    )
    assert member.times is not None
    assert member.times.lanes["generator"].stages_ns == {
        Stage.GENERATE: 1_600_000_000,
        Stage.WEIGHT_LOAD: 400_000_000,
    }
    assert member.stages_s[Stage.GENERATE].tolist() == pytest.approx([0.8] * 4, abs=1e-12)


def test_stage_totals_equal_the_spans_after_start_up_with_and_without_them(make_run: Make) -> None:
    folder = make_run(evaluations=EVALUATIONS).folder
    from_spans: dict[str, float] = {}
    for span in load_run(folder).spans():
        if span.stage is not Stage.STARTUP:
            name = TOTAL + span.stage
            from_spans[name] = from_spans.get(name, 0.0) + (span.end_ns - span.start_ns) / 1e9
    with_spans = totals(read(folder))
    (folder / "spans.jsonl").unlink()
    assert with_spans == pytest.approx(from_spans, abs=1e-8)
    assert totals(read(folder)) == pytest.approx(from_spans, abs=1e-8)  # from steps.jsonl


def test_what_ended_after_the_last_step_counts_in_the_totals(make_run: Make) -> None:
    run = make_run(status="running")
    run.append(TailRow(wall_s=1.0, elapsed_s=5.0, lanes={"learner": {"checkpoint": 0.75}}))
    run.flush()
    expected = {TIMING + "checkpoint": 0.0, RAN + "checkpoint": 0, TOTAL + "checkpoint": 0.75}
    assert some(read(run.folder), *expected) == expected  # after the measured window
    evaluated = make_run(arm="evaluated", status="running")
    evaluated.append(TailRow(wall_s=1.0, elapsed_s=5.0, lanes={"generator": {"evaluate": 0.75}}))
    evaluated.flush()
    (evaluated.folder / "spans.jsonl").unlink()
    expected = {TIMING + "evaluate": 0.375, RAN + "evaluate": 1, TOTAL + "evaluate": 0.75}  # a part of the last step
    assert some(read(evaluated.folder), *expected) == expected


def test_rewards_metrics_and_health(make_run: Make) -> None:
    member = read(make_run(evaluations=EVALUATIONS, metrics=_metrics, optimizer_steps=4).folder)
    expected: dict[str, Any] = {"reward_first": 0.2, "reward_best": 0.6, "reward_best_step": 2, "reward_last": 0.5}
    expected |= {"length_first": 12.0, "length_last": 18.0, "prompts": 256, "optimizer_steps": 16}
    expected |= {"tokens_per_s": (200 * 1 + 300 * 2) / 3}  # tokens of the last two steps, of 1 s and 2 s
    expected |= {"grad_norm": 2.5, "grad_norm_peak": 50.0, "grad_norm_peak_step": 2}
    # (0 * 100 + 0.1 * 100 + 0.3 * 100 + 0.1 * 300) / 600: weighted by the tokens counted
    expected |= {"clip_fraction": 70 / 600, "kl/reference_k3": 0.04, "mean/loss": 0.5, "mean/absent": None}
    assert some(member, *expected) == pytest.approx(expected)
    assert member.table.metrics["loss"].non_finite == 1


@pytest.mark.parametrize(
    ("target", "seconds", "step", "within"),
    [(0.2, 0.0, 0, None), (0.21, 2.0, 2, 2), (0.6, 2.0, 2, 2), (0.61, None, None, None)],
)
def test_seconds_to_a_reward_are_those_of_the_first_evaluation_that_has_it(
    target: float, seconds: float | None, step: int | None, within: int | None
) -> None:
    expected = {"seconds_to_target": seconds, "target_step": step, "target_within": within}
    settings = {"reward_target": target}
    assert some(made_run(evaluations=EVALUATIONS, settings=settings), *expected) == expected
    simulated = made_run(evaluations=EVALUATIONS, settings=settings, simulated="abacus")
    assert some(simulated, "reward_target", "target_step") == {"reward_target": None, "target_step": None}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"steps": 2, "status": "interrupted", "evaluations": {0: (0.2, 12.0)}},
            {"status": "interrupted", "steps": 2, "planned_steps": 4, "loop_s": 3.0, "reward_last": 0.2}
            | {"seconds_to_target": None, "reward_final": None},
        ),
        (
            {"steps": 0, "status": "failed"},
            {"step_s": None, "tokens_per_s": None, "loop_s": 0.0, "reward_first": None, "measured_steps": 0},
        ),
    ],
)
def test_a_run_that_was_cut_short_has_figures_for_what_it_did(
    make_run: Make, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    member = read(make_run(**fields).folder)
    assert some(member, *expected) == expected
    assert bool(totals(member)) == bool(member.steps)


def test_tokens_that_one_step_lacks_are_those_of_the_throughput() -> None:
    """100 tokens in a step are known of three steps of 1 s; 10, 20, 30 and 40 a second of all four."""
    tokens = Column(np.array([100.0, np.nan, 100.0, 100.0]), np.array([1.0, 0.0, 1.0, 1.0]), "sum")
    rates = [10.0, 20.0, 30.0, 40.0]
    assert made_run(metrics={"response_tokens": tokens, "perf/throughput_total": rates}).figures["tokens_per_s"] == 25.0


SECONDS = (9.0, 4.0, 1.0, 8.0, 3.0, 2.0, 1.5)  # of the steps that follow


def test_warm_up_and_profiled_steps_are_in_no_mean_and_in_every_total() -> None:
    stages = {"update": np.array(SECONDS) / 2, "evaluate": [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]}
    rates = {"perf/throughput_total": 10 / np.array(SECONDS)}
    flags = ("w", "wp", "", "p", "", "", "")
    member = made_run(steps=7, wall_s=SECONDS, stages_s=stages, metrics=rates, flags=flags)
    # steps 2, 4, 5 and 6 are left: 1, 3, 2 and 1.5 s; step 4 with its evaluation; update 0.5, 1.5, 1.0 and 0.75 s
    expected = {"steps": 7, "warmup_steps": 1, "profiled_steps": 2, "measured_steps": 4, "optimizer_steps": 7}
    expected |= {"first_measured": 2, "last_measured": 6, "step_s": 7.5 / 4, "median_step_s": 1.75}
    expected |= {TIMING + "update": 3.75 / 4, RAN + "update": 4, TOTAL + "update": 14.25}
    expected |= {"tokens_per_s": 40 / 7.5}  # ten tokens in each of these steps
    assert some(member, *expected) == pytest.approx(expected, abs=1e-12)
    # where every step is warm-up all of them count
    member = made_run(steps=7, wall_s=SECONDS, flags="wwwwwww")
    assert some(member, "measured_steps", "step_s") == {"measured_steps": 7, "step_s": 28.5 / 7}


def test_a_brief_reading_has_the_times_and_rewards_of_a_full_one(make_run: Make) -> None:
    folder = make_run(evaluations=EVALUATIONS, metrics=_metrics).folder
    full, brief = read(folder), member_of(read_table(folder, with_metrics=False), with_spans=False)
    assert (brief.table.metrics, brief.times) == ({}, None)
    names = ("step_s", "median_step_s", "first_measured", "measured_steps", "reward_last", "loop_s", "stages_s")
    assert some(brief, *names) == pytest.approx(some(full, *names))


def test_metrics_of_every_reduction_are_combined_over_the_steps_that_have_them(make_run: Make) -> None:
    def metrics(step: int) -> Metrics:
        every = {
            "mean": Metric(float(step), count=step + 1),
            "sum": Metric(2.0, "sum", 5),
            "max": Metric(math.inf if step == 1 else 10.0 - step, "max", 3),
            "min": Metric(10.0 - step, "min", 3),
            "never": Metric(math.nan),
        }
        return every | ({"late": Metric(7.0, count=2)} if step == 3 else {})

    table = read_table(make_run(metrics=metrics).folder)
    # (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10 = 2; without the infinite one the highest is the first
    combined = {"mean": 2.0, "sum": 8.0, "max": 10.0, "min": 7.0, "never": None, "late": 7.0}
    assert {name: column.combined for name, column in table.metrics.items()} == combined
    last = {"mean": 3.0, "sum": 2.0, "max": 7.0, "min": 7.0, "never": None, "late": 7.0}
    assert {name: column.last for name, column in table.metrics.items()} == last
    assert Column(np.array([0.5, math.nan]), np.ones(2), "mean").last is None
    assert {name: each for name, column in table.metrics.items() if (each := column.non_finite)} == {
        "max": 1, "never": 4,
    }  # fmt: skip
    folder = make_run(arm="b", metrics=lambda step: {"tokens": Metric(1.0, "sum" if step else "mean")}).folder
    with pytest.raises(UserError, match=r"the metric 'tokens' changes its reduction within steps\.jsonl"):
        read_table(folder)


def test_only_waits_that_the_bound_causes_are_held_back() -> None:
    def span(lane: str, start_s: int, end_s: int, step: int, stage: Stage = Stage.WAIT_FOR_WEIGHTS) -> Span:
        return Span(lane, stage, start_s * 10**9, end_s * 10**9, step, 0)

    spans = [
        span("generator0", 0, 1, step=0),  # for the first weights
        span("generator0", 2, 3, step=1),  # version 0 is enough for batch 1
        span("generator0", 4, 6, step=2),
        span("generator1", 4, 5, step=2),
        span("generator0", 8, 9, step=4),
        span("generator0", 9, 20, step=5),  # all batches are made
        span("generator0", 7, 8, step=3, stage=Stage.WAIT_FOR_ROOM),
        span("learner", 0, 9, step=3, stage=Stage.WAIT_FOR_BATCH),
    ]
    # batches 2, 3 and 4 need version 1 and later; generator0 waited 2 + 1 s for them, generator1 1 s
    assert blocked_time(spans, max_lag=1, steps=5) == BlockedTime(batches=2, bound_batches=3, seconds=2.0)
    assert blocked_time(spans, max_lag=4, steps=5) == BlockedTime(batches=0, bound_batches=0, seconds=0.0)
    assert blocked_time([], max_lag=1, steps=5) == BlockedTime(0, 3, 0.0)


def test_the_window_starts_after_start_up_and_lasts_as_long_as_the_loop() -> None:
    spans = [
        Span("learner", Stage.STARTUP, 0, 50, 0, 0),
        Span("generator", Stage.STARTUP, 0, 70, 0, 0),
        Span("learner", Stage.UPDATE, 75, 90, 0, 0),
    ]
    assert loop_window(spans, None) == (70, 90)
    assert loop_window(spans, 1.0) == (70, 1_000_000_070)
    assert loop_window(spans[2:], None) == (75, 90)
