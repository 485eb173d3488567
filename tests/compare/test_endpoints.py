"""The primary endpoint: its value in a run, its verdict between arms, and the blocks that an undecided one needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path

import pytest

from harness.compare import Experiment, gather
from harness.compare.endpoints import (
    ENDPOINTS,
    REWARD_AT_ROLLOUTS,
    SECONDS_PER_STEP,
    WEIGHT_SYNC_SECONDS,
    blocks_needed,
    endpoint_of,
    headline,
)
from harness.compare.stats import Effect, Verdict, half_width
from harness.compare.verdicts import judgements
from harness.results import RunFolder
from harness.scenario import Scenario

Make = Callable[..., RunFolder]


def experiment_of(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


def effect(ratio: float, low: float, high: float, blocks: int = 10, threshold: float = 0.03) -> Effect:
    return Effect("step", blocks, ratio, low, high, None, None, None, threshold, Verdict.INCONCLUSIVE)


def test_a_scenario_can_name_each_endpoint_and_no_other() -> None:
    assert list(ENDPOINTS) == Scenario.model_json_schema()["properties"]["endpoint"]["enum"]


def test_the_seconds_of_a_sync_are_the_mean_of_publish_transfer_and_load(make_lagged_run: Make, tmp_path: Path) -> None:
    settings = "endpoint: weight_sync_seconds\ntransport: {type: nixl}\n"
    make_lagged_run(arm="nixl", settings=settings, sync_ms=(5.0, 10.0, 5.0, 2.0))
    (run,) = experiment_of(tmp_path).runs
    assert endpoint_of([run]) is WEIGHT_SYNC_SECONDS
    assert WEIGHT_SYNC_SECONDS.value(run) == pytest.approx(0.020)  # 5 + 10 + 5 ms; verifying is not part of it


def test_the_seconds_of_a_sync_are_the_mean_of_the_syncs_of_a_run(make_lagged_run: Make, tmp_path: Path) -> None:
    make_lagged_run(arm="nixl", settings="transport: {type: nixl}\n", sync_ms=(5.0, 10.0, 5.0, 2.0))
    (run,) = experiment_of(tmp_path).runs
    assert run.sync is not None
    slow = replace(run.sync, whole_s=(0.02, 0.04))
    assert WEIGHT_SYNC_SECONDS.value(replace(run, sync=slow)) == pytest.approx(0.03)
    assert WEIGHT_SYNC_SECONDS.value(replace(run, sync=None)) is None


def rewarded(make_run: Make, base: Sequence[float], other: Sequence[float]) -> None:
    for arm, rewards in (("base", base), ("other", other)):
        for block, value in enumerate(rewards):
            settings = "endpoint: reward_at_rollouts\nsteps: 4\nreward_target: 0.5\nmax_lag: 0\n"
            fields = {"evaluations": {0: (0.1, 10.0), 4: (value, 10.0)}, "settings": settings}
            make_run(arm=arm, block=block, seed=block, **fields)


def test_rewards_are_compared_by_their_difference_paired_by_seed(make_run: Make, tmp_path: Path) -> None:
    base = [0.60, 0.70, 0.00, 0.65, 0.62, 0.68]  # a reward of 0 has a difference, and no ratio
    differences = [0.10, 0.12, 0.11, 0.09, 0.10, 0.08]  # mean 0.1, sd sqrt(0.001 / 5) = 0.014142
    rewarded(make_run, base, [one + more for one, more in zip(base, differences, strict=True)])
    experiment = experiment_of(tmp_path)
    (judged,) = judgements(experiment)
    before, found = experiment.variants[0], judged.primary
    assert (found.verdict, found.blocks) == (Verdict.DIFFERENT, 6)
    assert found.ratio == pytest.approx(exp(-0.1))
    # t(0.975, 5) = 2.5706: 2.5706 * 0.014142 / sqrt(6) = 0.01484, widened for neighbours that may be alike
    reach = 0.01484 * found.widening
    expected = f"+0.100, 95% interval {0.1 - reach:+.3f} to {0.1 + reach:+.3f}"
    assert REWARD_AT_ROLLOUTS.interval(found) == expected
    assert REWARD_AT_ROLLOUTS.value(before.runs[0]) == pytest.approx(exp(-0.60))
    assert REWARD_AT_ROLLOUTS.shown(exp(-0.60)) == "0.600"


def test_a_difference_of_rewards_below_what_counts_is_equivalent(make_run: Make, tmp_path: Path) -> None:
    base = [0.60, 0.70, 0.55, 0.65, 0.62, 0.68]
    rewarded(make_run, base, [one + more for one, more in zip(base, [0.01, -0.01] * 3, strict=True)])
    found = judgements(experiment_of(tmp_path))[0].primary
    # sd sqrt(6 * 0.0001 / 5) = 0.01095, half of the interval 0.0115, 1.8 times as wide for six blocks: within 0.03
    assert found.verdict is Verdict.EQUIVALENT


def test_a_run_that_did_not_finish_has_no_reward_at_equal_rollouts(make_run: Make, tmp_path: Path) -> None:
    make_run(arm="base", evaluations={0: (0.1, 10.0)}, status="failed", error="stopped")
    (run,) = experiment_of(tmp_path).runs
    assert run.last is not None
    assert REWARD_AT_ROLLOUTS.value(run) is None


def test_a_scenario_from_before_there_were_endpoints_is_judged_by_its_step_time(make_run: Make, tmp_path: Path) -> None:
    make_run(settings="steps: 4\n")
    assert endpoint_of(experiment_of(tmp_path).runs) is SECONDS_PER_STEP


@pytest.mark.parametrize(
    ("ratio", "deviation", "blocks"),
    [
        (
            1.10,
            0.10,
            11,
        ),  # the way to go is log 1.1 = 0.0953; 11: (2.2281 + 0.8791) * 0.1 / sqrt(11) = 0.0937; 10: 0.0996
        (1.00, 0.03, 11),  # equivalent: log 1.03 = 0.0296; 11: 3.1072 * 0.03 / sqrt(11) = 0.0281; 10: 0.0298
        (1.50, 0.01, 11),  # never fewer than one more
        (1.0299, 0.05, None),  # at the threshold itself: 1e-4 to go
    ],
)
def test_the_blocks_needed_are_those_at_which_four_in_five_experiments_decide(
    ratio: float, deviation: float, blocks: int | None
) -> None:
    """t quantiles at 10 degrees: 2.2281 and 0.8791; at 9: 2.2622 and 0.8834 (any table of Student's t)."""
    half = 2.2622 * deviation / sqrt(10)  # the interval of ten blocks with this standard deviation
    found = effect(ratio, exp(log(ratio) - half), exp(log(ratio) + half))
    assert blocks_needed(found) == blocks


def test_half_of_the_interval_is_relative_to_its_middle() -> None:
    assert half_width(effect(2.0, 1.9, 2.1)) == pytest.approx(0.05)
    assert half_width(replace(effect(2.0, 1.9, 2.1), low=None, high=None)) is None


def test_the_last_sentence_says_the_verdict_or_what_it_would_take() -> None:
    decided = replace(effect(2.0, 1.9, 2.1), verdict=Verdict.DIFFERENT)
    assert headline(WEIGHT_SYNC_SECONDS, "nixl", "object_store", decided) == (
        "object_store against nixl, seconds of a weight sync: different, +100.0%, 95% interval +90.0% to +110.0%."
    )
    half = 2.2622 * 0.1 / sqrt(10)
    # of several arms: without a correction an interval that leaves out 1 would be a verdict
    undecided = replace(effect(1.1, exp(log(1.1) - half), exp(log(1.1) + half)), p=0.015, p_adjusted=0.06)
    assert headline(SECONDS_PER_STEP, "a", "b", undecided).endswith(
        "It had 10 blocks; about 16 would tell, if it stays as it is."  # (t15(.99375) + t15(.8)) * 0.1 / 4 <= log 1.1
    )
