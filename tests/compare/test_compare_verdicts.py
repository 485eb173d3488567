"""Verdicts on experiments whose step times are known: which blocks are paired, what is said, and what is refused."""

import re
from math import exp, log, sqrt

import numpy as np
import pytest

from harness.compare.endpoint import ENDPOINTS, REWARD_AT_ROLLOUTS, SECONDS_PER_STEP, Endpoint, endpoint_of
from harness.compare.gates import INCONCLUSIVE, WORSE, gate
from harness.compare.judging import block_seconds, direction, fastest_in_turns, is_same, judgements
from harness.compare.remarks import remarks_of
from harness.compare.stats.verdicts import Verdict
from harness.core.errors import UserError
from harness.report.tables import verdict_table
from harness.results.frames import Column
from harness.scenario.schema import Scenario
from tests.stand_ins.members import made_experiment, made_run

SETTINGS = {"max_lag": 0, "group_size": 8}
OTHER_MACHINE = {"machine": {"cpu": "Abacus 4000", "fingerprint": "f" * 12}}


def run(arm, block, update_s, generate_s=0.5, /, **more):
    """A run of one block, of six steps; ``stages_s`` adds to the two."""
    seconds = {"generate": generate_s, "update": update_s} | more.pop("stages_s", {})
    fields = {"block": block, "seed": block, "started_at": f"2026-11-20T11:{block:02d}:00.000Z"}
    fields |= {"settings": SETTINGS | ({"group_size": 4} if arm == "b" else {})}
    return made_run(arm, steps=6, wall_s=sum(seconds.values()), stages_s=seconds, **fields | more)


def blocks(factors, arm="b", **fields):
    """Blocks whose weather changes by up to a factor of two, in which the arm's update takes so much longer."""
    weathers = [1 + block / len(factors) for block in range(len(factors))]
    return [
        run(arm, block, 0.5 * weather * factor, 0.5 * weather, **fields)
        for block, (weather, factor) in enumerate(zip(weathers, factors, strict=True))
    ]


def two_arms(factors):
    """The arms a and b, of which b is slower by these factors."""
    return made_experiment(*blocks([1.0] * len(factors), "a"), *blocks(factors))


def only(experiment, **asked):
    (judged,) = judgements(experiment, **asked)
    return judged


SLOWER = [1.2, 1.22, 1.18, 1.21, 1.19, 1.2, 1.23, 1.17, 1.2, 1.2]


def test_the_weather_cancels_in_blocks_and_the_slower_stage_is_named():
    judged = only(two_arms(SLOWER))
    # a step takes 0.5 w + 0.5 w f against w: the ratio is (1 + f) / 2 in every block, whatever the weather w
    logs = [log((1 + factor) / 2) for factor in SLOWER]
    mean = sum(logs) / 10
    deviation = sqrt(sum((value - mean) ** 2 for value in logs) / 9)
    # t(0.975, 9), https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    reach = 2.262157 * deviation / sqrt(10) * judged.step.widening
    assert (judged.base, judged.other, judged.alternated, judged.step.blocks) == ("a", "b", True, 10)
    assert judged.step.ratio == pytest.approx(exp(mean), rel=1e-6)
    assert (judged.step.low, judged.step.high) == pytest.approx((exp(mean - reach), exp(mean + reach)), rel=1e-5)
    assert {effect.name: (effect.verdict, direction(effect)) for effect in judged.effects} == {
        "step": (Verdict.DIFFERENT, "slower"), "generate": (Verdict.EQUIVALENT, "same"),
        "update": (Verdict.DIFFERENT, "slower"),
    }  # fmt: skip
    table = verdict_table(judged)
    assert [(row[0], row[3], row[-1]) for row in table.rows] == [
        ("whole step", "< 0.001", "slower"), ("generate", "1.000", "same"), ("update", "< 0.001", "slower"),
    ]  # fmt: skip
    assert table.rows[1][1:3] == ("1.000", "1.000 to 1.000")
    assert f"{judged.step.widening:.2f} times as wide" in " ".join(table.notes)
    # a stage has the step's threshold, and 5% at least
    assert [effect.threshold for effect in judged.effects] == [0.03, 0.05, 0.05]
    assert [effect.threshold for effect in only(two_arms(SLOWER), threshold=0.2).effects] == [0.2] * 3


def test_another_arm_can_be_the_baseline():
    experiment = two_arms(SLOWER)
    judged = only(experiment, baseline="b")
    assert (judged.base, judged.other) == ("b", "a")
    assert judged.step.ratio == pytest.approx(1 / (only(experiment).step.ratio or 0))
    with pytest.raises(UserError, match=r"'c'[\s\S]*a, b"):
        judgements(experiment, baseline="c")


def test_lag_against_a_synchronous_arm_that_is_not_the_fastest_is_told():
    """Against ``slow`` lag is 40% faster, against ``fast`` 25%; ``slow`` first, then ``fast`` as the baseline."""
    settings = {"slow": SETTINGS, "fast": SETTINGS | {"group_size": 4}, "lag1": SETTINGS | {"max_lag": 1}}
    experiment = made_experiment(
        *(
            run(arm, block, update_s, settings=settings[arm], position=list(settings).index(arm))
            for block in range(8)
            for arm, update_s in (("slow", 0.5), ("fast", 0.3 + block / 1000), ("lag1", 0.1 + block / 1000))
        )
    )
    judged = judgements(experiment)
    assert fastest_in_turns(experiment, judged) == "fast"
    assert fastest_in_turns(experiment, judgements(experiment, "fast")) is None
    (text,) = [remark.text for remark in remarks_of(experiment, judged) if remark.key == "fairest"]
    assert text.startswith("lag1 is 25% faster per step than fast, ")


def test_runs_are_paired_by_block_and_seed_and_a_block_that_one_arm_lacks_is_left_out():
    members = [run("a", block, 0.5 + block) for block in (0, 1, 2)] + [run("b", block, 1.5 + block) for block in (2, 0)]
    step = only(made_experiment(*members)).step
    # generate takes 0.5 s, update 0.5 s more in each block of a, and 1 s more in b: 2 / 1 and 4 / 3
    assert (step.ratio, step.blocks) == (pytest.approx(sqrt(2 * 4 / 3)), 2)
    of_seeds = [
        run(arm, 0, 0.5 * seed * (5 if arm == "b" else 1), 0.0, seed=seed, point={"seed": seed})
        for seed in (5, 6)
        for arm in "ab"
    ]
    step = only(made_experiment(*of_seeds)).step
    assert (step.ratio, step.low, step.high) == pytest.approx((5.0, 5.0, 5.0))


def test_blocks_stand_in_the_order_in_which_they_ran():
    """What neighbours have in common widens the interval."""
    at = [5, 2, 7, 0, 3, 6, 1, 4]
    places = [run(arm, block, 0.5 * (1.1 + 0.01 * at[block] if arm == "b" else 1),
                  started_at=f"2026-11-20T1{at[block]}:00:00.000Z") for block in range(8) for arm in "ab"]  # fmt: skip
    mixed = only(made_experiment(*places)).step
    in_order = only(two_arms([1.1 + 0.01 * block for block in range(8)])).step
    assert (in_order.correlation or 0) > 0
    assert (mixed.ratio, mixed.correlation, mixed.high) == pytest.approx(
        (in_order.ratio, in_order.correlation, in_order.high)
    )


def test_a_stage_that_only_one_arm_has_is_judged_in_units_of_a_step():
    # k = 2 has to compute the old log-probs, which k = 1 takes from the update: 0.18 s more in steps of 1 s
    weathers = [1 + block / 10 for block in range(10)]
    members = [
        run("b", block, 0.5 * weather, 0.5 * weather, stages_s={"old_logprobs": 0.18 * weather * SLOWER[block] / 1.2})
        for block, weather in enumerate(weathers)
    ]
    experiment = made_experiment(*blocks([1.0] * 10, "a"), *members)
    judged = only(experiment)
    assert [effect.name for effect in judged.effects] == ["step", "generate", "old_logprobs", "update"]
    added = judged.effects[2]
    assert (added.of_step, added.verdict, added.threshold) == (True, Verdict.DIFFERENT, 0.03)
    # the factors over 1.2 average to 1: log(1.18) but for their spread
    assert added.ratio == pytest.approx(1.18, abs=1e-3)
    assert judged.step.ratio == pytest.approx(added.ratio)  # nothing else differs
    saved = only(experiment, baseline="b").effects[2]
    # in units of the steps of b: 0.18 of 1.18 s
    assert saved.ratio == pytest.approx(1 / (1 + 0.18 / 1.18), abs=1e-3)
    assert (saved.name, saved.verdict, direction(saved)) == ("old_logprobs", Verdict.DIFFERENT, "faster")


def test_a_stage_of_a_thousandth_of_a_step_in_one_arm_is_judged_and_a_shorter_one_is_not():
    """Steps of 1 s: score has 0.1% of b, prepare_batch 0.09% of both arms."""
    shares = {"a": {"score": 0.0001, "prepare_batch": 0.0009}, "b": {"score": 0.001, "prepare_batch": 0.0009}}
    members = [made_run(arm, 0, 1, block=0, stages_s={"update": 0.9} | stages) for arm, stages in shares.items()]
    assert [effect.name for effect in only(made_experiment(*members)).effects] == ["step", "score", "update"]


def test_warm_up_and_profiled_steps_do_not_count_and_those_without_a_stage_count_as_nothing():
    after = run("b", 0, 0.5, flags=("w", "w", "w", "", "p", ""))
    # of the steps of a, only 3 and 5 are measured in b too: 3 s and 5 s
    before = run("a", 0, 0.5, columns={"wall_s": (9, 9, 9, 3, 9, 5), "timing_s/checkpoint": (0, 0, 0, 0.2, 0, 0)})
    turns, apart = (block_seconds(before, after, alternated) for alternated in (True, False))
    assert [each["step"] for each in turns] == pytest.approx([4.0, 1.0])
    assert (turns[0]["checkpoint"], apart[0]["checkpoint"]) == pytest.approx((0.1, 0.2 / 6))
    assert apart[0]["step"] == pytest.approx(44 / 6)


def test_all_arms_are_corrected_for_together_and_a_twin_of_the_baseline_is_not_among_them():
    # one of 3%, whose blocks alternate between +1.4% and +4.6%, beside others without any difference
    members = []
    for block in range(8):
        sign = 1 if block % 2 else -1
        for arm in ("a", "again", "b", "c", "d"):
            factor = 1.03 * exp(0.032 * sign) if arm == "b" else exp(0.001 * sign)
            size = 8 if arm in ("a", "again") else ord(arm)
            members.append(run(arm, block, 0.5 * factor, 0.5 * factor, settings=SETTINGS | {"group_size": size}))
    together = {judged.other: judged for judged in judgements(made_experiment(*members))}
    assert together["again"].is_noise_floor
    alone = only(made_experiment(*(member for member in members if member.manifest.arm in ("a", "b")))).step
    assert together["b"].step.p == pytest.approx(alone.p)
    # one arm has the weight 0.8 of 0.8 + 0.2; three share it
    assert alone.p_adjusted == pytest.approx(alone.p / 0.8)
    assert together["b"].step.p_adjusted == pytest.approx(3 * alone.p / 0.8)


def sync_endpoint(missing=None):
    """A sync takes 1 s in a and 2 s in b; unknown in one block."""

    def value(member):
        block = member.manifest.block or 0
        return None if block == missing else {"a": 1.0, "b": 2.0}[member.manifest.arm or ""] * (1 + 0.01 * (block % 2))

    return Endpoint("weight_sync_seconds", "seconds of a weight sync", 0.1, value)


def test_another_endpoint_may_decide_and_one_that_a_block_lacks_has_no_verdict():
    experiment = two_arms(SLOWER)
    judged, plain = only(experiment, endpoint=sync_endpoint()), only(experiment)
    primary = judged.primary
    assert (primary.threshold, primary.verdict) == (0.1, Verdict.DIFFERENT)
    assert (primary.ratio, primary.blocks) == (pytest.approx(2.0), 10)
    assert [effect.name for effect in judged.effects] == ["weight_sync_seconds", "step", "generate", "update"]
    assert (plain.primary is plain.step, judged.step.ratio) == (True, plain.step.ratio)
    lacking = only(experiment, endpoint=sync_endpoint(missing=9))
    assert (lacking.primary.blocks, lacking.primary.verdict) == (9, Verdict.INCONCLUSIVE)
    assert "1 of 10 blocks" in (lacking.primary.reason or "")
    assert lacking.step.verdict is Verdict.DIFFERENT
    assert gate([lacking], 0.05).code == INCONCLUSIVE


def test_an_arm_of_the_same_settings_is_the_noise_floor():
    again = blocks([1 / 1.01, 1.01] * 5, "again")
    judged = {item.other: item for item in judgements(made_experiment(*two_arms(SLOWER).members, *again))}
    floor = judged["b"].noise_floor
    assert (floor.verdict, floor.ratio) == (Verdict.EQUIVALENT, pytest.approx(1.0, abs=1e-3))
    assert judged["again"].noise_floor is None  # it is the noise floor
    assert is_same([run("a", 0, 0.5)], [run("again", 0, 0.5)])
    assert not is_same([run("a", 0, 0.5, settings={})], [run("again", 0, 0.5, settings={})])  # unknown


def test_runs_on_unlike_machines_are_not_comparable_unless_that_is_allowed():
    experiment = made_experiment(*blocks([1.0] * 10, "a"), *blocks(SLOWER, **OTHER_MACHINE))
    refused, allowed = only(experiment).step, only(experiment, allowed=["machine"]).step
    assert (refused.verdict, allowed.verdict) == (Verdict.NOT_COMPARABLE, Verdict.DIFFERENT)
    assert re.findall(r"Abacus \d+|[\da-f]{12}|\d+ runs", refused.reason or "") == [
        "Abacus 3000", "0123456789ab", "10 runs", "Abacus 4000", "f" * 12, "10 runs",
    ]  # fmt: skip
    assert refused.ratio == allowed.ratio
    one_of_ten = made_experiment(*two_arms(SLOWER).members[1:], run("a", 0, 0.5, **OTHER_MACHINE))
    assert only(one_of_ten).step.verdict is Verdict.NOT_COMPARABLE
    other_commit = made_experiment(*blocks([1.0] * 10, "a"), *blocks(SLOWER, commit="1234567890abcdef"))
    assert only(other_commit).step.verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(("rise", "is_told"), [(0.2, True), (0.02, False)])
def test_a_machine_that_became_much_busier_is_said_and_refuses_nothing(rise, is_told):
    # of 0.2 a block: from 5 ms to 14 ms over a mean of 9.5, a drift of 95%; of 0.02: 17%
    members = [
        run(
            arm, block, 0.5 * (factor if arm == "b" else 1), metrics={"probe/speed_s": [0.005 * (1 + rise * block)] * 6}
        )
        for block, factor in enumerate(SLOWER)
        for arm in "ab"
    ]
    judged = only(made_experiment(*members))
    assert judged.step.verdict is Verdict.DIFFERENT
    assert ["drifted by +95%" in caution for caution in judged.cautions] == ([True] if is_told else [])
    assert gate([judged], 0.05).code == WORSE


@pytest.mark.parametrize(("tokens", "told"), [(1005, False), (1040, True), (800, True)])
def test_unequal_work_is_said(tokens, told):
    def counted(each):
        return {"response_tokens": Column(np.full(6, each), np.ones(6), "sum")}

    members = [
        run(arm, block, 0.5, metrics=counted(each)) for block in (0, 1) for arm, each in (("a", 1e3), ("b", tokens))
    ]
    experiment = made_experiment(*members)
    first = remarks_of(experiment, judgements(experiment))[0]
    assert (first.key == "unequal") == told
    assert f"a 1,000; b {tokens:,} ({tokens / 10 - 100:+.1f}%)" in first.text or not told


def test_points_of_a_sweep_that_ran_one_after_the_other_have_no_verdict():
    members = [
        run("", seed, update_s + 0.001 * seed, block=None, settings={"epochs_per_batch": k},
            point={"epochs_per_batch": k, "seed": seed})
        for seed in range(8)
        for k, update_s in ((1, 0.5), (2, 1.0))
    ]  # fmt: skip
    judged = only(made_experiment(*members))
    assert (judged.alternated, judged.effects) == (None, (judged.step,))
    assert judged.step.ratio == pytest.approx(1.5035 / 1.0035, rel=1e-4)  # the geometric means are these to 1e-5
    assert (judged.step.verdict, judged.step.low) == (Verdict.INCONCLUSIVE, None)
    assert "blocks" in (judged.step.reason or "")
    # a step of unknown time is left out
    about = {"point": {"epochs_per_batch": 2, "seed": 0}, "outcome": {"imported": {}}}
    columns = {"wall_s": (1.5, 1.5, 1.5, 0.0, 1.5, 1.5)}
    unknown = run("", 0, 1.0, block=None, settings={"k": 2}, columns=columns, **about)
    assert only(made_experiment(members[0], unknown)).step.ratio == pytest.approx(1.5)


@pytest.mark.parametrize(("interleaving", "count"), [("step", 10), ("run", 9)])
def test_runs_that_did_not_finish_count_step_against_step_and_never_as_a_whole(interleaving, count):
    members = [
        run(arm, block, 0.5 * (factor if arm == "b" else 1), interleaving=interleaving,
            status="failed" if (arm, block) == ("b", 3) else "completed")
        for block, factor in enumerate(SLOWER)
        for arm in "ab"
    ]  # fmt: skip
    judged = only(made_experiment(*members))
    assert (judged.step.blocks, judged.unfinished) == (count, 1)


# ---- endpoints: their values in a run, and rewards between arms


def test_a_scenario_can_name_each_endpoint_and_no_other():
    assert list(ENDPOINTS) == Scenario.model_json_schema()["properties"]["endpoint"]["enum"]
    for name, endpoint in ENDPOINTS.items():
        assert endpoint_of([made_run(settings={"endpoint": name})]) is endpoint
    assert endpoint_of([made_run()]) is SECONDS_PER_STEP  # of before there were any


def rewarded(base, other):
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


def test_rewards_are_compared_by_their_difference_paired_by_seed():
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


def test_rewards_that_differ_by_less_than_counts_are_the_same_and_a_run_that_did_not_finish_has_none():
    base = [0.60, 0.70, 0.55, 0.65, 0.62, 0.68]
    (judged,) = judgements(rewarded(base, [one + more for one, more in zip(base, [0.01, -0.01] * 3, strict=True)]))
    # sd sqrt(6 * 0.0001 / 5) = 0.01095, half of the interval 0.0115, 1.8 times as wide for six blocks: within 0.03
    assert (judged.primary.verdict, direction(judged.primary)) == (Verdict.EQUIVALENT, "same")
    member = made_run(evaluations={0: (0.1, 10.0)}, status="failed")
    assert (member.figures["reward_last"], REWARD_AT_ROLLOUTS.value(member)) == (0.1, None)
