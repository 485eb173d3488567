"""What is said of step times beside their mean: hidden time, uneven steps, levels, warm-up that was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.compare import Experiment, gather
from harness.compare.experiments import Variant
from harness.compare.findings import findings
from harness.compare.stats import Verdict
from harness.compare.step_times import (
    MARK,
    UnevenSteps,
    mark,
    ratio_of_medians,
    steadiness_notes,
    step_ratio,
    uneven_sentence,
    uneven_steps,
    warm_up_reasons,
)
from harness.compare.tables import overview_table, stage_table
from harness.compare.verdicts import judgements
from harness.results import RunFolder, WarmUp
from tests.messages import MessageIs, facts
from tests.step_runs import write_steps

Make = Callable[..., RunFolder]
STEPS = 30


def experiment_of(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


def every(count: int, times: float) -> list[float]:
    """Steps of 0.1 s, of which each ``count``-th takes so many times as long."""
    return [0.1 * (times if step % count == count - 1 else 1.0) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("steps", "ratio"),
    [
        # of the 28 steps that are measured, 2 to 29
        (every(4, 3.0), (21 + 7 * 3) / 28),  # 3, 7, ..., 27
        (every(3, 4.0), (18 + 10 * 4) / 28),  # 2, 5, ..., 29
        (every(10, 20.0), (25 + 3 * 20) / 28),  # 9, 19, 29
        ([0.1 * (2.6 if step % 3 == 2 else 0.4) for step in range(STEPS)], (18 * 0.4 + 10 * 2.6) / 28),
    ],
)
def test_time_that_few_steps_carry_is_in_the_ratio(
    make_run: Make, tmp_path: Path, steps: list[float], ratio: float
) -> None:
    """Failed before: ratios of medians, 1.0 in three of the arms and 0.4 in the last, which is slower in truth."""
    write_steps(make_run, "a", [0.1] * STEPS)
    write_steps(make_run, "b", steps)
    base, other = experiment_of(tmp_path).variants
    assert step_ratio(base, other) == pytest.approx(ratio, rel=1e-6)
    assert other.runs[0].step_s == pytest.approx(0.1 * ratio, rel=1e-6)
    of_medians = ratio_of_medians(base, other)
    assert of_medians == pytest.approx(0.4 if steps[0] < 0.1 else 1.0, rel=1e-6)


def test_the_steps_that_carry_much_of_the_time_are_named(make_run: Make, tmp_path: Path, message_is: MessageIs) -> None:
    write_steps(make_run, "a", [0.1] * STEPS)
    write_steps(make_run, "b", every(10, 20.0))
    write_steps(make_run, "c", [0.1] * STEPS, evaluate_s={9: 1.0, 19: 1.0, 29: 1.0})
    experiment = experiment_of(tmp_path)
    flat, hidden, evaluated = experiment.variants
    assert uneven_steps(flat.runs[0]) is None
    assert uneven_sentence(flat) == ""
    # 3 steps of 2 s among 25 of 0.1 s: 6 of 8.5 s
    found = uneven_steps(hidden.runs[0])
    assert found == UnevenSteps((9, 19, 29), 2.0, pytest.approx(6 / 8.5), False, pytest.approx(8.5 / 28), 0.1)
    assert facts(uneven_sentence(hidden)) == "9 19 29 2.00 0.100 70.6"
    # with the evaluation 1.1 s: 3.3 of 5.8 s
    assert facts(uneven_sentence(evaluated)) == "9 19 29 1.10 0.100 56.9"
    assert "evaluation" in uneven_sentence(evaluated)
    said = [finding.text for finding in findings(experiment) if finding.name in ("single_steps", "against")]
    message_is("\n".join(said))


def test_two_levels_of_like_weight_are_told_without_naming_steps(make_run: Make, tmp_path: Path) -> None:
    write_steps(make_run, "a", [0.1 if step % 5 < 2 else 0.14 for step in range(STEPS)])
    (variant,) = experiment_of(tmp_path).variants
    found = uneven_steps(variant.runs[0])
    assert found is not None
    # ten of steps 2 to 29 take 0.1 s, the other 18 take 0.14 s: none is slow, and the mean is 0.1257 s
    assert (found.slow, found.median_s) == ((), 0.14)
    assert facts(uneven_sentence(variant)) == "0.126 0.140"


def test_many_slow_steps_are_not_all_listed(make_run: Make, tmp_path: Path) -> None:
    write_steps(make_run, "a", every(3, 4.0))
    (variant,) = experiment_of(tmp_path).variants
    assert facts(uneven_sentence(variant)).split()[:7] == ["2", "5", "8", "11", "14", "17", "4"]  # and 4 more


# ---- levels and warm-up


def warming(slow: int, times: float, steps: int, seed: int) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.02, steps)
    return [float(0.1 * (times if step < slow else 1.0) * np.exp(noise[step])) for step in range(steps)]


def blocks_of(make_run: Make, arms: dict[str, Callable[[int], Sequence[float]]], blocks: int = 10) -> None:
    for block in range(blocks):
        for place, (arm, steps) in enumerate(arms.items()):
            write_steps(make_run, arm, steps(10 * block + place), block=block, seed=block, interleaving="step")


def test_an_arm_that_was_still_warming_up_gets_no_verdict(make_run: Make, tmp_path: Path) -> None:
    """Failed before: b warms up for 6 of 12 steps, equal after, and was called different by 6%, with exit code 1."""
    blocks_of(make_run, {"a": lambda seed: warming(0, 1.0, 12, seed), "b": lambda seed: warming(6, 1.5, 12, seed)})
    experiment = experiment_of(tmp_path)
    base, other = experiment.variants
    assert sum(run.warm_up.slow_start for run in other.runs) > 5
    assert mark(other) == MARK
    (reason,) = warm_up_reasons(base, other)
    (judged,) = judgements(experiment)
    assert (judged.step.verdict, judged.step.reason) == (Verdict.INCONCLUSIVE, reason)
    assert all(effect.verdict not in (Verdict.DIFFERENT, Verdict.EQUIVALENT) for effect in judged.stages)
    assert set(steadiness_notes([base, other])) <= set(judged.cautions)


def test_a_slow_start_of_four_of_twelve_steps_gets_no_verdict(make_run: Make, tmp_path: Path) -> None:
    blocks_of(make_run, {"a": lambda seed: warming(0, 1.0, 12, seed), "b": lambda seed: warming(4, 1.3, 12, seed)})
    (judged,) = judgements(experiment_of(tmp_path))
    assert judged.step.verdict is Verdict.INCONCLUSIVE


def test_a_slow_start_that_is_cut_leaves_the_verdict(make_run: Make, tmp_path: Path) -> None:
    arms = {"a": lambda seed: warming(0, 1.0, 20, seed), "b": lambda seed: warming(5, 1.5, 20, seed)}
    blocks_of(make_run, arms)
    experiment = experiment_of(tmp_path)
    assert all(run.warm_up.steps >= 5 for run in experiment.variants[1].runs)
    assert judgements(experiment)[0].step.verdict is Verdict.EQUIVALENT


def test_runs_that_are_too_short_to_tell_get_no_verdict(make_run: Make, tmp_path: Path) -> None:
    """Failed before: an arm that died at step 5 in each of ten blocks was called equivalent, from three steps each."""
    blocks_of(make_run, {"a": lambda seed: warming(0, 1.0, 12, seed), "b": lambda seed: warming(0, 1.0, 5, seed)})
    (judged,) = judgements(experiment_of(tmp_path))
    assert judged.step.verdict is Verdict.INCONCLUSIVE
    assert judged.step.reason == "10 of 10 runs of b have too few steps to tell where warm-up ends"


def test_a_run_that_gets_slower_keeps_its_fast_start(make_run: Make, tmp_path: Path, message_is: MessageIs) -> None:
    """Failed before: slow from step 10 of 40 on, its first ten steps were cut as warm-up and it took 0.15 s a step."""
    write_steps(make_run, "a", [0.1] * 10 + [0.15] * 30)
    experiment = experiment_of(tmp_path)
    (variant,) = experiment.variants
    (run,) = variant.runs
    assert run.warm_up == WarmUp(2, False)
    assert run.step_s == pytest.approx((8 * 0.1 + 30 * 0.15) / 38)
    row = next(row for row in stage_table(experiment).rows if row[0] == "whole step")
    assert row[1].startswith(f"0.139{MARK} ")
    assert overview_table([experiment]).rows[0][4] == f"0.139{MARK}"
    message_is("\n".join(steadiness_notes([variant])))


def test_single_runs_that_keep_no_level_hold_no_verdict_back(make_run: Make, tmp_path: Path) -> None:
    """As the weather of a machine makes some of them look; a majority has to start slowly."""
    blocks_of(make_run, {"a": lambda seed: warming(0, 1.0, 12, seed), "b": lambda seed: warming(0, 1.0, 12, seed)})
    base, other = experiment_of(tmp_path).variants

    def with_slow_starts(variant: Variant, count: int) -> Variant:
        slow = [replace(run, warm_up=WarmUp(2, False, slow_start=True)) for run in variant.runs[:count]]
        return replace(variant, runs=(*slow, *variant.runs[count:]))

    assert warm_up_reasons(base, with_slow_starts(other, 5)) == []
    assert len(warm_up_reasons(base, with_slow_starts(other, 6))) == 1


def test_the_ratio_is_that_of_the_blocks_that_both_have(make_run: Make, tmp_path: Path) -> None:
    for block, (one, two) in enumerate([(0.1, 0.2), (0.2, 0.8)]):  # twice and four times: 8 ** 0.5 in the middle
        write_steps(make_run, "a", [one] * 6, block=block, seed=block)
        write_steps(make_run, "b", [two] * 6, block=block, seed=block)
    write_steps(make_run, "b", [9.0] * 6, block=2, seed=2)  # which a has not
    base, other = experiment_of(tmp_path).variants
    assert step_ratio(base, other) == pytest.approx(8**0.5)
    assert ratio_of_medians(base, other) is None  # the same
