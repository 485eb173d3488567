"""The figures of a run, against arithmetic; the growth of KL against series of known shape."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from harness.compare import RunFigures, run_figures, seconds_to_reward
from harness.compare.figures import SingleSteps, StageFigures, Window
from harness.compare.kl import correlation, growth
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics
from harness.results import Run, RunFolder, StepRow, TailRow, load_run, store_metrics

Make = Callable[..., RunFolder]
EVALUATIONS = {0: (0.2, 12.0), 2: (0.6, 20.0), 4: (0.5, 18.0)}


def _metrics(step: int) -> Metrics:
    return {
        "clip_fraction": Metric([0.0, 0.1, 0.3, 0.1][step], count=[100, 100, 100, 300][step]),
        "grad_norm": Metric([1.0, 2.0, 50.0, 3.0][step]),
        "perf/throughput_total": Metric([100.0, 400.0, 200.0, 300.0][step]),
        "loss": Metric(math.nan if step == 2 else 0.5, count=64),
        "kl/reference_k3": Metric(0.01 * (step + 1), count=100),
    }


def test_step_and_stage_times_are_means_over_the_measured_window(make_run: Make) -> None:
    run = load_run(make_run(evaluations=EVALUATIONS, metrics=_metrics, gap_s=0.25).folder)
    figures = run_figures(run)
    # rows: 1 + 1 + 0.25 (evaluation before the first step), 1.25 + 1 (after step 2), 1.25, 1.25 + 1
    assert [row.wall_s for row in run.steps] == [2.25, 2.25, 1.25, 2.25]
    assert figures.window == Window(first=2, last=3, steps=2, all_steps=4, seconds=3.5)  # the first two are warm-up
    assert (figures.step_s, figures.loop_s) == (1.75, 8.0)
    assert (figures.median_step_s, figures.single_steps) == (1.75, SingleSteps(1.35, 1.75, 2.15))
    generate, evaluate = figures.stages[Stage.GENERATE], figures.stages[Stage.EVALUATE]
    assert (generate.mean_s, generate.steps) == (pytest.approx(0.3, abs=1e-9), 2)
    assert generate.total_s == pytest.approx(1.2, abs=1e-12)
    assert generate.share == pytest.approx(0.6 / 3.5, abs=1e-9)
    assert (evaluate.mean_s, evaluate.steps) == (pytest.approx(0.5, abs=1e-9), 1)
    assert (evaluate.total_s, evaluate.share) == (3.0, pytest.approx(1 / 3.5, abs=1e-9))
    assert figures.all_stages.total_s == pytest.approx(7.0, abs=1e-12)  # 4 steps and 3 evaluations of 1 s
    assert figures.all_stages.mean_s == pytest.approx(1.5, abs=1e-9)


def test_stages_waits_and_the_rest_add_up_to_the_step(make_run: Make) -> None:
    """Lanes that take turns: their stages and the gap of 0.25 s; each lane alone: its stages, waits and the gap."""
    figures = run_figures(load_run(make_run(evaluations=EVALUATIONS, gap_s=0.25).folder))
    assert figures.step_s is not None
    work = sum(stage.mean_s for name, stage in figures.stages.items() if not name.is_wait)
    assert work + 0.25 == pytest.approx(figures.step_s, abs=1e-9)
    for account in figures.lanes.values():
        assert account.wall_ns == 3_500_000_000
        assert sum(account.stages_ns.values()) + account.unattributed_ns == 3_500_000_000
        assert account.unattributed_ns == 500_000_000
    for stage, found in figures.stages.items():
        in_lanes = sum(account.stages_ns.get(stage, 0) for account in figures.lanes.values())
        assert found.mean_s == pytest.approx(in_lanes / 2e9, abs=1e-9)


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
    figures = run_figures(load_run(run.folder))
    assert figures.stages[Stage.GENERATE].mean_s == pytest.approx(0.8, abs=1e-12)
    assert figures.stages[Stage.WEIGHT_LOAD].mean_s == pytest.approx(0.2, abs=1e-12)
    assert figures.lanes["generator"].stages_ns == {Stage.GENERATE: 1_600_000_000, Stage.WEIGHT_LOAD: 400_000_000}
    assert figures.series is not None
    assert figures.series.stages_s[Stage.GENERATE] == pytest.approx((0.8,) * 4, abs=1e-12)


def stage_totals(run: RunFigures) -> dict[Stage, float]:
    return {stage: figures.total_s for stage, figures in run.stages.items()}


def test_stage_totals_equal_the_spans_after_start_up(make_run: Make) -> None:
    run = load_run(make_run(evaluations=EVALUATIONS).folder)
    from_spans: dict[Stage, int] = {}
    for span in run.spans():
        from_spans[span.stage] = from_spans.get(span.stage, 0) + span.end_ns - span.start_ns
    del from_spans[Stage.STARTUP]
    assert stage_totals(run_figures(run)) == pytest.approx(
        {stage: ns / 1e9 for stage, ns in from_spans.items()}, abs=1e-8
    )


def test_what_ended_after_the_last_step_counts_in_the_totals(make_run: Make) -> None:
    run = make_run(status="running")
    run.append(TailRow(wall_s=1.0, elapsed_s=5.0, lanes={"learner": {"checkpoint": 0.75}}))
    run.flush()
    figures = run_figures(load_run(run.folder))
    checkpoint = figures.stages[Stage.CHECKPOINT]
    assert checkpoint == StageFigures(mean_s=0.0, steps=0, share=0.0, total_s=0.75)  # after the measured window


def test_rewards_metrics_and_health(make_run: Make) -> None:
    run = load_run(make_run(evaluations=EVALUATIONS, metrics=_metrics, optimizer_steps=4).folder)
    figures = run_figures(run)
    assert figures.first is not None
    assert figures.best is not None
    assert figures.last is not None
    assert (figures.first.reward, figures.best.reward, figures.best.step, figures.last.reward) == (0.2, 0.6, 2, 0.5)
    assert (figures.first.length, figures.last.length, figures.last.prompts) == (12.0, 18.0, 256)
    assert figures.optimizer_steps == 16
    assert figures.throughput == pytest.approx((200 * 1 + 300 * 2) / 3)  # tokens of the last two steps, of 1 s and 2 s
    assert figures.grad_norm == 2.5
    assert figures.grad_norm_peak == (50.0, 2)
    # (0 * 100 + 0.1 * 100 + 0.3 * 100 + 0.1 * 300) / 600: weighted by the tokens counted
    assert figures.mean("clip_fraction") == pytest.approx(70 / 600, abs=1e-12)
    assert figures.at_end("kl/reference_k3") == 0.04
    assert figures.non_finite == {"loss": 1}
    assert figures.mean("loss") == 0.5
    assert figures.mean("absent") is None


@pytest.mark.parametrize(("target", "seconds"), [(0.2, 1.0), (0.21, 4.0), (0.6, 4.0), (0.61, None)])
def test_seconds_to_a_reward_are_those_of_the_first_evaluation_that_has_it(
    make_run: Make, target: float, seconds: float | None
) -> None:
    # evaluation 1 s, two steps of 1 s, evaluation 1 s
    assert seconds_to_reward(load_run(make_run(evaluations=EVALUATIONS).folder), target) == seconds


def test_an_interrupted_run_has_figures_for_what_it_did(make_run: Make) -> None:
    figures = run_figures(load_run(make_run(steps=2, status="interrupted", evaluations={0: (0.2, 12.0)}).folder))
    assert (figures.status, figures.steps, figures.planned_steps, figures.loop_s) == ("interrupted", 2, 4, 3.0)
    assert figures.seconds_to_target is None


def test_a_run_without_a_step_has_no_step_time(make_run: Make) -> None:
    figures = run_figures(load_run(make_run(steps=0, status="failed").folder))
    assert (figures.step_s, figures.throughput, figures.loop_s, figures.first) == (None, None, 0.0, None)
    assert figures.stages == {}


def test_spans_cut_from_a_lane_do_not_change_the_totals(make_run: Make) -> None:
    folder = make_run().folder
    before = stage_totals(run_figures(load_run(folder)))
    (folder / "spans.jsonl").unlink()
    assert stage_totals(run_figures(load_run(folder))) == before  # they come from steps.jsonl


SECONDS = (9.0, 4.0, 1.0, 8.0, 3.0, 2.0, 1.5)  # of the steps that follow


def _write_flagged(make_run: Make, warmup: tuple[int, ...], profiled: tuple[int, ...]) -> Run:
    """Write seven steps, of which number 4 has an evaluation."""
    run, elapsed_s = make_run(steps=0, status="running"), 0.0
    for step, seconds in enumerate(SECONDS):
        elapsed_s += seconds
        lanes = {"learner": {"update": seconds / 2}} | ({"generator": {"evaluate": 1.0}} if step == 4 else {})
        row = {"step": step, "version": step + 1, "wall_s": seconds, "elapsed_s": elapsed_s, "lanes": lanes}
        flags = {"warmup": step in warmup, "profiled": step in profiled}
        metrics = {"perf/throughput_total": Metric(10.0 / seconds)}
        run.append(StepRow(**row, **flags, optimizer_steps=1, metrics=store_metrics(metrics)))
    run.flush()
    return load_run(run.folder)


def test_warm_up_and_profiled_steps_are_in_no_mean_and_in_every_total(make_run: Make) -> None:
    figures = run_figures(_write_flagged(make_run, warmup=(0, 1), profiled=(1, 3)))
    assert (figures.steps, figures.warmup_steps, figures.profiled_steps, figures.measured_steps) == (7, 1, 2, 4)
    # steps 2, 4, 5 and 6 are left: 1, 3, 2 and 1.5 s; step 4 with its evaluation
    assert (figures.step_s, figures.median_step_s) == (7.5 / 4, 1.75)
    update = figures.stages[Stage.UPDATE]  # 0.5, 1.5, 1.0 and 0.75 s
    assert (update.mean_s, update.steps, update.total_s, update.share) == (3.75 / 4, 4, 14.25, 0.5)
    assert figures.throughput == pytest.approx(40 / 7.5, abs=1e-12)  # ten tokens in each of these steps
    assert figures.optimizer_steps == 7


def test_the_series_holds_every_step(make_run: Make) -> None:
    series = run_figures(_write_flagged(make_run, warmup=(0, 1), profiled=(1, 3))).series
    assert series is not None
    assert (series.steps, series.wall_s) == (tuple(range(7)), SECONDS)
    assert series.stages_s[Stage.UPDATE] == (4.5, 2.0, 0.5, 4.0, 1.5, 1.0, 0.75)
    assert series.stages_s[Stage.EVALUATE] == (0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    assert series.warmup == (True, True, False, False, False, False, False)
    assert series.profiled == (False, True, False, True, False, False, False)
    measured = series.measured()
    assert (measured.steps, measured.wall_s, measured.step_s) == ((2, 4, 5, 6), (1.0, 3.0, 2.0, 1.5), 7.5 / 4)
    assert measured.stages_s == {Stage.UPDATE: (0.5, 1.5, 1.0, 0.75), Stage.EVALUATE: (0.0, 1.0, 0.0, 0.0)}


def test_without_flags_the_first_two_steps_are_warm_up_in_figures_and_verdicts(make_run: Make) -> None:
    """Failed before: tables counted the first steps of an older run, and its verdicts did not."""
    figures = run_figures(_write_flagged(make_run, warmup=(), profiled=(5,)))
    assert figures.series is not None
    assert figures.series.measured().steps == (2, 3, 4, 6)
    assert (figures.warmup_steps, figures.step_s) == (2, (1.0 + 8.0 + 3.0 + 1.5) / 4)


def test_where_every_step_is_warm_up_all_of_them_count(make_run: Make) -> None:
    figures = run_figures(_write_flagged(make_run, warmup=tuple(range(7)), profiled=()))
    assert (figures.measured_steps, figures.step_s) == (7, 28.5 / 7)
    assert figures.series is not None
    assert figures.series.measured().steps == tuple(range(7))


def test_only_a_full_reading_has_the_series(make_run: Make) -> None:
    run = load_run(make_run(evaluations=EVALUATIONS).folder)
    full, brief = run_figures(run), run_figures(run, brief=True)
    assert full.series is not None
    assert brief.series is None
    assert (brief.step_s, brief.single_steps, brief.window) == (full.step_s, full.single_steps, full.window)
    assert run_figures(load_run(make_run(arm="none", steps=0, status="failed").folder)).series is None


def test_metrics_of_every_reduction_are_combined_over_the_steps_that_have_them(make_run: Make) -> None:
    def metrics(step: int) -> Metrics:
        found = {
            "mean": Metric(float(step), count=step + 1),
            "sum": Metric(2.0, "sum", 5),
            "max": Metric(math.inf if step == 1 else 10.0 - step, "max", 3),
            "min": Metric(10.0 - step, "min", 3),
            "never": Metric(math.nan),
        }
        return found | ({"late": Metric(7.0, count=2)} if step == 3 else {})

    figures = run_figures(load_run(make_run(metrics=metrics).folder))
    # (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10 = 2; without the infinite one the highest is the first
    assert figures.metrics == {
        "mean": Metric(2.0, "mean", 10),
        "sum": Metric(8.0, "sum", 20),
        "max": Metric(10.0, "max", 9),
        "min": Metric(7.0, "min", 12),
        "late": Metric(7.0, "mean", 2),
    }
    assert figures.last_metrics["max"] == Metric(7.0, "max", 3)
    assert figures.non_finite == {"max": 1, "never": 4}
    assert (figures.at_end("late"), figures.at_end("never"), figures.mean("never")) == (7.0, None, None)


def test_a_metric_that_changes_its_reduction_is_an_error(make_run: Make) -> None:
    run = load_run(make_run(metrics=lambda step: {"tokens": Metric(1.0, "sum" if step else "mean")}).folder)
    with pytest.raises(UserError, match="the metric 'tokens' changes its reduction within the run"):
        run_figures(run)


STEPS = list(range(40))


@pytest.mark.parametrize(
    ("values", "shape", "fastest"),
    [
        ([0.5 * step for step in STEPS], "grows about linearly", None),
        ([math.exp(0.1 * step) for step in STEPS], "grows exponentially", 36.0),  # the middle of 32 to 39
        ([1 - math.exp(-0.1 * step) for step in STEPS], "levels off", 4.0),  # of 0 to 7
        (
            [0.001 * step + 0.01 * min(7, max(0, step - 20)) for step in STEPS],
            "grows exponentially",
            24.0,
        ),  # of 20 to 27
        ([3 - 0.5 * step for step in STEPS], "falls over the run", None),
        ([math.exp(-0.1 * step) for step in STEPS], "falls over the run", None),
        ([float(step % 2) for step in STEPS], "shows no clear trend", None),
    ],
)
def test_growth_names_the_shape_and_the_step_of_fastest_growth(
    values: list[float], shape: str, fastest: float | None
) -> None:
    found = growth(STEPS, values)
    assert found is not None
    assert (found[0], found[2]) == (shape, fastest)


def test_growth_says_how_much_the_shape_explains() -> None:
    # exp(0.1 step) over 39 steps is exp(3.9 s): the nearest curvatures tried are 3.75 and 4.0
    found = growth(STEPS, [math.exp(0.1 * step) for step in STEPS])
    assert found is not None
    assert found[1] == pytest.approx(1, abs=1e-3)
    # 400,000 points are averaged over 240 equal parts: the middle of the last 48 of them, 216 parts of 1667 from 0
    found = growth(range(400_000), [math.exp(1e-5 * step) for step in range(400_000)])
    assert found is not None
    assert found[1:] == pytest.approx((1, 216.5 * 400_000 / 240), rel=1e-3)


def test_growth_says_nothing_of_few_or_constant_points() -> None:
    assert growth(range(7), [float(step) for step in range(7)]) is None
    assert growth(range(10), [2.0] * 10) is None
    assert growth(range(960), [0.0, 1.0] * 480) is None  # as averages of neighbours are


def test_correlation_is_pearsons_with_fishers_interval() -> None:
    # deviations (-1.5 -.5 .5 1.5) and (-1 -1 0 2): products 1.5 + .5 + 0 + 3 = 5, squares 5 and 6: 5 / sqrt(30) =
    # 0.9129; atanh of it is 1.5445, and 1.96 / sqrt(4 - 3) = 1.96: tanh(-0.4155) and tanh(3.5045)
    found = correlation([1, 2, 3, 4], [1, 1, 2, 4])
    assert found == pytest.approx((5 / math.sqrt(30), -0.3931, 0.9982), abs=1e-4)
    assert correlation([1, 2, 3, 4], [2, 4, 6, 8]) == pytest.approx((1.0, 1.0, 1.0))
    assert correlation([1, 2, 3], [1, 2, 3]) is None
    assert correlation([1, 2, 3, 4], [5, 5, 5, 5]) is None


def test_kl_is_paired_with_the_reward_of_the_same_version(make_run: Make) -> None:
    # KL of steps 0..3 is 0, 1, 0, 1; rewards of versions 0..4 are 0.2, 0.4, 0.2, 0.4, 0.9: version 4 has no step
    rewards = {0: 0.2, 1: 0.4, 2: 0.2, 3: 0.4, 4: 0.9}
    run = make_run(
        evaluations={version: (reward, 12.0) for version, reward in rewards.items()},
        metrics=lambda step: {"kl/reference_k3": Metric(float(step % 2), count=100)},
    )
    kl = run_figures(load_run(run.folder)).kl
    assert kl is not None
    assert kl.endswith("correlation with validation reward +1.00 (95% interval +1.00 to +1.00) over 4 evaluations")
