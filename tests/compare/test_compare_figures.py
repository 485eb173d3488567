"""The figures of a run, against arithmetic."""

import math
from collections import Counter

import numpy as np
import pytest

from harness.compare.experiment import member_of
from harness.compare.judging import judgements
from harness.compare.run_frame import RAN, TIMING, TOTAL, BlockedTime, blocked_time
from harness.compare.stats.verdicts import Verdict
from harness.compare.steadiness import MARK, mark, steadiness_notes, step_ratio, uneven_sentence, warm_up_reasons
from harness.core.errors import UserError
from harness.core.trace import Span, Stage
from harness.core.types import Metric
from harness.results import TailRow, WarmUp, load_run
from harness.results.frames import Column, read_table
from harness.results.occupancy import loop_window
from tests.messages import facts
from tests.stand_ins.members import made_experiment, made_run

EVALUATIONS = {0: (0.2, 12.0), 2: (0.6, 20.0), 4: (0.5, 18.0)}


def read(folder):
    return member_of(read_table(folder))


def some(member, *names):
    return {name: member.figures.get(name) for name in names}


def totals(member):
    return {name: value for name, value in member.figures.items() if name.startswith(TOTAL)}


def _metrics(step):
    return {
        "clip_fraction": Metric([0.0, 0.1, 0.3, 0.1][step], count=[100, 100, 100, 300][step]),
        "grad_norm": Metric([1.0, 2.0, 50.0, 3.0][step]),
        "perf/throughput_total": Metric([100.0, 400.0, 200.0, 300.0][step]),
        "loss": Metric(math.nan if step == 2 else 0.5, count=64),
        "kl/reference_k3": Metric(0.01 * (step + 1), count=100),
    }


def test_step_and_stage_times_are_means_over_the_measured_window(make_run):
    member = read(make_run(evaluations=EVALUATIONS, gap_s=0.25).folder)
    # rows: 1 + 1 + 0.25 (evaluation before the first step), 1.25 + 1 (after step 2), 1.25, 1.25 + 1
    assert member.table.wall_s.tolist() == [2.25, 2.25, 1.25, 2.25]
    expected = {"first_measured": 2, "last_measured": 3, "measured_steps": 2, "steps": 4, "loop_s": 8.0}
    expected |= {"step_s": 1.75, "median_step_s": 1.75, "step_s_p10": 1.35, "step_s_p90": 2.15}  # of 1.25 and 2.25 s
    expected |= {TIMING + "generate": 0.3, RAN + "generate": 2, TOTAL + "generate": 1.2}
    expected |= {TIMING + "evaluate": 0.5, RAN + "evaluate": 1, TOTAL + "evaluate": 3.0, "stages_s": 1.5}
    assert some(member, *expected) == pytest.approx(expected, abs=1e-9)
    assert sum(value for name, value in totals(member).items() if "wait" not in name) == pytest.approx(7.0)


def test_stage_totals_equal_the_spans_after_start_up_with_and_without_them(make_run):
    folder = make_run(evaluations=EVALUATIONS).folder
    from_spans = Counter[str]()
    for span in load_run(folder).spans():
        from_spans[TOTAL + span.stage] += (span.end_ns - span.start_ns) / 1e9
    del from_spans[TOTAL + Stage.STARTUP]
    with_spans = totals(read(folder))
    (folder / "spans.jsonl").unlink()
    assert with_spans == pytest.approx(from_spans, abs=1e-8)
    assert totals(read(folder)) == pytest.approx(from_spans, abs=1e-8)  # from steps.jsonl


def test_what_ended_after_the_last_step_counts_in_the_totals(make_run):
    """A checkpoint after the measured window, an evaluation as a part of the last step."""
    for stage, lane, mean, ran in (("checkpoint", "learner", 0.0, 0), ("evaluate", "generator", 0.375, 1)):
        run = make_run(arm=stage, status="running")
        run.append(TailRow(wall_s=1.0, elapsed_s=5.0, lanes={lane: {stage: 0.75}}))
        run.flush()
        if stage == "evaluate":
            (run.folder / "spans.jsonl").unlink()
        expected = {TIMING + stage: mean, RAN + stage: ran, TOTAL + stage: 0.75}
        assert some(read(run.folder), *expected) == expected


def test_rewards_metrics_and_health(make_run):
    member = read(make_run(evaluations=EVALUATIONS, metrics=_metrics, optimizer_steps=4).folder)
    expected = {"reward_first": 0.2, "reward_best": 0.6, "reward_best_step": 2, "reward_last": 0.5}
    expected |= {"length_first": 12.0, "length_last": 18.0, "prompts": 256, "optimizer_steps": 16}
    expected |= {"tokens_per_s": (200 * 1 + 300 * 2) / 3}  # tokens of the last two steps, of 1 s and 2 s
    expected |= {"grad_norm": 2.5, "grad_norm_peak": 50.0, "grad_norm_peak_step": 2}
    # (0 * 100 + 0.1 * 100 + 0.3 * 100 + 0.1 * 300) / 600: weighted by the tokens counted
    expected |= {"clip_fraction": 70 / 600, "kl/reference_k3": 0.04, "mean/loss": 0.5, "mean/absent": None}
    assert some(member, *expected) == pytest.approx(expected)
    assert member.table.metrics["loss"].non_finite == 1


def test_seconds_to_a_reward_are_those_of_the_first_evaluation_that_has_it():
    names = ("seconds_to_target", "target_step", "target_within")
    targets = {0.2: (0.0, 0, None), 0.21: (2.0, 2, 2), 0.6: (2.0, 2, 2), 0.61: (None, None, None)}
    for target, expected in targets.items():
        member = made_run(evaluations=EVALUATIONS, settings={"reward_target": target})
        assert tuple(member.figures.get(name) for name in names) == expected
    simulated = made_run(evaluations=EVALUATIONS, settings={"reward_target": 0.2}, simulated="abacus")
    assert some(simulated, "reward_target", "target_step") == {"reward_target": None, "target_step": None}


def test_a_run_that_was_cut_short_has_figures_for_what_it_did(make_run):
    cut = read(make_run(steps=2, status="interrupted", evaluations={0: (0.2, 12.0)}).folder)
    expected = {"status": "interrupted", "steps": 2, "planned_steps": 4, "loop_s": 3.0}
    expected |= {"reward_last": 0.2, "seconds_to_target": None, "reward_final": None}
    assert (some(cut, *expected), bool(totals(cut))) == (expected, True)
    nothing = read(make_run(arm="b", steps=0, status="failed").folder)
    expected = {"step_s": None, "tokens_per_s": None, "loop_s": 0.0, "reward_first": None, "measured_steps": 0}
    assert (some(nothing, *expected), totals(nothing)) == (expected, {})


def test_tokens_that_one_step_lacks_are_those_of_the_throughput():
    """100 tokens in a step are known of three steps of 1 s; 10, 20, 30 and 40 a second of all four."""
    tokens = Column(np.array([100.0, np.nan, 100.0, 100.0]), np.array([1.0, 0.0, 1.0, 1.0]), "sum")
    rates = [10.0, 20.0, 30.0, 40.0]
    assert made_run(metrics={"response_tokens": tokens, "perf/throughput_total": rates}).figures["tokens_per_s"] == 25.0


SECONDS = (9.0, 4.0, 1.0, 8.0, 3.0, 2.0, 1.5)  # of the steps that follow


def test_warm_up_and_profiled_steps_are_in_no_mean_and_in_every_total():
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


def test_a_brief_reading_has_the_times_and_rewards_of_a_full_one(make_run):
    folder = make_run(evaluations=EVALUATIONS, metrics=_metrics).folder
    full, brief = read(folder), member_of(read_table(folder, with_metrics=False), with_spans=False)
    assert (brief.table.metrics, brief.times) == ({}, None)
    names = ("step_s", "median_step_s", "first_measured", "measured_steps", "reward_last", "loop_s", "stages_s")
    assert some(brief, *names) == pytest.approx(some(full, *names))


def test_metrics_of_every_reduction_are_combined_over_the_steps_that_have_them(make_run):
    def metrics(step):
        every = {
            "mean": Metric(float(step), count=step + 1),
            "sum": Metric(2.0, "sum", 5),
            "max": Metric(math.inf if step == 1 else 10.0 - step, "max", 3),
            "min": Metric(10.0 - step, "min", 3),
            "never": Metric(math.nan),
        }
        return every | ({"late": Metric(7.0, count=2)} if step == 3 else {})

    columns = read_table(make_run(metrics=metrics).folder).metrics
    # (combined, last, not finite); (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10 = 2; without the infinite one the highest is
    # the first
    assert {name: (column.combined, column.last, column.non_finite) for name, column in columns.items()} == {
        "mean": (2.0, 3.0, 0), "sum": (8.0, 2.0, 0), "max": (10.0, 7.0, 1), "min": (7.0, 7.0, 0),
        "never": (None, None, 4), "late": (7.0, 7.0, 0),
    }  # fmt: skip
    assert Column(np.array([0.5, math.nan]), np.ones(2), "mean").last is None
    folder = make_run(arm="b", metrics=lambda step: {"tokens": Metric(1.0, "sum" if step else "mean")}).folder
    with pytest.raises(UserError, match=r"'tokens'.*steps\.jsonl"):
        read_table(folder)


def test_only_waits_that_the_bound_causes_are_held_back():
    def span(lane, start_s, end_s, step, stage=Stage.WAIT_FOR_WEIGHTS):
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


def test_the_window_starts_after_start_up_and_lasts_as_long_as_the_loop():
    spans = [
        Span("learner", Stage.STARTUP, 0, 50, 0, 0),
        Span("generator", Stage.STARTUP, 0, 70, 0, 0),
        Span("learner", Stage.UPDATE, 75, 90, 0, 0),
    ]
    assert loop_window(spans, None) == (70, 90)
    assert loop_window(spans, 1.0) == (70, 1_000_000_070)
    assert loop_window(spans[2:], None) == (75, 90)


# ---- what is said of step times beside their mean

STEPS = 30
FLAT = [0.1] * STEPS


def every(count, times, else_times=1.0):
    """Steps of 0.1 s, of which each ``count``-th takes so many times as long."""
    return [0.1 * (times if step % count == count - 1 else else_times) for step in range(STEPS)]


def test_time_that_few_steps_carry_is_in_the_ratio_of_the_blocks_that_both_have():
    """A ratio of medians would be 1.0 in three of the arms and 0.4 in the last, which is slower in truth."""
    for steps, ratio, of_medians in (
        (every(4, 3.0), (23 + 7 * 3) / 30, 1.0),  # 3, 7, ..., 27
        (every(3, 4.0), (20 + 10 * 4) / 30, 1.0),  # 2, 5, ..., 29
        (every(10, 20.0), (27 + 3 * 20) / 30, 1.0),  # 9, 19, 29
        (every(3, 2.6, 0.4), (20 * 0.4 + 10 * 2.6) / 30, 0.4),
    ):
        experiment = made_experiment(made_run("a", steps=STEPS, wall_s=FLAT), made_run("b", steps=STEPS, wall_s=steps))
        assert step_ratio(experiment, "a", "b") == pytest.approx(ratio)
        assert experiment.mean("b", "step_s") == pytest.approx(0.1 * ratio)
        assert step_ratio(experiment, "a", "b", "median_step_s") == pytest.approx(of_medians)
    times = {"a": (0.1, 0.2), "b": (0.2, 0.8, 9.0)}  # twice and four times: 8 ** 0.5 in the middle
    runs = [made_run(arm, n, block=n, wall_s=each) for arm, walls in times.items() for n, each in enumerate(walls)]
    assert step_ratio(made_experiment(*runs), "a", "b") == pytest.approx(8**0.5)


def test_the_slow_steps_that_carry_much_of_the_time_are_named():
    walls = {"flat": FLAT, "hidden": every(10, 20.0), "evaluated": every(10, 11.0), "many": every(3, 4.0)}
    walls["levels"] = [0.1 if step % 5 < 2 else 0.14 for step in range(STEPS)]  # 1.4 times as long is not slow
    ends = {"evaluated": np.array([1.0 if step % 10 == 9 else 0.0 for step in range(STEPS)])}
    experiment = made_experiment(
        *(
            made_run(arm, steps=STEPS, wall_s=each, stages_s={"evaluate": ends.get(arm, 0.0)})
            for arm, each in walls.items()
        )
    )
    said = {arm: facts(text) for arm in walls if (text := uneven_sentence(experiment, arm))}
    assert said == {
        "hidden": "9 19 29 2.00 0.100 69.0",  # 3 steps of 2 s among 27 of 0.1 s: 6 of 8.7 s
        "many": "2 5 8 11 14 17 4 0.400 0.100 66.7",  # and 4 more: 4 of 6 s
    }
    border = made_experiment(made_run(steps=10, wall_s=[1.0] * 7 + [1.5, 3.0, 3.0]))  # 7.5 of 14.5 s
    assert facts(uneven_sentence(border, "a")) == "7 8 9 2.50 1.00 51.7"


# ---- levels and warm-up


@pytest.mark.parametrize(
    ("warm_up", "word"),
    [(WarmUp(2, False, slow_start=True), "warming up"), (WarmUp(2, None), "too few steps"), (WarmUp(2, False), None)],
)
def test_a_slow_start_and_too_few_steps_get_no_verdict(warm_up, word):
    """An arm that warmed up for half of its steps, equal after, was called different by 6%."""
    runs = [made_run("a", n, block=n) for n in range(10)]
    runs += [made_run("b", n, block=n, wall_s=1.06 + n % 2 / 1000, warm_up=warm_up) for n in range(10)]
    experiment = made_experiment(*runs)
    (judged,) = judgements(experiment)
    verdict, reason = (Verdict.INCONCLUSIVE if word else Verdict.DIFFERENT), judged.step.reason or ""
    assert (judged.step.verdict, facts(reason), (word or "") in reason) == (verdict, "10 10" if word else "", True)
    assert [mark(experiment, arm) for arm in "ab"] == ["", "" if warm_up.steady is None else MARK]
    assert set(steadiness_notes(experiment, ["a", "b"])) <= set(judged.cautions)


def test_single_runs_that_keep_no_level_hold_no_verdict_back():
    """As the weather of a machine makes some of them look; a majority has to start slowly."""
    slow = WarmUp(2, False, slow_start=True)

    def reasons(count, **fields):
        runs = [made_run("b", n, warm_up=slow if n < count else None, **fields) for n in range(10)]
        return [facts(reason) for reason in warm_up_reasons({"a": [made_run("a")], "b": runs})]

    assert (reasons(5), reasons(6), reasons(6, simulated="abacus")) == ([], ["6 10"], [])
