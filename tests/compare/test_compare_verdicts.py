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
from harness.compare.experiments import Experiment, Variant
from harness.compare.gates import NOT_COMPARABLE, WORSE, gate
from harness.compare.stats import Verdict
from harness.compare.verdicts import (
    is_same,
    judgements,
    paired_blocks,
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
    reach = (
        2.262157 * deviation / sqrt(10)
    )  # t(0.975, 9), https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
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
    assert sentence.endswith("Different stages: update (+20.0%).")


def test_the_table_has_a_row_for_the_step_and_each_stage(make_run: Make, tmp_path: Path) -> None:
    ten_blocks(make_run, SLOWER)
    (table,) = verdict_tables(judgements(experiment_of(tmp_path)))
    assert table.title == "Verdict: b against a, 10 blocks (the arms took turns by step)"
    assert [row[0] for row in table.rows] == ["whole step", "generate", "update"]
    assert "b was the slower one in 10 of 10 blocks; Hodges-Lehmann: 1.100." in table.notes
    assert table.rows[1][1:3] == ("1.000", "1.000 to 1.000")
    assert [row[-1] for row in table.rows] == ["different", "equivalent", "different"]
    # all ten blocks agree: 2 of the 1024 sign patterns are as extreme; Holm doubles that for the first of two stages
    assert (table.rows[0][3], table.rows[2][3]) == ("0.002", "0.004")


def test_runs_are_paired_by_block_and_a_block_that_one_arm_lacks_is_left_out(make_run: Make, tmp_path: Path) -> None:
    for block in (0, 1, 2):
        run(make_run, "a", block, 0.5 + block)
    for block in (2, 0):
        run(make_run, "b", block, 1.5 + block)
    experiment = experiment_of(tmp_path)
    blocks = paired_blocks(*experiment.variants, alternated=True)
    # generate takes 0.5 s; the first two of six steps are warm-up in runs that flag none
    assert [(block.before[0], block.after[0], len(block.before)) for block in blocks["step"]] == [
        (pytest.approx(1.0), pytest.approx(2.0), 4),
        (pytest.approx(3.0), pytest.approx(4.0), 4),
    ]
    assert list(blocks) == ["step", "generate", "update"]


def test_runs_of_one_block_are_paired_by_their_seed(make_run: Make, tmp_path: Path) -> None:
    for seed in (5, 6):
        run(make_run, "a", 0, 0.5, seed=seed, point={"seed": seed})
        run(make_run, "b", 0, 0.5 * seed, seed=seed, point={"seed": seed})
    blocks = paired_blocks(*experiment_of(tmp_path).variants, alternated=True)["update"]
    assert [block.after[0] / block.before[0] for block in blocks] == pytest.approx([5.0, 6.0])


def test_a_stage_is_compared_where_both_arms_ran_it_in_more_than_half_of_the_steps(
    make_run: Make, tmp_path: Path
) -> None:
    for arm in ("a", "b"):
        run(make_run, arm, 0, 0.5)
    base, other = experiment_of(tmp_path).variants

    def compared(mine: tuple[float, ...], theirs: tuple[float, ...]) -> list[str]:
        variants = with_seconds(base, Stage.UPDATE, mine), with_seconds(other, Stage.UPDATE, theirs)
        return list(paired_blocks(*variants, alternated=True))

    # the first two of six steps are warm-up: the stage ran in two and in three of the other four
    half, most = (0.5, 0.5, 0.5, 0.5, 0.0, 0.0), (0.5, 0.5, 0.5, 0.5, 0.5, 0.0)
    assert compared(most, most) == ["step", "generate", "update"]
    assert compared(half, half) == compared(most, half) == compared(half, most) == ["step", "generate"]


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


def test_no_gate_rests_on_a_machine_whose_speed_went_astray(make_run: Make, tmp_path: Path) -> None:
    for block, factor in enumerate(SLOWER):
        for arm, times in (("a", 1.0), ("b", factor)):
            machine_speed = {"python": 0.005 * (1 + 0.1 * block), "copy": 0.002}
            run(make_run, arm, block, 0.5 * times, machine_speed=machine_speed)
    experiment = experiment_of(tmp_path)
    (found,) = judgements(experiment)
    assert found.step.verdict is Verdict.DIFFERENT  # the arms took turns, so it hit both alike
    assert found.too_unstable is not None
    assert "over 10 blocks the speed probe's python work varied" in found.too_unstable
    assert found.cautions == (found.too_unstable,)
    result = gate([found], 0.05)
    assert result.code == NOT_COMPARABLE


def test_a_gate_rests_on_a_machine_that_was_a_little_unstable(make_run: Make, tmp_path: Path) -> None:
    for block, factor in enumerate(SLOWER):
        for arm, times in (("a", 1.0), ("b", factor)):
            run(make_run, arm, block, 0.5 * times, machine_speed={"python": 0.005 * (1 + 0.02 * block)})
    (found,) = judgements(experiment_of(tmp_path))
    # 18% from the first block to the last over the mean of 1.09: a drift of 16.5%, above 5% and below 25%
    assert len(found.cautions) == 1
    assert found.too_unstable is None
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
    (block,) = paired_blocks(*experiment_of(tmp_path).variants, alternated=True)["step"]
    assert len(block.before) == len(block.after) == 2  # steps 3 and 5 of both


@pytest.mark.parametrize(("tokens", "said"), [(1040, []), (800, ["b generated -20.0% tokens per step against a"])])
def test_unequal_work_is_said(make_run: Make, tmp_path: Path, tokens: int, said: list[str]) -> None:
    for block in range(2):
        for arm, count in (("a", 1000), ("b", tokens)):
            metrics = {"response_tokens": Metric(count, "sum")}
            run(make_run, arm, block, 0.5, metrics=lambda step, metrics=metrics: metrics)
    (found,) = judgements(experiment_of(tmp_path))
    assert [caution.partition(",")[0] for caution in found.cautions] == said


def test_points_of_a_sweep_that_ran_one_after_the_other_are_no_pairs(make_run: Make, tmp_path: Path) -> None:
    for seed in range(8):
        for k, seconds in ((1, 0.5), (2, 1.0)):
            stages = ((*GENERATE, 0.5), (*UPDATE, seconds + 0.001 * seed))
            point = {"epochs_per_batch": k, "seed": seed}
            make_run(point=point, seed=seed, steps=6, stages=stages, settings=f"steps: 6\nepochs_per_batch: {k}\n")
    (found,) = judgements(experiment_of(tmp_path))
    assert (found.alternated, found.stages) == (None, ())
    assert found.step.ratio == pytest.approx(1.5035 / 1.0035, rel=1e-4)
    assert "measured apart" in (found.step.reason or "")


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
