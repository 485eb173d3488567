"""What an experiment says: when each rule speaks and is silent, and the numbers in it, of runs made from values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.compare.endpoint import REWARD_AT_ROLLOUTS
from harness.compare.experiment import Experiment, Member, gather
from harness.compare.judging import NOT_IN_TURN, Judgement, judgements
from harness.compare.remarks import RULES, remarks_of, time
from harness.compare.remarks.answer import Difference, final_rewards, reward_difference
from harness.compare.remarks.learning import CAUSES, correlation, growth
from harness.compare.remarks.time import whatif_command
from harness.compare.signal import Divergence
from harness.compare.stats.verdicts import STEP, Effect, Verdict
from harness.compare.steadiness import mark
from harness.core.trace import Stage
from harness.core.types import RankStep
from harness.results import RunFolder
from harness.results.counters import CounterRow
from harness.results.frames import Column
from harness.results.rows import WarmUp
from harness.scenario.load import load_scenario
from tests.messages import facts
from tests.run_folders import ONE_STEP
from tests.stand_ins.members import lanes, made_experiment, made_run, seeds_of

Make = Callable[..., RunFolder]
REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def said(experiment: Experiment | Sequence[Member], key: str, judged: Sequence[Judgement] = ()) -> list[Any]:
    """Return the sentences of one rule."""
    made = experiment if isinstance(experiment, Experiment) else made_experiment(*experiment)
    (write,) = (write for name, _, write in RULES if name == key)
    return list(write(made, judged))


def effect(verdict: Verdict, ratio: float, low: float | None, high: float | None, **fields: Any) -> Effect:
    known: dict[str, Any] = {"p": 0.01, "p_adjusted": 0.01, "minimum_effect": 0.05, "blocks": 12} | fields
    return Effect(
        **{"name": STEP, "threshold": 0.03, "verdict": verdict, "ratio": ratio, "low": low, "high": high} | known
    )


def judged_as(*effects: Effect, **fields: Any) -> list[Judgement]:
    return [Judgement(**{"base": "a", "other": "b", "effects": effects} | fields)]


def test_each_rule_has_a_key_of_its_own_and_says_each_thing_once() -> None:
    """The keys of every reference experiment, and no sentence twice."""
    assert len({key for key, _, _ in RULES}) == len(RULES)
    for experiment in gather([REFERENCE])[0]:
        every = remarks_of(experiment, judgements(experiment))
        for said_once in ([remark.key for remark in every], [remark.text for remark in every]):
            assert len({*said_once}) == len(every)
        assert [remark.text for remark in every if not remark.text.endswith(".") and not remark.command] == []


def test_a_run_without_anything_of_note_is_its_answer_alone() -> None:
    assert [remark.key for remark in remarks_of(made_experiment(made_run()), [])] == ["answer", "not_repeated"]


def test_of_many_arms_a_few_are_said_and_the_others_counted() -> None:
    members = [
        made_run(f"a{place:02}", status="interrupted", evaluations={4: (place / 100, 9.0)}) for place in range(20)
    ]
    every = {remark.key: remark.text for remark in remarks_of(made_experiment(*members), [])}
    assert every["unfinished/6"] == "a05: interrupted after 4 steps."
    assert every["unfinished/7"] == "14 more like these."
    assert "unfinished/8" not in every
    finished = [made_run(f"a{place:02}", evaluations={4: (place / 100, 9.0)}) for place in range(20)]
    assert said(finished, "rewards")[0].endswith("a15 0.15; a14 0.14; 14 more (one seed each).")


# ---- the answer


DIFFERENT, EQUIVALENT, INCONCLUSIVE = Verdict.DIFFERENT, Verdict.EQUIVALENT, Verdict.INCONCLUSIVE
UNLIKE = Verdict.NOT_COMPARABLE
NOISY = "unknown (blocks too noisy)"
REACH = "such blocks tell differences from"


def was(ratio: float, blocks: int = 1, reason: str | None = None) -> Effect:
    return effect(INCONCLUSIVE, ratio, None, None, blocks=blocks, reason=reason)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (effect(DIFFERENT, 0.6, 0.57, 0.62), "b is 40% faster per step than a (38 to 43%, 12 blocks)"),
        (effect(DIFFERENT, 1.05, 1.03, 1.08), "b is 5.0% slower per step than a (3 to 8%, 12 blocks)"),
        (effect(DIFFERENT, 2.0, 1.9, 2.1), "b takes 2.0 times as long per step as a (1.9 to 2.1, 12 blocks)"),
        (effect(EQUIVALENT, 1.001, 0.99, 1.012), "b and a take the same per step: +0.1% (-1.0% to +1.2%, 12 blocks)"),
        (was(0.7), "b was 30.0% faster than a per step (one run each)"),
        (was(0.7, 9, "one occasion"), "b was 30.0% faster than a per step (9 runs each; one occasion)"),
        (was(0.7, 3, NOT_IN_TURN), "b was 30.0% faster than a per step (3 runs each)"),
        (was(2.5), "b was 2.5 times as slow as a per step (one run each)"),
        (was(0.5), "b was 2.0 times as fast as a per step (one run each)"),
        (effect(UNLIKE, 0.7, 0.66, 0.75, reason="they differ in machine"),
         "b and a cannot be compared: they differ in machine"),
    ],
)  # fmt: skip
def test_a_verdict_names_its_direction(made: Effect, text: str) -> None:
    assert said([made_run("a"), made_run("b")], "answer", judged_as(made)) == [f"{text}."]


@pytest.mark.parametrize(
    ("ratio", "low", "high", "fields", "text"),
    [
        # such blocks tell 9% on, the threshold is 3%: (ln 1.09 / ln 1.03)^2 * 12 = 8.50 * 12 = 102.0
        (0.98, 0.91, 1.055, {"minimum_effect": 0.09},
         f"-2.0% (-9.0% to +5.5%, 12 blocks); {REACH} 9.0% on, and 3.0% takes about 102 of them"),
        (0.98, 0.51, 1.9, {"minimum_effect": 0.9},
         f"-2.0% (-49.0% to +90.0%, 12 blocks); {REACH} 90.0% on, and 3.0% takes more than 1,000 of them"),
        (0.98, 0.966, 0.995, {"minimum_effect": 0.031},
         f"-2.0% (-3.4% to -0.5%, 12 blocks); {REACH} 3.1% on, and 3.0% takes about 13 of them"),
        (0.95, 0.91, 0.99, {"p_adjusted": 0.2},
         f"-5.0% (-9.0% to -1.0%, 12 blocks), which may be chance among so many comparisons; {REACH} 5.0% on, and 3.0% "
         "takes about 33 of them"),
        (0.98, 0.49, 1.9, {}, NOISY),
        (0.98, 0.9, 2.1, {}, NOISY),
        (0.7, 0.66, 0.75, {"blocks": 4, "p_adjusted": None},
         "-30.0% (-34.0% to -25.0%, 4 blocks); a verdict needs 6 blocks"),
        (0.7, 0.06, 9.5, {"blocks": 2, "p_adjusted": None}, "-30.0% in 2 blocks; a verdict needs 6 blocks"),
        (0.7, 0.66, 0.75, {"p_adjusted": None, "reason": "2 of 12 were not measured"},
         "-30.0% (-34.0% to -25.0%, 12 blocks); 2 of 12 were not measured"),
    ],
)  # fmt: skip
def test_an_open_verdict_says_what_it_would_take(
    ratio: float, low: float, high: float, fields: dict[str, Any], text: str
) -> None:
    (answer,) = said(
        [made_run("a"), made_run("b")], "answer", judged_as(effect(INCONCLUSIVE, ratio, low, high, **fields))
    )
    what = "3.0% faster" if "13 of them" in text else "faster"  # a change shows, but not whether it counts
    assert answer == f"Cannot tell whether b is {what} per step than a: {text}."


def test_time_and_reward_are_one_answer_with_one_interval() -> None:
    """Differences 0.02, 0.01, 0.03: mean 0.02, sd 0.01; t(0.975, 2) = 4.3027: 4.3027 * 0.01 / sqrt(3) = 0.0248."""
    experiment = made_experiment(*seeds_of("a", (0.50, 0.60, 0.40)), *seeds_of("b", (0.52, 0.61, 0.43)))
    faster = effect(DIFFERENT, 0.6, 0.57, 0.62)
    # to see 0.03 in 80%: (4.3027 + 1.0607) * 0.01 / sqrt(3) = 0.03096, so 3 * (0.03096 / 0.03)^2 = 3.2 seeds
    shown = "no difference in reward shown (+0.02, -0.00 to +0.04, 3 seeds; to see 0.03 takes about 4 seeds)"
    assert said(experiment, "answer", judged_as(faster)) == [
        f"b is 40% faster per step than a (38 to 43%, 12 blocks); {shown}."
    ]
    assert reward_difference(experiment, "a", "b") == Difference(
        pytest.approx(0.02), pytest.approx(-0.00484, abs=1e-4), pytest.approx(0.04484, abs=1e-4), 3, 1
    )
    # where rewards decide they come first, with the same interval and not one that is widened for the machine
    reward = effect(INCONCLUSIVE, exp(-0.02), exp(-0.2), exp(0.16), name=REWARD_AT_ROLLOUTS.name)
    (text,) = said(experiment, "answer", judged_as(reward, faster))
    assert text.startswith("no difference in reward shown between b and a (+0.02, -0.00 to +0.04, 3 seeds;")
    assert text.endswith("; b is 40% faster per step than a (38 to 43%, 12 blocks).")
    (alone,) = said(experiment, "answer", judged_as(reward))  # as against another folder, where nothing else is judged
    assert alone == text.partition(" b is 40%")[0].removesuffix(";") + "."


@pytest.mark.parametrize(
    ("rewards", "text"),
    [
        ((0.60, 0.62, 0.64), "final reward higher (+0.12, +0.07 to +0.17, 3 seeds)"),  # sd 0.02 / sqrt(3) * 4.3027
        ((0.36, 0.38, 0.40), "final reward lower (-0.12, -0.17 to -0.07, 3 seeds)"),
        ((0.50, 0.51, 0.49), "same final reward (+0.00, -0.02 to +0.02, 3 seeds)"),  # sd 0.01: 0.0248, within 0.03
    ],
)
def test_rewards_are_higher_lower_or_the_same(rewards: tuple[float, ...], text: str) -> None:
    members = [*seeds_of("a", (0.5, 0.5, 0.5)), *seeds_of("b", rewards)]
    assert said(members, "answer", judged_as(effect(DIFFERENT, 0.6, 0.57, 0.62)))[0].endswith(f"; {text}.")


def test_rewards_without_an_interval_are_no_part_of_an_answer() -> None:
    faster = judged_as(effect(DIFFERENT, 0.6, 0.57, 0.62))
    plain = ["b is 40% faster per step than a (38 to 43%, 12 blocks)."]
    assert said([*seeds_of("a", (0.5, 0.5)), *seeds_of("b", (0.6, 0.6))], "answer", faster) == plain
    sleeping = [*seeds_of("a", (0.1, 0.1, 0.1)), *seeds_of("b", (0.1, 0.1, 0.1))]
    assert said(sleeping, "answer", faster) == plain


def test_of_many_arms_those_that_differ_most_are_in_the_answer() -> None:
    ratios = {"b": 1.1, "c": 0.9, "d": 1.5, "e": 1.2, "f": 1.02, "g": 1.4}
    judged = [judged_as(effect(DIFFERENT, it, it - 0.01, it + 0.01), other=arm)[0] for arm, it in ratios.items()]
    texts = said([made_run(arm) for arm in "abcdefg"], "answer", judged)
    assert [text[0] for text in texts] == ["c", "d", "e", "g", "T"]
    assert texts[-1] == "The table has more: these 4 of 6 arms differ most."


def test_a_single_arm_says_how_long_a_step_takes_and_how_sure_its_reward_is() -> None:
    ends = {0: (0.375, 9.0), 4: (0.4375, 9.0)}
    # 1.96 * sqrt(0.4375 * 0.5625 / 16) = 0.243
    assert said([made_run(evaluations=ends, prompts=16, wall_s=0.31)], "answer") == [
        "a: 0.310 s per step; validation reward 0.38 to 0.44 (16 prompts: +-0.24) in 4 steps."
    ]
    assert said(seeds_of("a", (0.80, 0.82, 0.84)), "answer") == [
        "a: 1.00 s per step (1.00 to 1.00 in 3 runs); validation reward 0.40 to 0.82 (95% interval 0.77 to 0.87, "
        "3 seeds) in 4 steps."
    ]
    assert said([made_run(steps=0, status="failed")], "answer") == ["a: failed, no step was measured."]


def test_an_arm_of_the_baselines_settings_is_the_noise() -> None:
    same = effect(EQUIVALENT, 0.992, 0.977, 1.008)
    floor = judged_as(same, other="again", is_noise_floor=True)
    both = judged_as(same) + floor
    members = [made_run("a"), made_run("again"), made_run("b")]
    assert said(members, "noise_floor", both) == [
        "again has the settings of a: the -0.8% (-2.3% to +0.8%) between them is the machine's noise."
    ]
    assert [text[:7] for text in said(members, "answer", both)] == ["b and a"]
    assert said(members, "noise_floor", floor) == []
    assert [text[:11] for text in said(members, "answer", floor)] == ["again and a"]


# ---- rewards over seeds


def test_the_final_rewards_of_a_sweep_in_order() -> None:
    """Means 0.82 and 0.62; t(0.975, 2) = 4.303: sd 0.02 / sqrt(3) * 4.303 = 0.0497, sd 0.01732: 0.0430."""
    lost = {"divergence": Divergence(1, stopped=False)}
    members = [
        *seeds_of("a", (0.60, 0.63, 0.63)),
        *seeds_of("b", (0.80, 0.82, 0.84)),
        *seeds_of("c", (0.0, 0.0, 0.0), figures=lost),
    ]
    judged = judged_as(effect(DIFFERENT, 0.6, 0.57, 0.62))
    assert said(members, "rewards", judged) == [
        "Final validation reward: b 0.82 (95% interval 0.77 to 0.87, 3 seeds); a 0.62 (95% interval 0.58 to 0.66, "
        "3 seeds); c 0.00 (95% interval 0.00 to 0.00, 3 seeds), 3 diverged."
    ]  # fmt: skip


def test_more_arms_need_more_to_show_a_difference() -> None:
    """Differences of 0.10, 0.12, 0.14, of sd / sqrt(3) 0.01155: shown alone and beside one more arm, not three."""
    finals = {"a": (0.80, 0.80, 0.80), "b": (0.70, 0.68, 0.66)} | dict.fromkeys("cde", (0.1, 0.5, 0.3))
    every = {arm: seeds_of(arm, rewards) for arm, rewards in finals.items()}
    # 1, 3 and 10 pairs: t(0.975, 2) = 4.303, t(1 - 0.05 / 6, 2) = 7.649, t(1 - 0.05 / 20, 2) = 14.089
    for arms, ends, pairs in (("ab", (0.07, 0.17), 1), ("abc", (0.032, 0.208), 3), ("abcde", (-0.043, 0.283), 10)):
        known = reward_difference(made_experiment(*(run for arm in arms for run in every[arm])), "b", "a")
        assert known is not None
        assert ((round(known.low, 3), round(known.high, 3)), known.pairs) == (ends, pairs)


def test_rewards_of_unlike_seeds_are_in_no_order() -> None:
    cut = made_run("b", 1, 2, evaluations={0: (0.4, 9.0), 2: (0.7, 9.0)}, status="interrupted")
    experiment = made_experiment(*seeds_of("a", (0.6, 0.6)), seeds_of("b", (0.9,))[0], cut)
    assert final_rewards(experiment) == {"a": {0: 0.6, 1: 0.6}, "b": {0: 0.9}}
    assert reward_difference(experiment, "a", "b") is None
    assert said(experiment, "rewards") == [
        "Final validation reward: b 0.90; a 0.60 (0.60 to 0.60, 2 seeds); b and a did not end with the same seeds, so "
        "their order is open."
    ]


def test_rewards_on_different_prompts_are_not_compared() -> None:
    def validated_on(arm: str, digest: str) -> list[Member]:
        return seeds_of(arm, (0.5, 0.6, 0.7), inputs={"validation_prompts": {"sha256": digest * 64}})

    for digest in "ab":
        known = reward_difference(made_experiment(*validated_on("a", "a"), *validated_on("b", digest)), "a", "b")
        assert (known is None) == (digest == "b")


def test_rewards_that_are_no_news_are_not_said() -> None:
    assert said(seeds_of("a", (0.5, 0.6, 0.7)), "rewards") == []  # in the answer
    assert said([*seeds_of("a", (0.2,)), *seeds_of("b", (0.2,))], "rewards") == []
    assert said([*seeds_of("a", (0.5,)), *seeds_of("b", (0.9,))], "rewards") == [
        "Final validation reward: b 0.90; a 0.50 (one seed each)."
    ]


def test_how_runs_diverged() -> None:
    stopped, lost = (Divergence(step, stopped=step == 2) for step in (2, 3))
    members = [made_run("a"), made_run("b", figures={"divergence": stopped})]
    members += [made_run("c", seed, figures={"divergence": lost}) for seed in (0, 1)]
    assert said(members, "diverged") == [
        "Diverged: b at step 2: a number was not finite and the run had to stop.",
        "Diverged: c (seed 0) at step 3 and c (seed 1) at step 3: from there on every reward was at most a tenth of "
        "the run's best validation reward.",
    ]


# ---- learning


def without_signal(shares: Sequence[float], settings: Mapping[str, Any] | None = None, **fields: Any) -> Member:
    values = Column(np.array(shares), np.full(len(shares), 8.0), "mean")
    return made_run(metrics={"zero_variance_fraction": values}, settings=settings, **fields)


def test_steps_without_a_signal_are_said_from_more_than_half_on() -> None:
    every = f"a had nothing to learn from in every training step: there, {CAUSES['equal']}."
    assert said([without_signal([1.0, 1.0, 1.0, 1.0])], "no_signal") == [every]
    both = [without_signal([1.0, 1.0, 1.0, 0.9]), without_signal([1.0, 1.0, 0.5, 0.9], seed=1)]
    assert "in 75% of its training steps (1 of 2 runs): there, " in said(both, "no_signal")[0]
    assert said([without_signal([1.0, 1.0, 0.5, 0.9])], "no_signal") == []
    for settings in ({"loss": {"type": "no_baseline"}}, {"advantage": {"delta": "own"}}, {"model": {"type": "paced"}}):
        assert said([without_signal([1.0] * 4, settings)], "no_signal") == []


WEIGHED, NORM = "advantage/nonzero_fraction", "grad_norm"


def reaching(arm: str, seed: int, at: int | None, every: int = 1, steps: int = 8) -> Member:
    rewards = {step: (0.6 if at is not None and step >= at else 0.4, 9.0) for step in range(0, steps + 1, every)}
    return made_run(arm, seed, steps, evaluations=rewards, settings={"reward_target": 0.5})


def test_a_target_is_counted_over_seeds() -> None:
    """Five evaluations before the one that reached it say when that was; fewer do not."""
    members = [reaching("a", seed, at) for seed, at in enumerate((6, 8))]
    members += [reaching("b", 0, 5), reaching("b", 1, None)]
    assert said(members, "target") == [
        "Validation reward 0.5: a 2 of 2 seeds at step 6 to 8; b 1 of 2 seeds at step 5."
    ]
    coarse = [reaching("a", 0, 4, every=4), reaching("b", 0, None, every=4)]
    assert said(coarse, "target") == [
        "Validation reward 0.5: a by step 4; b not reached; evaluations are up to 4 steps apart."
    ]
    assert said([reaching("a", 0, None), reaching("b", 0, None)], "target") == ["No run reached validation reward 0.5."]
    assert said([reaching("a", 0, 5)], "target") == []
    sleeping = {"reward_target": 0.5, "model": {"type": "paced"}}
    assert said([made_run(arm, settings=sleeping) for arm in "ab"], "target") == []


def test_cores_that_do_not_make_an_arm_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_threads(arm: str, threads: int | None, rate: float = 1e-4) -> Member:
        return made_run(arm, settings={"model": {"threads": threads}, "optimizer": {"learning_rate": rate}})

    def said_of(low: float, high: float, other: Member, one: Member = with_threads("a", 1)) -> list[str]:  # noqa: B008
        step = effect(Verdict.INCONCLUSIVE, 1.01, low, high)
        monkeypatch.setattr(
            time, "judgements", lambda experiment, base: judged_as(step, base=base, other="ab"[base == "a"])
        )
        return said([one, other], "idle_cores")

    same = "which has the same settings and fewer cores (model.threads 2 against 1): +1.0% seconds per step"
    two = with_threads("b", 2)
    assert said_of(0.99, 1.03, two) == [f"b is not faster than a, {same} (-1.0% to +3.0%)."]
    assert said_of(0.96, 1.06, two) == [f"b is not shown to be faster than a, {same} (-4.0% to +6.0%)."]
    assert said_of(0.99, 1.03, with_threads("b", 1), with_threads("a", 2))[0].startswith("a is not faster than b, ")
    cpus = [made_run(arm, settings={"placement": {"generator": {"cpus": n}}}) for n, arm in enumerate("ab", start=1)]
    assert "(placement.generator.cpus 2 against 1)" in said_of(0.99, 1.03, cpus[1], cpus[0])[0]
    assert said_of(0.9, 0.99, two) == []
    assert said_of(0.99, 1.03, with_threads("b", 2, rate=1e-3)) == []
    assert said_of(0.99, 1.03, with_threads("b", None)) == []


def test_steps_that_moved_the_weights_all_the_same_and_few_responses_with_a_signal() -> None:
    norms = [0.0, 1.0, 0.0, 0.0, 0.0]
    weighed = Column(np.array([float(norm > 0) for norm in norms]), np.full(5, 8.0), "mean")
    (text,) = said([made_run(steps=5, metrics={NORM: norms, WEIGHED: weighed})], "no_signal")
    assert "in 80% of its training steps" in text
    assert "In 3 of them the optimizer moved the weights all the same" in text
    few = {WEIGHED: Column(np.array([0.1, 0.3, 0.0, 0.2]), np.full(4, 8.0), "mean"), NORM: [0.1] * 4}
    assert said([made_run(metrics=few)], "no_signal")[0].startswith("a learned from 15.0% of the responses")


def test_groups_without_a_reward_are_counted() -> None:
    failed = {
        "score/failed_groups": Column(np.array([1.0, 4.0, 1.0, 1.0]), np.ones(4), "sum"),
        "score/failed_batches": Column(np.array([np.nan, 1.0, np.nan, np.nan]), np.array([0.0, 1.0, 0.0, 0.0]), "sum"),
    }
    (text,) = said([made_run(metrics=failed)], "failed_groups")
    assert text == "a: 7 groups had no reward; in 1 training steps no group of the batch had one."


def test_lengths_are_said_where_they_grow_with_the_reward() -> None:
    def growing(arm: str, last: float, reward: float = 0.6) -> Member:
        return made_run(arm, evaluations={0: (0.4, 10.0), 4: (reward, last)})

    assert said([growing("a", 12.0), growing("b", 11.9), growing("c", 30.0, reward=0.3)], "length") == [
        "Responses grew longer as the reward rose in a (1.2 times): part of the gain may be length."
    ]
    assert said([growing("a", 11.9)], "length") == []


def test_what_is_not_stable() -> None:
    metrics = {"loss": [0.1, np.nan, np.inf, 0.1], NORM: [1.0, 1.0, 10.1, 1.0]}
    fallen = {0: (0.4, 9.0), 2: (0.6, 9.0), 4: (0.49, 9.0)}
    unstable = made_run(metrics=metrics, evaluations=fallen)
    assert [text.partition(":")[0] for text in said([made_run("a", 1), unstable], "stability")] == ["a (seed 0)"]
    assert said([unstable], "stability") == [
        "a: loss was not finite in 2 steps; the gradient norm peaked at 10.1, 10 times its median, at step 2; the "
        "reward fell from 0.60 at step 2 to 0.49 at step 4."
    ]
    calm = {"loss": [0.1] * 4, NORM: [1.0, 1.0, 10.0, 1.0]}
    assert said([made_run(metrics=calm, evaluations=fallen | {4: (0.51, 9.0)})], "stability") == []


def test_importance_weights_are_told_with_the_gap() -> None:
    names = {"importance/truncated_fraction": 0.02, "importance/masked_fraction": 0.01, "engine_mismatch/kl": 0.003}
    icepop = made_run("icepop", metrics={name: [value] * 4 for name, value in names.items()})
    assert said([made_run("off"), icepop], "importance") == [
        "Importance weights of the response tokens, Learner over engine: icepop KL 0.003 per token, bounded 2%, of "
        "these left out 1%."
    ]


# ---- KL


def test_the_shapes_of_growth() -> None:
    steps = np.arange(40.0)
    shapes = {
        "grows about linearly": 0.001 * steps,
        "grows exponentially": np.exp(steps / 10),
        "levels off": 1 - np.exp(-steps / 10),
        "falls": -steps,
        "shows no clear trend": np.where(steps % 2 == 0, 1.0, -1.0),
    }
    assert [growth(steps, values)[0] for values in shapes.values()] == list(shapes)  # type: ignore[index]
    # a fifth of 40 points is 8: steepest from 32 to 39, the middle of which is 36; and from 0 to 7
    assert growth(steps, shapes["grows exponentially"]) == ("grows exponentially", 36.0)
    assert growth(steps, shapes["levels off"]) == ("levels off", 4.0)
    # 400,000 points are the means of 240 equal parts: the middle of the last 48 of them, 216 parts of 1667 from 0
    many = np.arange(400_000.0)
    assert growth(many, np.exp(1e-5 * many)) == ("grows exponentially", pytest.approx(216.5 * 400_000 / 240, rel=1e-3))
    assert growth(steps[:7], steps[:7]) is None
    assert growth(steps, np.ones(40)) is None


def test_a_correlation_has_fishers_interval() -> None:
    """atanh(0.5) = 0.5493, 1.96 / sqrt(28 - 3) = 0.3920: tanh(0.1573) and tanh(0.9413)."""
    first = np.concatenate([np.ones(7), -np.ones(7), np.ones(7), -np.ones(7)])
    across = np.concatenate([np.ones(14), -np.ones(14)])
    known = correlation(first, 0.5 * first + np.sqrt(0.75) * across)
    assert known == (pytest.approx(0.5), pytest.approx(0.1560, abs=1e-4), pytest.approx(0.7358, abs=1e-4))
    assert correlation(first[:3], across[:3]) is None
    assert correlation(np.ones(5), np.arange(5.0)) is None


def test_kl_is_said_with_its_shape_its_fastest_step_and_the_reward() -> None:
    def measured(arm: str, seed: int = 0, lag: int = 0) -> Member:
        rewards = {step: (0.6 - 0.01 * step, 9.0) for step in range(0, 40, 10)}
        settings = {"loss": {"kl": {"reference": "frozen"}}, "max_lag": lag}
        values = np.exp(np.arange(40) / 10)
        return made_run(arm, seed, 40, metrics={"kl/reference_k3": values}, evaluations=rewards, settings=settings)

    (text,) = said([measured("a")], "kl")
    assert text.startswith(
        "a: KL to the initial policy (k3, per token) grows exponentially, fastest around step 36; its correlation with "
        "the validation reward is -0.93 ("
    )
    assert text.endswith(", 4 evaluations).")
    (text,) = said([measured("a", 0, 1), measured("a", 1, 1)], "kl")
    assert text.endswith("; of seed 0 alone; biased, as the sampling policy is an older one.")
    few = made_run(metrics={"kl/reference_k1": [0.1, 0.2, 0.3, 0.25]})
    assert said([few], "kl") == ["a: KL to the reference (k1, per token) ends at 0.250."]


# ---- time


def on_path(arm: str, exposed: dict[str, float], **fields: Any) -> Member:
    """A run of four steps of 1 s with these seconds a step on the critical path."""
    times = lanes(4.0, 4.0, 4.0, 0.0, {stage: 4 * seconds for stage, seconds in exposed.items()}, learner=4.0)
    return made_run(arm, times=times, **fields)


def test_the_bottleneck_is_what_is_on_the_critical_path_for_longest() -> None:
    alone = on_path("a", {"generate": 0.3, "update": 0.55, "unattributed": 0.15})
    assert said([alone], "bottleneck") == [
        "Bottleneck on the critical path: update, 55.0% of a step. 10% off update takes at most 5.5% off a step."
    ]
    unseen = made_run("a", seed=1, wall_s=9.0)  # without spans: no part of a share
    (text,) = said([alone, unseen], "bottleneck")
    assert text == said([alone], "bottleneck")[0].replace("path:", "path (1 of 2 runs):")
    assert whatif_command(made_experiment(alone, unseen), "a", "results/{}".format) == (
        "python -m harness whatif results/made/a/0 --scale update=0.9"
    )
    others = [on_path("b", {"update": 0.6}), on_path("c", {"generate": 0.2, "update": 0.1, "unattributed": 0.7})]
    assert said([alone, *others], "bottleneck") == [
        "Bottleneck on the critical path: update in a (55.0% of a step) and b (60.0%); "
        "generate in c (20.0%). 10% off update takes at most 5.5% off a step of a. Still more of a step is "
        "unattributed: 70.0% in c."
    ]
    log_only = made_run(stages_s={"generate": 0.4, "update": 1.2})
    assert said([log_only], "bottleneck") == ["Largest stage: update, 120.0% of a step, added over processes."]
    assert whatif_command(made_experiment(log_only), "a", str) is None


def test_the_stages_that_make_a_difference_are_those_of_the_critical_path() -> None:
    members = [
        on_path("a", {"generate": 0.4, "update": 0.5, "score": 0.02, "unattributed": 0.08}),
        on_path("b", {"generate": 0.1, "update": 0.52, "score": 0.029, "unattributed": 0.2}),
    ]
    judged = judged_as(effect(DIFFERENT, 0.8, 0.7, 0.9))
    # score differs by 0.9% of a step
    assert said(members, "stages", judged) == [
        "On the critical path of b against a, per step: generate -0.3 s, unattributed +0.12 s, update +0.02 s."
    ]
    assert said([members[0], on_path("b", {"generate": 0.409})], "stages", judged) == [
        "On the critical path of b against a, per step: update -0.5 s, unattributed -0.08 s, score -0.02 s."
    ]
    same = on_path("b", {"generate": 0.409, "update": 0.5, "score": 0.011, "unattributed": 0.08})
    assert said([members[0], same], "stages", judged) == []


def test_what_overlap_saved_and_could_bring() -> None:
    together = made_run("a", times=lanes(4.57, 6.93, 4.30, 2.632, {}, generator=2.5, learner=4.38))
    in_turns = made_run("b", times=lanes(5.0, 4.9, 4.9, 0.0, {}, generator=2.0, learner=2.5))
    assert said([together], "overlap") == ["Overlap saved 2.63 of 6.93 s in a (two processes busy 58% of the time)."]
    assert said([together, in_turns], "overlap")[1] == (
        "With perfect overlap the loop would be at most 2.00 times as fast in b (learner busy 2.50 of 5.00 s)."
    )
    close = made_run(times=lanes(1.05, 1.0, 1.0, 0.0, {}, learner=1.0))  # 1.05 times
    assert len(said([close], "overlap")) == 1
    assert said([made_run(times=lanes(1.049, 1.0, 1.0, 0.0, {}, learner=1.0))], "overlap") == []


def test_step_times_that_drift_and_steps_that_are_slow() -> None:
    walls = [0.1] * 9 + [2.0] + [0.1] * 9 + [2.0] + [0.1] * 9 + [2.0]
    uneven = made_run("b", steps=30, wall_s=walls, warm_up=WarmUp(2, False, True))
    assert said([made_run("a"), uneven], "drift") == [
        "The step time was still drifting after warm-up in b; in b the start is slower and lasts too long to be left "
        "out."
    ]
    nothing = made_run("c", steps=0, warm_up=WarmUp(2, False, True))
    assert (said([made_run("a"), nothing], "drift"), mark(made_experiment(nothing), "c")) == ([], "")
    # 3 * 2 of 8.7 s
    assert [facts(text) for text in said([made_run("a"), uneven], "slow_steps")] == ["9 19 29 2.00 0.100 69.0"]


def test_a_rank_that_the_others_wait_for() -> None:
    rng = np.random.default_rng(0)

    def step(slow: float) -> tuple[RankStep, ...]:
        return tuple(
            RankStep(500, 500, float(own * np.exp(rng.normal(0, 0.02))), 0.0, 0.0, 0.0) for own in (1.0, slow, 1.0)
        )

    (text,) = said([made_run(steps=12, ranks=[step(1.3) for _ in range(12)])], "stragglers")
    assert text.startswith("a: rank 1 computes ")
    assert text.endswith("longer than the others at equal tokens: slower machine.")
    assert said([made_run(steps=12, ranks=[step(1.0) for _ in range(12)])], "stragglers") == []


# ---- what is read of recorded runs: checkpoints, contention, lag, replay, syncs


def read(tmp_path: Path) -> Experiment:
    (experiment,), damaged = gather([tmp_path / "results"])
    assert damaged == []
    return experiment


def test_what_checkpoints_cost_and_how_far_apart_they_lose_least(make_run: Make, tmp_path: Path) -> None:
    """Turns of 1 s and 0.2 s of a checkpoint: C = 0.2, 0.2 of 1.2 s. With M = 3600 the best T is 38 s.

    sqrt(2 C M) = 37.95, C / 2M = 2.78e-5: 37.95 (1 + 0.00527 / 3 + 0.000003) - 0.2 = 37.81.
    """
    stages = (*ONE_STEP, ("learner", Stage.CHECKPOINT, 0.2))
    make_run(arm="none")
    make_run(arm="often", stages=stages, settings="steps: 4\ncheckpoint: {every: 1}\n")
    (text,) = said(read(tmp_path), "checkpoints")
    assert text == (
        "often: a checkpoint stalls the Learner for 0.200 s: 16.7% of the time with one every training step."
    )


def test_what_stood_in_the_way_is_of_the_first_run_with_counters(make_run: Make, tmp_path: Path) -> None:
    """The loop goes from 2 s to 6 s; in it the cgroup held the run back by 0.5 s for each second."""
    make_run(arm="a")
    for seed, held_s in ((1, 0.5), (2, 0.9)):
        run = make_run(arm="b", seed=seed, point={"seed": seed})
        run.append(*(CounterRow(at * 10**9, "host", {"throttled_s": held_s * at}) for at in range(7)))
        run.flush()
    (text,) = said(read(tmp_path), "contention")
    assert text == "b: the CPU limit of the cgroup held it back for 2.00 s, added over cores."


# ---- what to know before trusting the numbers


def test_simulated_runs_say_so() -> None:
    beyond = {"extrapolating": ["beyond 8 ranks."]}
    made = made_run(simulated="h100-sxm", machine={"origin": "datasheet"}, outcome=beyond)
    assert said([made], "simulated") == [
        "These runs are simulated: their seconds are predictions of the machine profile h100-sxm. Rewards, losses and "
        "gradients are not simulated.",
        "The machine profile h100-sxm is taken from data sheets and was not measured.",
        "EXTRAPOLATING: beyond 8 ranks.",
    ]


def test_runs_that_did_not_finish_are_named() -> None:
    members = [
        made_run("a"),
        made_run("b", status="failed", error="the loss is nan."),
        made_run("b", 1, status="interrupted", settings={"steps": 9}),
    ]
    assert said(members, "unfinished") == [
        "b (seed 0): failed after 4 steps: the loss is nan.",
        "b (seed 1): interrupted after 4 of 9 steps.",
    ]
    answer = said(members, "answer", judged_as(effect(DIFFERENT, 0.6, 0.57, 0.62)))
    assert answer == ["b is 40% faster per step than a (38 to 43%, 12 blocks); 2 of 2 runs of b did not finish."]
    nothing = judged_as(Effect(STEP, 0, None, None, None, None, None, None, 0.03, INCONCLUSIVE))
    assert said(members, "answer", nothing) == ["Cannot tell which arm is faster: 2 of 2 runs of b did not finish."]


def test_cautions_of_verdicts_are_said_once_and_not_again() -> None:
    drifting = made_run("b", warm_up=WarmUp(0, False), threads=4)
    members = [made_run("a"), drifting]
    experiment = made_experiment(*members)
    notes = said(experiment, "drift")
    cautions = ("the machine was not equally busy", *notes, "b generated +9.0% tokens per step against a")
    judged = judged_as(effect(DIFFERENT, 0.6, 0.57, 0.62), cautions=cautions) * 2
    assert said(experiment, "verdicts", judged) == [
        "The machine was not equally busy.", "b generated +9.0% tokens per step against a.",
    ]  # fmt: skip
    assert said(experiment, "unlike") == ["The runs differ in threads (2 threads: 1 run; 4 threads: 1 run)."]


def test_arms_that_did_not_take_turns_step_by_step() -> None:
    after = "Runs followed each other, so drift of the machine shows as a difference between them."
    blocks = "The arms of a block ran one after the other, in mirrored order from block to block."
    points = [made_run("a", point={"steps": steps}) for steps in (1, 2)]
    assert said([made_run(arm, interleaving=None) for arm in "ab"], "turns") == said(points, "turns") == [after]
    assert said([made_run(arm, block=0, interleaving="run") for arm in "ab"], "turns") == [blocks]
    silent = ([made_run(arm) for arm in "ab"], [made_run("a", seed) for seed in (0, 1)])
    simulated = [made_run(arm, simulated="abacus", interleaving=None) for arm in "ab"]
    assert [said(members, "turns") for members in (*silent, simulated)] == [[]] * 3


def test_what_is_not_repeated() -> None:
    """The command names a scenario that is looked up by its name so, and a file of the user's own by that."""
    for arms, runs, scenario, typed, again in (
        ("a", "One run", "made", "made.yaml", " --again"),  # a single arm has nothing beside it
        ("ab", "One run each", "sync_k1-vs-sync_k2", "sync_k1 sync_k2", ""),
    ):
        told = said([made_run(arm, scenario=scenario) for arm in arms], "not_repeated")
        assert told == [(f"{runs}: no error bars. For some:", f"python -m harness bench {typed} --blocks 10{again}")]


def test_the_command_for_blocks_has_the_settings_that_were_typed() -> None:
    """Without them it would be of other runs."""
    typed = load_scenario("quickstart", ["steps=3", "model.preset=tiny", "sampling.stop=[a b]"]).model_dump(mode="json")
    ((_, command),) = said([made_run(None, scenario="quickstart", settings=typed)], "not_repeated")
    changes = "--set model.preset=tiny --set 'sampling.stop=[\"a b\"]' --set steps=3"
    assert command == f"python -m harness bench quickstart --blocks 10 --again {changes}"


def test_runs_that_are_repeated_or_cannot_be_need_no_command() -> None:
    twice = [made_run("a"), made_run("a", 1)]
    for members in (twice, [made_run(simulated="abacus")], [made_run(outcome={"imported": {}})]):
        assert said(members, "not_repeated") == []
