"""What an experiment says: when each rule speaks and is silent, and the numbers in it, of runs made from values."""

import re
from math import exp

import numpy as np
import pytest

from harness.compare.endpoint import REWARD_AT_ROLLOUTS
from harness.compare.experiment import Experiment
from harness.compare.judging import NOT_IN_TURN, Judgement, judgements
from harness.compare.remarks import RULES, remarks_of, time
from harness.compare.remarks.answer import Difference, final_rewards, reward_difference
from harness.compare.remarks.learning import correlation, growth
from harness.compare.remarks.time import whatif_command
from harness.compare.signal import Divergence
from harness.compare.stats.verdicts import STEP, Effect, Verdict
from harness.compare.steadiness import mark
from harness.core.trace import Stage
from harness.core.types import RankStep
from harness.results.counters import CounterRow
from harness.results.frames import Column
from harness.results.rows import WarmUp
from harness.scenario.load import load_scenario
from tests.compare.recorded import NAMES, only_experiment, recorded
from tests.messages import facts
from tests.run_folders import ONE_STEP
from tests.stand_ins.members import lanes, made_experiment, made_run, seeds_of

DIFFERENT, EQUIVALENT, INCONCLUSIVE = Verdict.DIFFERENT, Verdict.EQUIVALENT, Verdict.INCONCLUSIVE


def said(experiment, key, judged=()):
    """Return the sentences of one rule."""
    made = experiment if isinstance(experiment, Experiment) else made_experiment(*experiment)
    (write,) = (write for name, _, write in RULES if name == key)
    return list(write(made, judged))


def tells(text, expected):
    """Whether a sentence has these words in this order, and no number beside those in them."""
    words = (word.strip("(),;:.") for word in text.split())
    return all(word in words for word in expected.split()) and facts(text) == facts(expected)


def assert_told(experiment, key, judged, *told):
    texts = said(experiment, key, judged)
    assert len(texts) == len(told), texts
    assert [text for text, words in zip(texts, told, strict=True) if not tells(text, words)] == []


def effect(verdict, ratio, low, high, **fields):
    known = {"p": 0.01, "p_adjusted": 0.01, "minimum_effect": 0.05, "blocks": 12} | fields
    return Effect(
        **{"name": STEP, "threshold": 0.03, "verdict": verdict, "ratio": ratio, "low": low, "high": high} | known
    )


def judged_as(*effects, **fields):
    return [Judgement(**{"base": "a", "other": "b", "effects": effects} | fields)]


FASTER = judged_as(effect(DIFFERENT, 0.6, 0.57, 0.62))
IS_FASTER = "b is 40% faster a 38 43% 12 blocks"


def test_each_rule_has_a_key_of_its_own_and_says_each_thing_once():
    """Of every reference experiment; and of a run without anything of note there is its answer alone."""
    assert len({key for key, _, _ in RULES}) == len(RULES)
    for experiment in (each for name in NAMES for each in recorded(name)):
        every = remarks_of(experiment, judgements(experiment))
        for said_once in ([remark.key for remark in every], [remark.text for remark in every]):
            assert len({*said_once}) == len(every)
        assert [remark.text for remark in every if not remark.text.endswith(".") and not remark.command] == []
    assert [remark.key for remark in remarks_of(made_experiment(made_run()), [])] == ["answer", "not_repeated"]


def test_of_many_arms_a_few_are_said_and_the_others_counted():
    ends = {f"a{place:02}": {4: (place / 100, 9.0)} for place in range(20)}
    members = [made_run(arm, status="interrupted", evaluations=end) for arm, end in ends.items()]
    every = {remark.key: remark.text for remark in remarks_of(made_experiment(*members), [])}
    assert tells(every["unfinished/6"], "a05 interrupted 4")
    assert tells(every["unfinished/7"], "14 more")
    assert "unfinished/8" not in every
    (text,) = said([made_run(arm, evaluations=end) for arm, end in ends.items()], "rewards")
    assert text.endswith("a15 0.15; a14 0.14; 14 more (one seed each).")


# ---- the answer


def was(ratio, blocks=1, reason=None):
    return effect(INCONCLUSIVE, ratio, None, None, blocks=blocks, reason=reason)


def is_open(ratio, low, high, **fields):
    return effect(INCONCLUSIVE, ratio, low, high, **fields)


OPEN = "Cannot tell b is faster a"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (effect(DIFFERENT, 0.6, 0.57, 0.62), IS_FASTER),
        (effect(DIFFERENT, 1.05, 1.03, 1.08), "b is 5.0% slower a 3 8% 12 blocks"),
        (effect(DIFFERENT, 2.0, 1.9, 2.1), "b takes 2.0 times as long a 1.9 2.1 12 blocks"),
        (effect(EQUIVALENT, 1.001, 0.99, 1.012), "b a same +0.1% -1.0% +1.2% 12 blocks"),
        (was(0.7), "Cannot tell b a -30.0% one run each"),
        (was(0.7, 9, "one occasion"), "Cannot tell b a -30.0% 9 runs each one occasion"),
        (was(0.7, 3, NOT_IN_TURN), "Cannot tell b a -30.0% 3 runs each"),
        (was(2.5), "Cannot tell b a +150% one run each"),
        (effect(Verdict.NOT_COMPARABLE, 0.7, 0.66, 0.75, reason="unlike machines"), "cannot compared unlike machines"),
        # such blocks tell 9% on, the threshold is 3%: (ln 1.09 / ln 1.03)^2 * 12 = 8.50 * 12 = 102.0
        (is_open(0.98, 0.91, 1.055, minimum_effect=0.09), f"{OPEN} -2.0% -9.0% +5.5% 12 9.0% 3.0% about 102"),
        (is_open(0.98, 0.51, 1.9, minimum_effect=0.9), f"{OPEN} -2.0% -49.0% +90.0% 12 90.0% 3.0% more than 1,000"),
        # a change shows, but not whether it counts
        (is_open(0.98, 0.966, 0.995, minimum_effect=0.031),
         "Cannot tell b is 3.0% faster a -2.0% -3.4% -0.5% 12 3.1% 3.0% about 13"),
        (is_open(0.95, 0.91, 0.99, p_adjusted=0.2), f"{OPEN} -5.0% -9.0% -1.0% 12 chance 5.0% 3.0% about 33"),
        (is_open(0.98, 0.49, 1.9), f"{OPEN} unknown too noisy"),
        (is_open(0.98, 0.9, 2.1), f"{OPEN} unknown too noisy"),
        # 5% from 4 blocks is 3.42% from 6: t + t.8 is 4.739 there and 3.271 here, times 2.278 and 2.296 for neighbours,
        # over 2 and sqrt(6): (0.9195 / 0.9785 * ln 1.05 / ln 1.03)^2 * 6 = 7.8
        (is_open(0.7, 0.66, 0.75, blocks=4, p_adjusted=None),
         f"{OPEN} -30.0% -34.0% -25.0% 4 needs 6 blocks 3.0% about 8"),
        (is_open(0.7, 0.06, 9.5, blocks=2, p_adjusted=None), f"{OPEN} -30.0% 2 blocks needs 6 blocks"),
        (is_open(0.7, 0.66, 0.75, p_adjusted=None, reason="2 unmeasured"),
         f"{OPEN} -30.0% -34.0% -25.0% 12 2 unmeasured"),
    ],
)  # fmt: skip
def test_a_verdict_names_its_direction_and_an_open_one_what_it_would_take(made, words):
    assert_told([made_run("a"), made_run("b")], "answer", judged_as(made), words)


def test_time_and_reward_are_one_answer_with_one_interval():
    """Differences 0.02, 0.01, 0.03: mean 0.02, sd 0.01; t(0.975, 2) = 4.3027: 4.3027 * 0.01 / sqrt(3) = 0.0248."""
    experiment = made_experiment(*seeds_of("a", (0.50, 0.60, 0.40)), *seeds_of("b", (0.52, 0.61, 0.43)))
    # to see 0.03 in 80%: (4.3027 + 1.0607) * 0.01 / sqrt(3) = 0.03096, so 3 * (0.03096 / 0.03)^2 = 3.2 seeds
    shown = "+0.02 -0.00 +0.04 3 seeds 0.03 about 4 seeds"
    assert_told(experiment, "answer", FASTER, f"{IS_FASTER} no difference in reward {shown}")
    assert reward_difference(experiment, "a", "b") == Difference(
        pytest.approx(0.02), pytest.approx(-0.00484, abs=1e-4), pytest.approx(0.04484, abs=1e-4), 3, 1
    )
    # where rewards decide they come first, with the same interval and not one that is widened for the machine
    reward = effect(INCONCLUSIVE, exp(-0.02), exp(-0.2), exp(0.16), name=REWARD_AT_ROLLOUTS.name)
    no_difference = f"No difference in reward between b and a {shown}"
    assert_told(experiment, "answer", judged_as(reward, *FASTER[0].effects), f"{no_difference} {IS_FASTER}")
    assert_told(experiment, "answer", judged_as(reward), no_difference)  # as against another folder


@pytest.mark.parametrize(
    ("base", "other", "words"),
    [
        ((0.5,) * 3, (0.60, 0.62, 0.64), "reward higher +0.12 +0.07 +0.17 3 seeds"),  # sd 0.02 / sqrt(3) * 4.3027
        ((0.5,) * 3, (0.36, 0.38, 0.40), "reward lower -0.12 -0.17 -0.07 3 seeds"),
        ((0.5,) * 3, (0.50, 0.51, 0.49), "same reward +0.00 -0.02 +0.02 3 seeds"),  # sd 0.01: 0.0248, within 0.03
        ((0.5,) * 2, (0.6,) * 2, ""),  # no interval
        ((0.1,) * 3, (0.1,) * 3, ""),  # as of parts that sleep
    ],
)
def test_rewards_are_higher_lower_or_the_same(base, other, words):
    assert_told([*seeds_of("a", base), *seeds_of("b", other)], "answer", FASTER, f"{IS_FASTER} {words}")


def test_of_many_arms_those_that_differ_most_are_in_the_answer():
    ratios = {"b": 1.1, "c": 0.9, "d": 1.5, "e": 1.2, "f": 1.02, "g": 1.4}
    judged = [judged_as(effect(DIFFERENT, it, it - 0.01, it + 0.01), other=arm)[0] for arm, it in ratios.items()]
    texts = said([made_run(arm) for arm in "abcdefg"], "answer", judged)
    assert [text[0] for text in texts] == ["c", "d", "e", "g", "T"]
    assert facts(texts[-1]) == "4 6"


def test_a_single_arm_says_how_long_a_step_takes_and_how_sure_its_reward_is():
    ends = {0: (0.375, 9.0), 4: (0.4375, 9.0)}
    # 1.96 * sqrt(0.4375 * 0.5625 / 16) = 0.243
    one = made_run(evaluations=ends, prompts=16, wall_s=0.31)
    assert_told([one], "answer", (), "a 0.310 s 0.38 0.44 16 +-0.24 4 steps")
    seeds = seeds_of("a", (0.80, 0.82, 0.84))
    assert_told(seeds, "answer", (), "a 1.00 s 1.00 1.00 3 runs 0.40 0.82 95% 0.77 0.87 3 seeds 4 steps")
    assert_told([made_run(steps=0, status="failed")], "answer", (), "a failed no step")


def test_an_arm_of_the_baselines_settings_is_the_noise():
    floor = judged_as(effect(EQUIVALENT, 0.992, 0.977, 1.008), other="again", is_noise_floor=True)
    both = judged_as(*floor[0].effects) + floor
    members = [made_run("a"), made_run("again"), made_run("b")]
    assert_told(members, "noise_floor", both, "again a -0.8% -2.3% +0.8% noise")
    assert [text[:7] for text in said(members, "answer", both)] == ["b and a"]
    assert said(members, "noise_floor", floor) == []
    assert [text[:11] for text in said(members, "answer", floor)] == ["again and a"]


# ---- rewards over seeds


def test_the_final_rewards_of_a_sweep_in_order():
    """Means 0.82 and 0.62; t(0.975, 2) = 4.303: sd 0.02 / sqrt(3) * 4.303 = 0.0497, sd 0.01732: 0.0430."""
    lost = {"divergence": Divergence(1, stopped=False)}
    members = [*seeds_of("a", (0.60, 0.63, 0.63)), *seeds_of("b", (0.80, 0.82, 0.84))]
    in_order = "b 0.82 95% 0.77 0.87 3 seeds a 0.62 95% 0.58 0.66 3 seeds c 0.00 95% 0.00 0.00 3 seeds 3 diverged"
    assert_told([*members, *seeds_of("c", (0.0, 0.0, 0.0), figures=lost)], "rewards", FASTER, in_order)
    assert said(seeds_of("a", (0.5, 0.6, 0.7)), "rewards") == []  # in the answer
    assert said([*seeds_of("a", (0.2,)), *seeds_of("b", (0.2,))], "rewards") == []
    assert_told([*seeds_of("a", (0.5,)), *seeds_of("b", (0.9,))], "rewards", (), "b 0.90 a 0.50 one seed each")


def test_more_arms_need_more_to_show_a_difference():
    """Differences of 0.10, 0.12, 0.14, of sd / sqrt(3) 0.01155: shown alone and beside one more arm, not three."""
    finals = {"a": (0.80, 0.80, 0.80), "b": (0.70, 0.68, 0.66)} | dict.fromkeys("cde", (0.1, 0.5, 0.3))
    every = {arm: seeds_of(arm, rewards) for arm, rewards in finals.items()}
    # 1, 3 and 10 pairs: t(0.975, 2) = 4.303, t(1 - 0.05 / 6, 2) = 7.649, t(1 - 0.05 / 20, 2) = 14.089
    for arms, ends, pairs in (("ab", (0.07, 0.17), 1), ("abc", (0.032, 0.208), 3), ("abcde", (-0.043, 0.283), 10)):
        known = reward_difference(made_experiment(*(run for arm in arms for run in every[arm])), "b", "a")
        assert ((round(known.low, 3), round(known.high, 3)), known.pairs) == (ends, pairs)


def test_rewards_of_unlike_seeds_are_in_no_order_and_on_different_prompts_are_not_compared():
    cut = made_run("b", 1, 2, evaluations={0: (0.4, 9.0), 2: (0.7, 9.0)}, status="interrupted")
    experiment = made_experiment(*seeds_of("a", (0.6, 0.6)), seeds_of("b", (0.9,))[0], cut)
    assert final_rewards(experiment) == {"a": {0: 0.6, 1: 0.6}, "b": {0: 0.9}}
    assert reward_difference(experiment, "a", "b") is None
    assert_told(experiment, "rewards", (), "b 0.90 a 0.60 0.60 0.60 2 seeds not same seeds order open")

    def validated_on(arm, digest):
        return seeds_of(arm, (0.5, 0.6, 0.7), inputs={"validation_prompts": {"sha256": digest * 64}})

    for digest in "ab":
        known = reward_difference(made_experiment(*validated_on("a", "a"), *validated_on("b", digest)), "a", "b")
        assert (known is None) == (digest == "b")


def test_how_runs_diverged():
    stopped, lost = (Divergence(step, stopped=step == 2) for step in (2, 3))
    members = [made_run("a"), made_run("b", figures={"divergence": stopped})]
    members += [made_run("c", seed, figures={"divergence": lost}) for seed in (0, 1)]
    assert_told(members, "diverged", (), "b step 2 not finite", "c seed 0 step 3 c seed 1 step 3 reward tenth")


# ---- learning

WEIGHED, NORM = "advantage/nonzero_fraction", "grad_norm"


def without_signal(shares, settings=None, **fields):
    values = Column(np.array(shares), np.full(len(shares), 8.0), "mean")
    return made_run(metrics={"zero_variance_fraction": values}, settings=settings, **fields)


def test_steps_without_a_signal_are_said_from_more_than_half_on():
    assert_told(
        [without_signal([1.0] * 4)], "no_signal", (), "a nothing every rewards were equal every advantage was 0"
    )
    both = [without_signal([1.0, 1.0, 1.0, 0.9]), without_signal([1.0, 1.0, 0.5, 0.9], seed=1)]
    assert_told(both, "no_signal", (), "a 75% 1 of 2 runs every advantage was 0")
    assert said([without_signal([1.0, 1.0, 0.5, 0.9])], "no_signal") == []
    for settings in ({"loss": {"type": "no_baseline"}}, {"advantage": {"delta": "own"}}, {"model": {"type": "paced"}}):
        assert said([without_signal([1.0] * 4, settings)], "no_signal") == []
    norms = [0.0, 1.0, 0.0, 0.0, 0.0]
    weighed = Column(np.array([float(norm > 0) for norm in norms]), np.full(5, 8.0), "mean")
    moved = made_run(steps=5, metrics={NORM: norms, WEIGHED: weighed})
    assert_told([moved], "no_signal", (), "a 80% advantage 0 In 3 moved weights")
    few = {WEIGHED: Column(np.array([0.1, 0.3, 0.0, 0.2]), np.full(4, 8.0), "mean"), NORM: [0.1] * 4}
    assert_told([made_run(metrics=few)], "no_signal", (), "a learned 15.0% responses advantage 0")


def reaching(arm, seed, at, every=1, steps=8):
    rewards = {step: (0.6 if at is not None and step >= at else 0.4, 9.0) for step in range(0, steps + 1, every)}
    return made_run(arm, seed, steps, evaluations=rewards, settings={"reward_target": 0.5})


def test_a_target_is_counted_over_seeds():
    """Five evaluations before the one that reached it say when that was; fewer do not."""
    members = [reaching("a", seed, at) for seed, at in enumerate((6, 8))]
    members += [reaching("b", 0, 5), reaching("b", 1, None)]
    assert_told(members, "target", (), "reward 0.5 a 2 of 2 seeds at step 6 8 b 1 of 2 seeds at step 5")
    coarse = [reaching("a", 0, 4, every=4), reaching("b", 0, None, every=4)]
    assert_told(coarse, "target", (), "reward 0.5 a by step 4 b not reached up to 4 steps")
    assert_told([reaching("a", 0, None), reaching("b", 0, None)], "target", (), "No run reached 0.5")
    assert said([reaching("a", 0, 5)], "target") == []
    sleeping = {"reward_target": 0.5, "model": {"type": "paced"}}
    assert said([made_run(arm, settings=sleeping) for arm in "ab"], "target") == []


def test_cores_that_do_not_make_an_arm_faster(monkeypatch):
    def with_threads(arm, threads, rate=1e-4):
        return made_run(arm, settings={"model": {"threads": threads}, "optimizer": {"learning_rate": rate}})

    one, two = with_threads("a", 1), with_threads("b", 2)
    cpus = [made_run(arm, settings={"placement": {"generator": {"cpus": n}}}) for n, arm in enumerate("ab", start=1)]
    for members, ends, words in (
        ([one, two], (0.99, 1.03), "b is not faster a model.threads 2 against 1 +1.0% -1.0% +3.0%"),
        ([one, two], (0.96, 1.06), "b is not shown faster a model.threads 2 against 1 +1.0% -4.0% +6.0%"),
        ([with_threads("a", 2), with_threads("b", 1)], (0.99, 1.03),
         "a is not faster b model.threads 2 against 1 +1.0% -1.0% +3.0%"),
        (cpus, (0.99, 1.03), "b is not faster a placement.generator.cpus 2 against 1 +1.0% -1.0% +3.0%"),
        ([one, two], (0.9, 0.99), None),
        ([one, with_threads("b", 2, rate=1e-3)], (0.99, 1.03), None),
        ([one, with_threads("b", None)], (0.99, 1.03), None),
    ):  # fmt: skip
        step = effect(INCONCLUSIVE, 1.01, *ends)
        monkeypatch.setattr(
            time, "judgements", lambda _, base, step=step: judged_as(step, base=base, other="ab"[base == "a"])
        )
        assert_told(members, "idle_cores", (), *([] if words is None else [words]))


def test_groups_without_a_reward_are_counted():
    failed = {
        "score/failed_groups": Column(np.array([1.0, 4.0, 1.0, 1.0]), np.ones(4), "sum"),
        "score/failed_batches": Column(np.array([np.nan, 1.0, np.nan, np.nan]), np.array([0.0, 1.0, 0.0, 0.0]), "sum"),
    }
    assert_told([made_run(metrics=failed)], "failed_groups", (), "a 7 groups 1 steps")


def test_lengths_are_said_where_they_grow_with_the_reward():
    ends = {"a": (0.6, 12.0), "b": (0.6, 11.9), "c": (0.3, 30.0)}
    members = [made_run(arm, evaluations={0: (0.4, 10.0), 4: end}) for arm, end in ends.items()]
    assert_told(members, "length", (), "longer a 1.2 times")
    assert said(members[1:], "length") == []


def test_what_is_not_stable():
    fallen = {0: (0.4, 9.0), 2: (0.6, 9.0), 4: (0.49, 9.0)}
    unstable = made_run(metrics={"loss": [0.1, np.nan, np.inf, 0.1], NORM: [1.0, 1.0, 10.1, 1.0]}, evaluations=fallen)
    words = "loss not finite 2 steps norm 10.1 10 times step 2 reward 0.60 step 2 0.49 step 4"
    assert_told([unstable], "stability", (), f"a {words}")
    assert_told([made_run("a", 1), unstable], "stability", (), f"a seed 0 {words}")
    calm = {"loss": [0.1] * 4, NORM: [1.0, 1.0, 10.0, 1.0]}
    assert said([made_run(metrics=calm, evaluations=fallen | {4: (0.51, 9.0)})], "stability") == []


def test_importance_weights_are_told_with_the_gap():
    names = {"importance/truncated_fraction": 0.02, "importance/masked_fraction": 0.01, "engine_mismatch/kl": 0.003}
    icepop = made_run("icepop", metrics={name: [value] * 4 for name, value in names.items()})
    assert_told([made_run("off"), icepop], "importance", (), "icepop KL 0.003 bounded 2% left out 1%")


# ---- KL


def test_the_shapes_of_growth():
    steps = np.arange(40.0)
    shapes = {
        "grows about linearly": 0.001 * steps,
        "grows exponentially": np.exp(steps / 10),
        "levels off": 1 - np.exp(-steps / 10),
        "falls": -steps,
        "shows no clear trend": np.where(steps % 2 == 0, 1.0, -1.0),
    }
    assert [growth(steps, values)[0] for values in shapes.values()] == list(shapes)
    # a fifth of 40 points is 8: steepest from 32 to 39, the middle of which is 36; and from 0 to 7
    assert growth(steps, shapes["grows exponentially"]) == ("grows exponentially", 36.0)
    assert growth(steps, shapes["levels off"]) == ("levels off", 4.0)
    # 400,000 points are the means of 240 equal parts: the middle of the last 48 of them, 216 parts of 1667 from 0
    many = np.arange(400_000.0)
    assert growth(many, np.exp(1e-5 * many)) == ("grows exponentially", pytest.approx(216.5 * 400_000 / 240, rel=1e-3))
    assert growth(steps[:7], steps[:7]) is growth(steps, np.ones(40)) is None


def test_a_correlation_has_fishers_interval():
    """atanh(0.5) = 0.5493, 1.96 / sqrt(28 - 3) = 0.3920: tanh(0.1573) and tanh(0.9413)."""
    first = np.concatenate([np.ones(7), -np.ones(7), np.ones(7), -np.ones(7)])
    across = np.concatenate([np.ones(14), -np.ones(14)])
    known = correlation(first, 0.5 * first + np.sqrt(0.75) * across)
    assert known == (pytest.approx(0.5), pytest.approx(0.1560, abs=1e-4), pytest.approx(0.7358, abs=1e-4))
    assert correlation(first[:3], across[:3]) is correlation(np.ones(5), np.arange(5.0)) is None


def test_kl_is_said_with_its_shape_its_fastest_step_and_the_reward():
    def measured(arm, seed=0, lag=0):
        rewards = {step: (0.6 - 0.01 * step, 9.0) for step in range(0, 40, 10)}
        settings = {"loss": {"kl": {"reference": "frozen"}}, "max_lag": lag}
        values = np.exp(np.arange(40) / 10)
        return made_run(arm, seed, 40, metrics={"kl/reference_k3": values}, evaluations=rewards, settings=settings)

    (text,) = said([measured("a")], "kl")
    assert re.findall(r"initial policy \(k3|exponentially|step \d+|-0\.93 |biased|seed|4 ev", text) == [
        "initial policy (k3", "exponentially", "step 36", "-0.93 ", "4 ev",
    ]  # fmt: skip
    (text,) = said([measured("a", 0, 1), measured("a", 1, 1)], "kl")
    assert ("of seed 0 alone" in text, "biased" in text) == (True, True)
    few = made_run(metrics={"kl/reference_k1": [0.1, 0.2, 0.3, 0.25]})
    assert_told([few], "kl", (), "a KL reference k1 0.250")


# ---- time


def on_path(arm, exposed, **fields):
    """A run of four steps of 1 s with these seconds a step on the critical path."""
    times = lanes(4.0, 4.0, 4.0, 0.0, {stage: 4 * seconds for stage, seconds in exposed.items()}, learner=4.0)
    return made_run(arm, times=times, **fields)


def test_the_bottleneck_is_what_is_on_the_critical_path_for_longest():
    alone = on_path("a", {"generate": 0.3, "update": 0.55, "unattributed": 0.15})
    unseen = made_run("a", seed=1, wall_s=9.0)  # without spans: no part of a share
    others = [on_path("b", {"update": 0.6}), on_path("c", {"generate": 0.2, "update": 0.1, "unattributed": 0.7})]
    log_only = made_run(stages_s={"generate": 0.4, "update": 1.2})
    assert_told([alone], "bottleneck", (), "path update 55.0% 10% update 5.5%")
    assert_told([alone, unseen], "bottleneck", (), "path 1 of 2 runs update 55.0% 10% update 5.5%")
    every = "path update a 55.0% b 60.0% generate c 20.0% 10% update 5.5% of a unattributed 70.0% in c"
    assert_told([alone, *others], "bottleneck", (), every)
    assert_told([log_only], "bottleneck", (), "update 120.0% added over processes")
    command = whatif_command(made_experiment(alone, unseen), "a", "results/{}".format)
    assert command == "python -m harness whatif results/made/a/0 --scale update=0.9"
    assert whatif_command(made_experiment(log_only), "a", str) is None


def test_the_stages_that_make_a_difference_are_those_of_the_critical_path():
    """One that differs by 0.9% of a step is left out, as score between the first two."""
    base = on_path("a", {"generate": 0.4, "update": 0.5, "score": 0.02, "unattributed": 0.08})
    for exposed, told in (
        ({"generate": 0.1, "update": 0.52, "score": 0.029, "unattributed": 0.2},
         ["path b a generate -0.3 unattributed +0.12 update +0.02"]),
        ({"generate": 0.409}, ["path b a update -0.5 unattributed -0.08 score -0.02"]),
        ({"generate": 0.409, "update": 0.5, "score": 0.011, "unattributed": 0.08}, []),
    ):  # fmt: skip
        assert_told([base, on_path("b", exposed)], "stages", FASTER, *told)


def test_what_overlap_saved_and_could_bring():
    together = made_run("a", times=lanes(4.57, 6.93, 4.30, 2.632, {}, generator=2.5, learner=4.38))
    in_turns = made_run("b", times=lanes(5.0, 4.9, 4.9, 0.0, {}, generator=2.0, learner=2.5))
    saved = "2.63 of 6.93 s in a two 58%"
    assert_told([together], "overlap", (), saved)
    assert_told([together, in_turns], "overlap", (), saved, "2.00 times as fast in b learner 2.50 of 5.00 s")
    for wall_s, sentences in ((1.05, 1), (1.049, 0)):  # from 1.05 times on
        assert len(said([made_run(times=lanes(wall_s, 1.0, 1.0, 0.0, {}, learner=1.0))], "overlap")) == sentences


def test_step_times_that_drift_and_steps_that_are_slow():
    walls = [0.1] * 9 + [2.0] + [0.1] * 9 + [2.0] + [0.1] * 9 + [2.0]
    uneven = made_run("b", steps=30, wall_s=walls, warm_up=WarmUp(2, False, True))
    assert_told([made_run("a"), uneven], "drift", (), "drifting in b in b start too long")
    nothing = made_run("c", steps=0, warm_up=WarmUp(2, False, True))
    assert (said([made_run("a"), nothing], "drift"), mark(made_experiment(nothing), "c")) == ([], "")
    assert_told([made_run("a"), uneven], "slow_steps", (), "9 19 29 2.00 0.100 69.0%")  # 3 * 2 of 8.7 s


def test_a_rank_that_the_others_wait_for():
    rng = np.random.default_rng(0)

    def step(slow):
        return tuple(
            RankStep(500, 500, float(own * np.exp(rng.normal(0, 0.02))), 0.0, 0.0, 0.0) for own in (1.0, slow, 1.0)
        )

    (text,) = said([made_run(steps=12, ranks=[step(1.3) for _ in range(12)])], "stragglers")
    assert ("a: rank 1 " in text, "slower machine" in text) == (True, True)
    assert said([made_run(steps=12, ranks=[step(1.0) for _ in range(12)])], "stragglers") == []


# ---- what is read of recorded runs: checkpoints and contention


def test_what_checkpoints_cost_is_said(make_run, tmp_path):
    """Turns of 1 s and 0.2 s of a checkpoint: 0.2 of 1.2 s."""
    make_run(arm="none")
    stages = (*ONE_STEP, ("learner", Stage.CHECKPOINT, 0.2))
    make_run(arm="often", stages=stages, settings="steps: 4\ncheckpoint: {every: 1}\n")
    assert_told(only_experiment(tmp_path / "results"), "checkpoints", (), "often stalls 0.200 s 16.7% every")


def test_what_stood_in_the_way_is_of_the_first_run_with_counters(make_run, tmp_path):
    """The loop goes from 2 s to 6 s; in it the cgroup held the run back by 0.5 s for each second."""
    make_run(arm="a")
    for seed, held_s in ((1, 0.5), (2, 0.9)):
        run = make_run(arm="b", seed=seed, point={"seed": seed})
        run.append(*(CounterRow(at * 10**9, "host", {"throttled_s": held_s * at}) for at in range(7)))
        run.flush()
    assert_told(only_experiment(tmp_path / "results"), "contention", (), "b cgroup 2.00 s")


# ---- what to know before trusting the numbers


def test_simulated_runs_say_so():
    beyond = {"extrapolating": ["beyond 8 ranks."]}
    made = made_run(simulated="h100-sxm", machine={"origin": "datasheet"}, outcome=beyond)
    assert_told([made], "simulated", (), "simulated h100-sxm", "h100-sxm data sheets", "EXTRAPOLATING beyond 8 ranks")


def test_runs_that_did_not_finish_are_named():
    members = [
        made_run("a"),
        made_run("b", status="failed", error="the loss is nan."),
        made_run("b", 1, status="interrupted", settings={"steps": 9}),
    ]
    assert_told(members, "unfinished", (), "b seed 0 failed 4 steps loss nan", "b seed 1 interrupted 4 of 9 steps")
    assert_told(members, "answer", FASTER, f"{IS_FASTER} 2 of 2 runs of b not finish")
    nothing = judged_as(Effect(STEP, 0, None, None, None, None, None, None, 0.03, INCONCLUSIVE))
    assert_told(members, "answer", nothing, "Cannot tell which 2 of 2 runs of b not finish")


def test_cautions_of_verdicts_are_said_once_and_not_again():
    drifting = made_run("b", warm_up=WarmUp(0, False), threads=4)
    experiment = made_experiment(made_run("a"), drifting)
    cautions = ("the machine was busy", *said(experiment, "drift"), "b generated +9.0% tokens")
    judged = judged_as(*FASTER[0].effects, cautions=cautions) * 2
    assert said(experiment, "verdicts", judged) == ["The machine was busy.", "b generated +9.0% tokens."]
    assert_told(experiment, "unlike", (), "differ threads 2 threads 1 run 4 threads 1 run")


def test_arms_that_did_not_take_turns_step_by_step():
    """After each other, run by run, and what needs no word: arms in turns, seeds, simulated runs."""
    points = [made_run("a", point={"steps": steps}) for steps in (1, 2)]
    silent = ([made_run(arm) for arm in "ab"], [made_run("a", seed) for seed in (0, 1)])
    simulated = [made_run(arm, simulated="abacus", interleaving=None) for arm in "ab"]
    for members, words in (
        ([made_run(arm, interleaving=None) for arm in "ab"], ["followed each other drift"]),
        (points, ["followed each other drift"]),
        ([made_run(arm, block=0, interleaving="run") for arm in "ab"], ["block one after mirrored"]),
        *((members, []) for members in (*silent, simulated)),
    ):
        assert_told(members, "turns", (), *words)


def test_what_is_not_repeated_and_the_command_for_blocks():
    """It names a scenario that is looked up by its name so, and a file of the user's own by that."""
    quickstart = load_scenario("quickstart", ["steps=3", "model.preset=tiny", "sampling.stop=[a b]"])
    typed = quickstart.model_dump(mode="json")  # without what was typed it would be of other runs
    changes = "--set model.preset=tiny --set 'sampling.stop=[\"a b\"]' --set steps=3"
    for members, words in (
        ([made_run("a", scenario="made")], "made.yaml --blocks 10 --again"),  # nothing stands beside a single arm
        ([made_run(arm, scenario="sync_k1-vs-sync_k2") for arm in "ab"], "sync_k1 sync_k2 --blocks 10"),
        ([made_run(None, scenario="quickstart", settings=typed)], f"quickstart --blocks 10 --again {changes}"),
    ):
        ((_, command),) = said(members, "not_repeated")
        assert command == f"python -m harness bench {words}"
    for members in ([made_run("a"), made_run("a", 1)], [made_run(simulated="a")], [made_run(outcome={"imported": {}})]):
        assert said(members, "not_repeated") == []
