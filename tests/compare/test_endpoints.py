"""The primary endpoint: its value in a run, its verdict between arms, and the blocks that an undecided one needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path

import pytest

from harness.compare.endpoint import (
    ENDPOINTS,
    REWARD_AT_ROLLOUTS,
    SECONDS_PER_STEP,
    WEIGHT_SYNC_SECONDS,
    endpoint_of,
)
from harness.compare.experiment import Experiment, member_of
from harness.compare.judging import direction, judgements
from harness.compare.stats import Verdict
from harness.results import RunFolder
from harness.results.frames import read_table
from harness.scenario import Scenario
from tests.stand_ins.members import made_experiment, made_run


def test_a_scenario_can_name_each_endpoint_and_no_other() -> None:
    assert list(ENDPOINTS) == Scenario.model_json_schema()["properties"]["endpoint"]["enum"]
    for name, endpoint in ENDPOINTS.items():
        assert endpoint_of([made_run(settings={"endpoint": name})]) is endpoint
    assert endpoint_of([made_run()]) is SECONDS_PER_STEP  # of before there were any


def test_the_seconds_of_a_sync_are_publish_transfer_and_load(make_lagged_run: Callable[..., RunFolder]) -> None:
    run = make_lagged_run(settings="transport: {type: nixl}\n", sync_ms=(5.0, 10.0, 5.0, 2.0))
    member = member_of(read_table(Path(run.folder)))
    assert WEIGHT_SYNC_SECONDS.value(member) == pytest.approx(0.020)  # 5 + 10 + 5 ms; verifying is not part of it
    assert WEIGHT_SYNC_SECONDS.value(made_run()) is None


def rewarded(base: Sequence[float], other: Sequence[float]) -> Experiment:
    """Two arms, a block for each reward."""
    return made_experiment(
        *(
            made_run(
                arm, block, block=block, evaluations={0: (0.1, 10.0), 4: (value, 10.0)},
                settings={"endpoint": "reward_at_rollouts", "group_size": len(arm)},
                started_at=f"2026-11-20T11:15:0{block}.000Z",
            )
            for arm, rewards in (("base", base), ("other", other))
            for block, value in enumerate(rewards)
        )
    )  # fmt: skip


def test_rewards_are_compared_by_their_difference_paired_by_seed() -> None:
    base = [0.60, 0.70, 0.00, 0.65, 0.62, 0.68]  # a reward of 0 has a difference, and no ratio
    differences = [0.10, 0.12, 0.11, 0.09, 0.10, 0.08]  # mean 0.1, sd sqrt(0.001 / 5) = 0.014142
    experiment = rewarded(base, [one + more for one, more in zip(base, differences, strict=True)])
    (judged,) = judgements(experiment)
    primary = judged.primary
    assert (primary.name, primary.verdict, primary.blocks) == ("reward_at_rollouts", Verdict.DIFFERENT, 6)
    assert direction(primary) == "better"
    assert primary.ratio == pytest.approx(exp(-0.1))
    # t(0.975, 5) = 2.5706: 2.5706 * 0.014142 / sqrt(6) = 0.01484, widened for neighbours that may be alike
    reach = 0.01484 * primary.widening
    assert REWARD_AT_ROLLOUTS.change(primary.ratio) == "+0.100"
    assert REWARD_AT_ROLLOUTS.ends(primary) == f"{0.1 - reach:+.3f} to {0.1 + reach:+.3f}"
    assert REWARD_AT_ROLLOUTS.value(experiment.arms["base"][0]) == pytest.approx(exp(-0.60))
    (back,) = judgements(experiment, "other")
    assert direction(back.primary) == "worse"


def test_a_difference_of_rewards_below_what_counts_is_equivalent() -> None:
    base = [0.60, 0.70, 0.55, 0.65, 0.62, 0.68]
    (judged,) = judgements(rewarded(base, [one + more for one, more in zip(base, [0.01, -0.01] * 3, strict=True)]))
    # sd sqrt(6 * 0.0001 / 5) = 0.01095, half of the interval 0.0115, 1.8 times as wide for six blocks: within 0.03
    assert (judged.primary.verdict, direction(judged.primary)) == (Verdict.EQUIVALENT, "same")


def test_a_run_that_did_not_finish_has_no_reward_at_equal_rollouts() -> None:
    member = made_run(evaluations={0: (0.1, 10.0)}, status="failed")
    assert member.figures["reward_last"] == 0.1
    assert REWARD_AT_ROLLOUTS.value(member) is None
