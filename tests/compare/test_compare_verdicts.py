"""Verdicts on experiments whose step times are known: which blocks are paired, what is said, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import pytest

from harness.compare import gather
from harness.compare.block_values import BlockSeconds, Primary, paired_runs, paired_seconds
from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.findings import findings
from harness.compare.gates import INCONCLUSIVE, WORSE, gate
from harness.compare.occasions import Baseline
from harness.compare.stats import Verdict
from harness.compare.verdicts import (
    is_same,
    judge_against,
    judgements,
    verdict_sentences,
    verdict_tables,
)
from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.core.types import Metric
from harness.results import RunFolder

SETTINGS = "steps: 6\nreward_target: 0.5\nmax_lag: 0\ngroup_size: 8\n"
OTHER_SETTINGS = SETTINGS.replace("8", "4")
GENERATE, UPDATE = ("generator", Stage.GENERATE), ("learner", Stage.UPDATE)
Make = Callable[..., RunFolder]


def run(make_run: Make, arm: str, block: int, update_s: float, generate_s: float = 0.5, **fields: Any) -> None:
    stages = ((*GENERATE, generate_s), (*UPDATE, update_s))
    settings = fields.pop("settings", OTHER_SETTINGS if arm == "b" else SETTINGS)
    started_at = f"2026-11-20T11:{block:02d}:00.000Z"
    plan = {"arm": arm, "block": block, "seed": block, "steps": 6, "stages": stages, "started_at": started_at}
    make_run(**plan | {"settings": settings} | fields)


def experiment_of(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


def ten_blocks(make_run: Make, factors: Sequence[float], **fields: Any) -> None:
    """Blocks whose weather changes by up to a factor of two, and in which arm b's update takes so much longer."""
    for block, factor in enumerate(factors):
        weather = 1 + block / len(factors)
        run(make_run, "a", block, 0.5 * weather, 0.5 * weather, **fields)
        run(make_run, "b", block, 0.5 * weather * factor, 0.5 * weather, **fields)


def blocks_of(experiment: Experiment) -> list[tuple[BlockSeconds, BlockSeconds]]:
    base, other = experiment.variants
    return paired_seconds(paired_runs(base, other, with_unfinished=True), alternated=True)


def with_seconds(variant: Variant, stage: Stage | None, seconds: tuple[float, ...]) -> Variant:
    """The variant with these seconds of a stage, or of the whole step, in the steps of its only run."""
    (run,) = variant.runs
    assert run.series is not None
    series = (
        replace(run.series, wall_s=seconds)
        if stage is None
        else replace(run.series, stages_s=run.series.stages_s | {stage: seconds})
    )
    return replace(variant, runs=(replace(run, series=series),))


SLOWER = [1.2, 1.22, 1.18, 1.21, 1.19, 1.2, 1.23, 1.17, 1.2, 1.2]


def test_the_weather_cancels_in_blocks_and_the_slower_stage_is_named(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)
    (found,) = judgements(experiment_of(tmp_path))
    # a step takes 0.5 w + 0.5 w f against w: the ratio is (1 + f) / 2 in every block, whatever the weather w
    logs = [log((1 + factor) / 2) for factor in SLOWER]
    mean = sum(logs) / 10
    deviation = sqrt(sum((value - mean) ** 2 for value in logs) / 9)
    # t(0.975, 9), https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    reach = 2.262157 * deviation / sqrt(10) * found.step.widening
    assert (found.base, found.other, found.alternated, found.step.blocks) == ("a", "b", True, 10)
    assert found.step.ratio == pytest.approx(exp(mean), rel=1e-6)
    assert found.step.low == pytest.approx(exp(mean - reach), rel=1e-5)
    assert found.step.high == pytest.approx(exp(mean + reach), rel=1e-5)
    verdicts = {effect.name: effect.verdict for effect in (found.step, *found.stages)}
    assert verdicts == {"step": Verdict.DIFFERENT, "generate": Verdict.EQUIVALENT, "update": Verdict.DIFFERENT}
    different = [effect.name for effect in (found.step, *found.stages) if effect.verdict is Verdict.DIFFERENT]
    assert different == ["step", "update"]
    (sentence,) = verdict_sentences([found])
    assert sentence.startswith("b against a, step time: different, +10.0%, 95% interval +9.")
    assert sentence.endswith("update (+20.0%).")
    assert "generate" not in sentence


def test_lag_against_a_synchronous_arm_that_is_not_the_fastest_is_told(make_run: Make, tmp_path: Path) -> None:
    """Against ``slow`` lag is 40% faster, against ``fast`` 25%; ``slow`` first, then ``fast`` as the baseline."""
    settings = {"slow": SETTINGS, "fast": OTHER_SETTINGS, "lag1": SETTINGS.replace("max_lag: 0", "max_lag: 1")}
    for block in range(8):
        for arm, update_s in (("slow", 0.5), ("fast", 0.3 + block / 1000), ("lag1", 0.1 + block / 1000)):
            run(make_run, arm, block, update_s, settings=settings[arm], position=list(settings).index(arm))
    told = {item.other: item.cautions for item in judgements(experiment_of(tmp_path))}
    (caution,) = told["lag1"]
    assert caution.startswith("fast is synchronous too, and faster than slow (-19.7%)")  # (0.5 + 0.3035) / 1
    assert caution.endswith("--baseline fast")
    assert told["fast"] == ()
    against_fast = {item.other: item.cautions for item in judgements(experiment_of(tmp_path), "fast")}
    assert against_fast == {"slow": (), "lag1": ()}


def test_the_table_has_a_row_for_the_step_and_each_stage(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)
    found = judgements(experiment_of(tmp_path))
    (table,) = verdict_tables(found)
    assert table.title == "Verdict: b against a, 10 blocks (the arms took turns by step)"
    assert [row[0] for row in table.rows] == ["whole step", "generate", "update"]
    assert table.rows[1][1:3] == ("1.000", "1.000 to 1.000")
    assert [row[-1] for row in table.rows] == ["different", "equivalent", "different"]
    assert [row[3] for row in table.rows] == ["< 0.001", "1.000", "< 0.001"]
    # the estimate of the correlation and how much it widens the interval stand beside the verdict
    step = found[0].step
    assert f"{step.correlation:+.2f}" in " ".join(table.notes)
    assert f"{step.widening:.2f}" in " ".join(table.notes)


def test_runs_are_paired_by_block_and_a_block_that_one_arm_lacks_is_left_out(make_run: Make, tmp_path: Path) -> None:
    for block in (0, 1, 2):
        run(make_run, "a", block, 0.5 + block)
    for block in (2, 0):
        run(make_run, "b", block, 1.5 + block)
    # generate takes 0.5 s, update 0.5 s more in each block of a, and 1 s more in b
    assert [(before.step, after.step) for before, after in blocks_of(experiment_of(tmp_path))] == [
        (pytest.approx(1.0), pytest.approx(2.0)),
        (pytest.approx(3.0), pytest.approx(4.0)),
    ]


def test_blocks_stand_in_the_order_in_which_they_ran(make_run: Make, tmp_path: Path) -> None:
    for block, started_at in ((0, "2026-11-20T12:00:00.000Z"), (1, "2026-11-20T11:00:00.000Z")):
        for arm in ("a", "b"):
            run(make_run, arm, block, 1.5 + block, started_at=started_at)
    assert [before.step for before, _ in blocks_of(experiment_of(tmp_path))] == pytest.approx([3.0, 2.0])


def test_runs_of_one_block_are_paired_by_their_seed(make_run: Make, tmp_path: Path) -> None:
    for seed in (5, 6):
        run(make_run, "a", 0, 0.5, seed=seed, point={"seed": seed})
        run(make_run, "b", 0, 0.5 * seed, seed=seed, point={"seed": seed})
    blocks = blocks_of(experiment_of(tmp_path))
    ratios = [after.stages[Stage.UPDATE] / before.stages[Stage.UPDATE] for before, after in blocks]
    assert ratios == pytest.approx([5.0, 6.0])


# Factors on the steps of arm b, from the audit of the old code: medians of steps hid this time, or turned its sign.
# Warm-up is steps 0 and 1; of the 40 steps after them each list covers a whole number of rounds.
HIDDEN = {
    "every fourth step 3 times": ((1.0, 1.0, 1.0, 3.0), 1.5),
    "every third step 4 times": ((1.0, 1.0, 4.0), 2.0),
    "every tenth step 20 times": ((*(1.0,) * 9, 20.0), 2.9),
    "two of 0.4, then one of 2.6": ((0.4, 0.4, 2.6), 3.4 / 3),
}


@pytest.mark.parametrize("interleaving", ["step", "run"])
@pytest.mark.parametrize(("factors", "ratio"), HIDDEN.values(), ids=HIDDEN)
def test_time_hidden_in_few_steps_is_part_of_the_verdict_where_the_old_code_missed_it(
    make_run: Make, tmp_path: Path, factors: Sequence[float], ratio: float, interleaving: str
) -> None:
    rounds = 30 // len(factors) * len(factors)
    for block in range(6):
        weather = 1 + 0.01 * (block % 2)
        for arm, pace in (("a", (1.0,)), ("b", factors)):
            run(
                make_run, arm, block, 0.05 * weather, 0.05 * weather, steps=2 + rounds, interleaving=interleaving,
                pace=lambda step, pace=pace: pace[step % len(pace)],
            )  # fmt: skip
    (found,) = judgements(experiment_of(tmp_path), threshold=0.05)
    assert found.step.ratio == pytest.approx(ratio, rel=1e-6)
    assert found.step.verdict is Verdict.DIFFERENT
    assert {effect.name: effect.ratio for effect in found.stages} == {
        "generate": pytest.approx(ratio, rel=1e-6), "update": pytest.approx(ratio, rel=1e-6),
    }  # fmt: skip
    assert gate([found], 0.05).code == WORSE


def test_a_stage_that_only_one_arm_has_is_judged_in_units_of_a_step_where_the_old_code_left_it_out(
    make_run: Make, tmp_path: Path
) -> None:
    # k = 2 has to compute the old log-probs, which k = 1 takes from the update: 0.18 s more in steps of 1 s
    for block, factor in enumerate(SLOWER):
        weather = 1 + block / 10
        stages = ((*GENERATE, 0.5 * weather), (*UPDATE, 0.5 * weather))
        run(make_run, "a", block, 0.0, stages=stages)
        old_logprobs = ("learner", Stage.OLD_LOGPROBS, 0.18 * weather * factor / 1.2)
        run(make_run, "b", block, 0.0, stages=(*stages, old_logprobs))
    experiment = experiment_of(tmp_path)
    (found,) = judgements(experiment)
    effects = {effect.name: effect for effect in found.stages}
    assert list(effects) == ["generate", "old_logprobs", "update"]
    added = effects["old_logprobs"]
    assert (added.of_step, added.verdict, added.threshold) == (True, Verdict.DIFFERENT, 0.03)
    # the factors over 1.2 average to 1: log(1.18) but for their spread
    assert added.ratio == pytest.approx(1.18, abs=1e-3)
    assert found.step.ratio == pytest.approx(added.ratio)  # nothing else differs
    assert "old_logprobs (adds 18.0% of a step)" in verdict_sentences([found])[0]
    (table,) = verdict_tables([found])
    assert [row[0] for row in table.rows] == ["whole step", "generate", "old_logprobs, in steps", "update"]
    (back,) = judgements(experiment, baseline="b")
    saved = next(effect for effect in back.stages if effect.name == "old_logprobs")
    # in units of the steps of b: 0.18 of 1.18 s
    assert saved.ratio == pytest.approx(1 / (1 + 0.18 / 1.18), abs=1e-3)
    assert saved.verdict is Verdict.DIFFERENT
    assert "old_logprobs (saves 15.3% of a step)" in verdict_sentences([back])[0]


def test_the_steps_in_which_a_stage_did_not_run_count_as_nothing_so_that_stages_add_up(
    make_run: Make, tmp_path: Path
) -> None:
    for arm in ("a", "b"):
        run(make_run, arm, 0, 0.5)
    base, other = experiment_of(tmp_path).variants
    # of six steps, the first two are warm-up: 0.2 s in one of the other four
    base, other = (
        with_seconds(variant, Stage.CHECKPOINT, (0.0, 0.0, 0.0, seconds, 0.0, 0.0))
        for variant, seconds in ((base, 0.2), (other, 0.4))
    )
    ((before, after),) = paired_seconds(paired_runs(base, other, with_unfinished=True), alternated=True)
    assert (before.stages[Stage.CHECKPOINT], after.stages[Stage.CHECKPOINT]) == pytest.approx((0.05, 0.1))


@pytest.mark.parametrize(("threshold", "of_stages"), [(0.03, 0.05), (0.2, 0.2)])
def test_a_stage_has_the_steps_threshold_and_five_percent_at_least(
    make_run: Make, tmp_path: Path, threshold: float, of_stages: float
) -> None:
    ten_blocks(make_run, SLOWER)
    (found,) = judgements(experiment_of(tmp_path), threshold=threshold)
    assert found.step.threshold == threshold
    assert [effect.threshold for effect in found.stages] == [of_stages, of_stages]


def test_one_block_has_no_verdict_and_no_table(make_run: Make, tmp_path: Path) -> None:
    run(make_run, "a", 0, 0.5)
    run(make_run, "b", 0, 1.5)
    (found,) = judgements(experiment_of(tmp_path))
    assert found.step.verdict is Verdict.INCONCLUSIVE
    assert (verdict_tables([found]), verdict_sentences([found])) == ([], [])


@pytest.mark.parametrize(("blocks", "verdict"), [(5, Verdict.INCONCLUSIVE), (6, Verdict.DIFFERENT)])
def test_six_blocks_are_the_fewest(make_run: Make, tmp_path: Path, blocks: int, verdict: Verdict) -> None:
    ten_blocks(make_run, SLOWER[:blocks])
    assert judgements(experiment_of(tmp_path))[0].step.verdict is verdict


def test_all_arms_are_corrected_for_together_and_a_twin_of_the_baseline_is_not_among_them(
    make_run: Make, tmp_path: Path
) -> None:
    # one of 3%, whose blocks alternate between +1.4% and +4.6%, beside others without any difference
    for block in range(8):
        sign = 1 if block % 2 else -1
        for arm in ("a", "again", "b", "c", "d"):
            factor = 1.03 * exp(0.032 * sign) if arm == "b" else exp(0.001 * sign)
            settings = SETTINGS if arm in ("a", "again") else f"{SETTINGS}# {arm}\ngroup_size: {ord(arm)}\n"
            settings = settings.replace("group_size: 8\n", "", 1) if arm not in ("a", "again") else settings
            run(make_run, arm, block, 0.5 * factor, 0.5 * factor, settings=settings)
    experiment = experiment_of(tmp_path)
    together = {judgement.other: judgement for judgement in judgements(experiment)}
    assert together["again"].is_noise_floor
    pair = replace(experiment, variants=tuple(item for item in experiment.variants if item.name in ("a", "b")))
    (alone,) = judgements(pair)
    assert alone.step.p == pytest.approx(together["b"].step.p)
    assert alone.step.p is not None
    # one arm has the weight 0.8 of 0.8 + 0.2; three share it
    assert alone.step.p_adjusted == pytest.approx(alone.step.p / 0.8)
    assert together["b"].step.p_adjusted == pytest.approx(3 * alone.step.p / 0.8)


def test_another_endpoint_may_decide_and_the_step_is_then_one_of_the_rest(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)
    values = {"a": 1.0, "b": 2.0}

    def value(run: RunFigures) -> float | None:
        return values[run.manifest.arm or ""] * (1 + 0.01 * ((run.manifest.block or 0) % 2))

    experiment = experiment_of(tmp_path)
    (found,) = judgements(experiment, endpoint=Primary("weight_sync_seconds", 0.1, value))
    assert found.endpoint is found.primary
    assert (found.primary.name, found.primary.threshold) == ("weight_sync_seconds", 0.1)
    assert (found.primary.ratio, found.primary.blocks) == (pytest.approx(2.0), 10)
    assert found.primary.verdict is Verdict.DIFFERENT
    assert [effect.name for effect in found.effects] == ["weight_sync_seconds", "step", "generate", "update"]
    (plain,) = judgements(experiment)
    assert (plain.endpoint, plain.primary) == (None, plain.step)
    assert found.step.ratio == plain.step.ratio
    sentence = verdict_sentences([found])[0]
    assert sentence.startswith("b against a, seconds of a weight sync: different, +100.0%")
    assert "whole step (+10.0%)" in sentence


def test_an_endpoint_that_one_block_lacks_has_no_verdict_from_the_others(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)

    def value(run: RunFigures) -> float | None:
        return None if run.manifest.block == 9 else {"a": 1.0, "b": 2.0}[run.manifest.arm or ""]

    (found,) = judgements(experiment_of(tmp_path), endpoint=Primary("weight_sync_seconds", 0.1, value))
    assert (found.primary.blocks, found.primary.verdict) == (9, Verdict.INCONCLUSIVE)
    assert "1 of 10 blocks" in (found.primary.reason or "")
    assert found.step.verdict is Verdict.DIFFERENT
    assert gate([found], 0.05).code == INCONCLUSIVE


def test_another_arm_can_be_the_baseline(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)
    experiment = experiment_of(tmp_path)
    (found,) = judgements(experiment, baseline="b")
    assert (found.base, found.other) == ("b", "a")
    assert found.step.ratio == pytest.approx(1 / judgements(experiment)[0].step.ratio)
    with pytest.raises(UserError, match=r"has no arm called 'c'[\s\S]*it has a, b"):
        judgements(experiment, baseline="c")


def test_an_arm_of_the_same_settings_is_the_noise_floor(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)
    for block in range(10):
        weather = 1 + block / 10
        run(make_run, "again", block, 0.5 * weather * (1.01 if block % 2 else 1 / 1.01), 0.5 * weather)
    found = {judgement.other: judgement for judgement in judgements(experiment_of(tmp_path))}
    against_b, against_itself = found["b"], found["again"]
    assert against_b.noise_floor is not None
    assert against_b.noise_floor.verdict is Verdict.EQUIVALENT
    assert against_b.noise_floor.ratio == pytest.approx(1.0, abs=1e-3)
    assert against_itself.noise_floor is None  # it is the noise floor


def test_arms_whose_settings_are_unknown_are_no_noise_floor(make_run: Make, tmp_path: Path) -> None:
    run(make_run, "a", 0, 0.5)
    run(make_run, "again", 0, 0.5)
    known = experiment_of(tmp_path).variants
    unknown = [Variant(variant.name, (replace(variant.runs[0], settings={}),)) for variant in known]
    assert is_same(*known)
    assert not is_same(*unknown)


def test_two_commits_are_comparable(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)
    experiment = experiment_of(tmp_path)
    base, other = experiment.variants
    runs = tuple(replace(run, manifest=replace(run.manifest, commit="1234567890abcdef")) for run in other.runs)
    (found,) = judgements(replace(experiment, variants=(base, replace(other, runs=runs))))
    assert found.step.verdict is Verdict.DIFFERENT


def test_runs_on_unlike_machines_are_not_comparable_unless_that_is_allowed(make_run: Make, tmp_path: Path) -> None:
    for block, factor in enumerate(SLOWER):
        run(make_run, "a", block, 0.5)
        run(make_run, "b", block, 0.5 * factor, machine={"cpu": "Abacus 4000", "fingerprint": "f" * 12})
    experiment = experiment_of(tmp_path)
    refused, allowed = judgements(experiment)[0].step, judgements(experiment, allowed=["machine"])[0].step
    assert refused.verdict is Verdict.NOT_COMPARABLE
    base, other = "Abacus 3000, 2 cores, 24 GiB, fingerprint 0123456789ab", "Abacus 4000, fingerprint ffffffffffff"
    assert refused.reason == f"they differ in machine ({base}: 10 runs; {other}: 10 runs)"
    assert refused.ratio == allowed.ratio
    assert allowed.verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(("rise", "said"), [(0.2, True), (0.02, False)])
def test_a_machine_that_became_much_busier_is_said_and_refuses_nothing(
    make_run: Make, tmp_path: Path, rise: float, said: bool
) -> None:
    """The probe before refused such verdicts, and called blocks twice as slow whose steps were not."""
    for block, factor in enumerate(SLOWER):
        # of 0.2 a block: from 5 ms to 14 ms over a mean of 9.5, a drift of 95%; of 0.02: 17%
        probe = {"probe/speed_s": Metric(0.005 * (1 + rise * block))}
        for arm, times in (("a", 1.0), ("b", factor)):
            run(make_run, arm, block, 0.5 * times, metrics=lambda step, probe=probe: probe)
    (found,) = judgements(experiment_of(tmp_path))
    assert found.step.verdict is Verdict.DIFFERENT
    assert [("drifted by +95%" in caution) for caution in found.cautions] == ([True] if said else [])
    assert gate([found], 0.05).code == WORSE


def test_steps_that_are_warm_up_or_profiled_do_not_count(make_run: Make, tmp_path: Path) -> None:
    run(make_run, "a", 0, 0.5)
    run(make_run, "b", 0, 0.5)
    folder = next((tmp_path / "results").rglob("b,block=0"))
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    for row in lines:
        if row["kind"] == "step" and row["step"] < 3:
            row["warmup"] = True
        if row["kind"] == "step" and row["step"] == 4:
            row["profiled"] = True
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    base, other = experiment_of(tmp_path).variants
    # of the steps of a, only 3 and 5 are measured in b too: 3 s and 5 s
    base = with_seconds(base, None, (9.0, 9.0, 9.0, 3.0, 9.0, 5.0))
    ((before, after),) = paired_seconds(paired_runs(base, other, with_unfinished=True), alternated=True)
    assert (before.step, after.step) == pytest.approx((4.0, 1.0))


@pytest.mark.parametrize(("tokens", "said"), [(1040, []), (800, ["b generated -20.0% tokens per step against a"])])
def test_unequal_work_is_said(make_run: Make, tmp_path: Path, tokens: int, said: list[str]) -> None:
    for block in range(2):
        for arm, count in (("a", 1000), ("b", tokens)):
            metrics = {"response_tokens": Metric(count, "sum")}
            run(make_run, arm, block, 0.5, metrics=lambda step, metrics=metrics: metrics)
    (found,) = judgements(experiment_of(tmp_path))
    assert [caution.partition(",")[0] for caution in found.cautions] == said


def occasion(make_run: Make, day: int, seconds: float, arm: str = "a") -> None:
    """Eight blocks on one day; their weather is a tenth of a percent."""
    for block in range(8):
        half = seconds / 2 * (1.001 if block % 2 else 1.0)
        started_at = f"2026-11-{day:02d}T11:{block:02d}:00.000Z"
        run(make_run, arm, block, half, half, experiment=f"202611{day:02d}-000000", started_at=started_at)


def test_a_baseline_of_one_occasion_gives_no_verdict_where_the_old_code_gave_one(
    make_run: Make, tmp_path: Path
) -> None:
    occasion(make_run, 19, 1.0)
    occasion(make_run, 20, 1.5)
    old, new = gather([tmp_path / "results"])[0]
    baseline = Baseline((old,))
    (found,) = judge_against(baseline, new, 0.03, ())
    assert found.step.ratio == pytest.approx(1.5)
    assert (found.step.verdict, found.alternated) == (Verdict.INCONCLUSIVE, None)
    assert (found.step.low, found.step.high, found.step.p) == (None, None, None)
    assert "3 at least" in (found.step.reason or "")


def test_a_baseline_of_several_occasions_judges_by_the_spread_between_them(make_run: Make, tmp_path: Path) -> None:
    # three evenings at 0.98, 1.00 and 1.02 s, then 1.25 s: the old code called every one of them different
    for day, seconds in ((16, 0.98), (17, 1.0), (18, 1.02), (20, 1.25)):
        occasion(make_run, day, seconds)
    *stored, new = gather([tmp_path / "results"])[0]
    baseline = Baseline(tuple(stored))
    (found,) = judge_against(baseline, new, 0.03, ())
    logs = [log(0.98), 0.0, log(1.02)]
    middle = sum(logs) / 3
    spread = sqrt(sum((value - middle) ** 2 for value in logs) / 2)
    # t(0.975, 2) = 4.302653, https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    reach = 4.302653 * spread * sqrt(1 / 3 + 1)
    assert found.step.ratio == pytest.approx(1.25 / exp(middle))
    assert found.step.low == pytest.approx(exp(log(1.25) - middle - reach))
    assert (found.step.verdict, found.step.degrees, found.step.blocks) == (Verdict.DIFFERENT, 2, 8)
    assert found.base == "a of sync_k/20261118-000000 and 2 earlier"
    (like,) = judge_against(Baseline(tuple(stored[:2])), stored[2], 0.03, ())
    assert like.step.verdict is Verdict.INCONCLUSIVE


def test_points_of_a_sweep_that_ran_one_after_the_other_have_no_verdict_where_the_old_code_gave_one(
    make_run: Make, tmp_path: Path
) -> None:
    for seed in range(8):
        for k, seconds in ((1, 0.5), (2, 1.0)):
            stages = ((*GENERATE, 0.5), (*UPDATE, seconds + 0.001 * seed))
            point = {"epochs_per_batch": k, "seed": seed}
            make_run(point=point, seed=seed, steps=6, stages=stages, settings=f"steps: 6\nepochs_per_batch: {k}\n")
    (found,) = judgements(experiment_of(tmp_path))
    assert (found.alternated, found.stages) == (None, ())
    assert found.step.ratio == pytest.approx(1.5035 / 1.0035, rel=1e-4)  # the geometric means are these to 1e-5
    assert (found.step.verdict, found.step.low) == (Verdict.INCONCLUSIVE, None)
    assert "repeat in blocks" in (found.step.reason or "")


def test_every_run_of_both_sides_is_looked_at_and_not_the_first_alone(make_run: Make, tmp_path: Path) -> None:
    # the old code looked at the baseline's first run: seven of eight from another machine were called worse
    for block in range(8):
        other = {} if block == 0 else {"machine": {"cpu": "Abacus 4000", "fingerprint": "f" * 12}}
        run(make_run, "a", block, 0.5, **other)
        run(make_run, "b", block, 0.9)
    (found,) = judgements(experiment_of(tmp_path))
    assert found.step.verdict is Verdict.NOT_COMPARABLE


def test_a_step_of_unknown_time_is_left_out_of_arms_measured_apart(make_run: Make, tmp_path: Path) -> None:
    for k, seconds in ((1, 1.0), (2, 2.0)):
        stages = ((*GENERATE, seconds / 2), (*UPDATE, seconds / 2))
        make_run(point={"epochs_per_batch": k}, steps=6, stages=stages, settings=f"epochs_per_batch: {k}\n")
    experiment = experiment_of(tmp_path)
    base, other = experiment.variants
    other = with_seconds(other, None, (2.0, 2.0, 2.0, 0.0, 2.0, 2.0))
    (found,) = judgements(replace(experiment, variants=(base, other)))
    assert found.step.ratio == pytest.approx(2.0)


def test_runs_that_did_not_finish_count_step_against_step_and_never_as_a_whole(make_run: Make, tmp_path: Path) -> None:
    for interleaving, blocks in (("step", 10), ("run", 9)):
        for block, factor in enumerate(SLOWER):
            common = {"interleaving": interleaving, "scenario": interleaving}
            run(make_run, "a", block, 0.5, **common)
            failed = {"status": "failed", "error": "NaN"} if block == 3 else {}
            run(make_run, "b", block, 0.5 * factor, **common, **failed)
        (experiment,), _ = gather([tmp_path / "results" / interleaving])
        (found,) = judgements(experiment)
        assert (found.step.blocks, found.unfinished) == (blocks, 1)
        assert "1 runs of a and b did not finish." in verdict_sentences([found])


IN_PROCESS = "steps: 6\ntransport: {{type: in_process}}\nmodel: {{threads: {threads}}}\n"
IN_ACTORS = "steps: 6\ntransport: {{type: nixl}}\nplacement: {{generator: {{cpus: {cpus}, threads: {cpus}}}}}\n"


@pytest.mark.parametrize(
    ("settings", "factor", "said"),
    [
        ((IN_PROCESS.format(threads=1), IN_PROCESS.format(threads=2)), 1.05, "model.threads 2 against 1"),
        ((IN_PROCESS.format(threads=2), IN_PROCESS.format(threads=1)), 0.95, "model.threads 2 against 1"),
        ((IN_ACTORS.format(cpus=1), IN_ACTORS.format(cpus=2)), 1.0, "placement.generator.cpus 2 against 1"),
        ((IN_PROCESS.format(threads=1), IN_PROCESS.format(threads=2)), 0.9, None),  # faster
        ((IN_PROCESS.format(threads=1), IN_PROCESS.format(threads=2) + "max_lag: 1\n"), 1.05, None),
        (
            (IN_PROCESS.format(threads="null"), IN_PROCESS.format(threads=2)),
            1.05,
            None,
        ),  # how many were given is not set
        ((IN_PROCESS.format(threads=1), IN_PROCESS.format(threads=1)), 1.0, None),
    ],
)
def test_more_cores_that_did_nothing_are_told(
    make_run: Make, tmp_path: Path, settings: tuple[str, str], factor: float, said: str | None
) -> None:
    """Nobody said that the synchronous arm that lag 1 beat gained nothing from its second core."""
    for block in range(6):
        for place, (arm, pace) in enumerate((("first", 1.0), ("second", factor))):
            off = 1 + 0.002 * (-1) ** (block + place)
            make_run(
                arm=arm, block=block, seed=block, steps=6, position=place, settings=settings[place],
                pace=lambda step, pace=pace * off: pace,
            )  # fmt: skip
    (experiment,), _ = gather([tmp_path / "results"])
    found = [finding.text for finding in findings(experiment) if finding.name == "cores"]
    if said is None:
        assert found == []
        return
    (text,) = found
    fewer, more = ("second", "first") if factor < 1 else ("first", "second")
    assert text.startswith(f"{more} is not faster than {fewer}, which has the same settings and fewer cores ({said}")
    judged = {item.other: item.step for item in judgements(experiment, fewer)}[more]
    assert f"{judged.ratio:.3f} times the seconds per step, 95% interval {judged.low:.3f} to {judged.high:.3f}" in text


def test_cores_that_may_have_helped_are_told_so(make_run: Make, tmp_path: Path) -> None:
    for block in range(6):
        for place, (arm, pace) in enumerate((("first", 1.0), ("second", 0.8 if block % 2 else 1.2))):
            settings = IN_PROCESS.format(threads=1 + place)
            make_run(
                arm=arm, block=block, seed=block, steps=6, position=place, settings=settings,
                pace=lambda step, pace=pace: pace,
            )  # fmt: skip
    (experiment,), _ = gather([tmp_path / "results"])
    (text,) = [finding.text for finding in findings(experiment) if finding.name == "cores"]
    assert text.startswith("second is not shown to be faster than first")
