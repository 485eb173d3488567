"""From blocks to verdicts, each with the figures that lead to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compare.stats import Effect, PairedBlock, Verdict, judge_apart, judge_stages, judge_step
from harness.compare.stats.intervals import t_quantile
from harness.core.errors import UserError

# Ten log-ratios around 0 with a standard deviation of 1 (each of -1 and 1 scaled by sqrt(0.9)): the 95% interval of
# their mean has the half-width 2.262157 / sqrt(10) = 0.715357
HALF_WIDTH = 0.715357
WIGGLE = [math.sqrt(0.9) * sign for sign in (1, -1) * 5]


def blocks(values: Sequence[float]) -> list[PairedBlock]:
    """One block for each log-ratio."""
    return [PairedBlock((1.0,), (math.exp(value),), alternated=True) for value in values]


def around(change: float, spread: float, count: int = 10) -> list[PairedBlock]:
    """Ten blocks whose mean log-ratio is log(1 + change), with the standard deviation ``spread``."""
    return blocks([math.log1p(change) + spread * value for value in WIGGLE[:count]])


def interval(effect: Effect) -> tuple[float, float]:
    assert effect.low is not None
    assert effect.high is not None
    return effect.low, effect.high


def test_a_change_that_shows_and_counts_is_different() -> None:
    effect = judge_step(around(0.05, 0.02))
    assert effect.verdict is Verdict.DIFFERENT
    assert effect.reason is None
    assert (effect.name, effect.blocks, effect.threshold) == ("step", 10, 0.03)
    assert effect.ratio == pytest.approx(1.05)
    assert effect.change == pytest.approx(0.05)
    reach = math.exp(HALF_WIDTH * 0.02)
    assert interval(effect) == pytest.approx((1.05 / reach, 1.05 * reach), rel=1e-6)
    assert effect.p == effect.p_adjusted == 2 / 1024  # every block was slower
    # (2.262157 + 0.883404) * 0.02 / sqrt(10) = 0.0198943
    assert effect.minimum_effect == pytest.approx(math.expm1(0.0198943), abs=1e-6)


def test_being_faster_is_judged_like_being_slower() -> None:
    # 1 / 1.03 is as far from 1 as 1.03; 0.97 is a little further
    assert judge_step(around(1 / 1.0301 - 1, 0.02)).verdict is Verdict.DIFFERENT
    assert judge_step(around(1 / 1.0299 - 1, 0.02)).verdict is Verdict.INCONCLUSIVE


def test_an_estimate_that_just_reaches_the_threshold_counts() -> None:
    # 100% is log 2, which eight blocks that each take twice as long meet exactly, without any spread
    effect = judge_step([PairedBlock((1.0,), (2.0,), alternated=True)] * 8, threshold=1.0)
    assert effect.ratio == pytest.approx(2.0)
    assert effect.verdict is Verdict.DIFFERENT


def test_an_interval_inside_the_threshold_is_equivalent() -> None:
    effect = judge_step(around(0.0, 0.02))  # half-width 1.4%
    assert effect.verdict is Verdict.EQUIVALENT
    assert effect.reason is None
    assert effect.p == 1.0


def test_a_change_that_shows_and_is_too_small_is_equivalent_and_said() -> None:
    effect = judge_step(around(0.01, 0.01))  # 0.3% to 1.7%
    assert effect.verdict is Verdict.EQUIVALENT
    assert effect.reason == "a change of +1.0% shows, below the 3% that counts"


def test_times_that_differ_by_rounding_only_are_equivalent_without_a_word() -> None:
    effect = judge_step(blocks([1e-15] * 10))
    assert effect.verdict is Verdict.EQUIVALENT
    assert effect.reason is None


def test_an_effect_shows_where_its_interval_leaves_no_change_out() -> None:
    assert judge_step(around(0.01, 0.01)).shows
    assert judge_step(around(-0.01, 0.01)).shows
    assert not judge_step(around(0.01, 0.02)).shows
    assert not judge_step(around(0.5, 0.0)[:1]).shows


def test_a_change_that_shows_and_may_be_too_small_is_inconclusive() -> None:
    effect = judge_step(around(0.02, 0.02))  # 0.6% to 3.5%
    assert effect.verdict is Verdict.INCONCLUSIVE
    assert effect.reason == ("a change of +2.0% shows (+0.6% to +3.5%), but not whether it reaches the 3% that counts")


def test_too_wide_an_interval_is_inconclusive_with_the_change_that_would_show() -> None:
    effect = judge_step(
        around(0.02, 0.1)
    )  # half-width 7.2% in logs; (2.262157 + 0.883404) * 0.1 / sqrt(10) = 0.0994714
    assert effect.verdict is Verdict.INCONCLUSIVE
    assert effect.reason == "the interval, -5.0% to +9.6%, is too wide: such blocks show changes from 10% on"


def test_an_interval_that_reaches_the_threshold_is_not_inside_it() -> None:
    just = math.log1p(0.03) / HALF_WIDTH  # the spread at which the interval ends at the threshold
    assert judge_step(around(0.0, 0.99 * just)).verdict is Verdict.EQUIVALENT
    assert judge_step(around(0.0, 1.01 * just)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_fewer_than_six_blocks_give_no_verdict_however_clear(count: int) -> None:
    effect = judge_step(blocks([math.log(2.0)] * count))
    assert effect.verdict is Verdict.INCONCLUSIVE
    assert effect.reason == f"{count} of 6 blocks"
    assert effect.blocks == count
    assert (effect.ratio is None) == (count == 0)
    assert (effect.low is None) == (effect.p is None) == (count < 2)


def test_one_block_of_many_steps_is_still_one_block() -> None:
    block = PairedBlock((1.0,) * 500, (2.0,) * 500, alternated=True)
    assert judge_step([block]).reason == "1 of 6 blocks"


def test_six_blocks_that_agree_are_enough_for_the_step() -> None:
    assert judge_step(around(0.2, 0.02, count=6)).verdict is Verdict.DIFFERENT


def test_reasons_from_outside_forbid_a_verdict_and_keep_the_figures() -> None:
    effect = judge_step(around(0.05, 0.02), not_comparable=["they differ in machine", "the machine's speed drifted"])
    assert effect.verdict is Verdict.NOT_COMPARABLE
    assert effect.reason == "they differ in machine; the machine's speed drifted"
    assert effect.ratio == pytest.approx(1.05)


@pytest.mark.parametrize("threshold", [0.0, -0.03, math.nan, math.inf])
def test_a_threshold_has_to_be_above_zero(threshold: float) -> None:
    with pytest.raises(UserError, match="it must be above 0"):
        judge_step(around(0.0, 0.02), threshold)


@settings(deadline=None)  # the machine's speed is not what is tested
@given(st.lists(st.floats(-0.2, 0.2), min_size=6, max_size=12), st.floats(0.01, 100))
def test_swapping_the_arms_turns_the_ratio_over_and_keeps_the_verdict(values: list[float], unit: float) -> None:
    there = judge_step([PairedBlock((unit,), (unit * math.exp(value),), alternated=True) for value in values])
    back = judge_step([PairedBlock((math.exp(value),), (1.0,), alternated=True) for value in values])
    assert there.ratio is not None
    assert back.ratio == pytest.approx(1 / there.ratio)
    low, high = interval(there)
    assert interval(back) == pytest.approx((1 / high, 1 / low))
    assert back.minimum_effect == pytest.approx(there.minimum_effect, abs=1e-9)
    edges = (abs(math.log(there.ratio)) / math.log(1.03), math.log(low), math.log(high))
    if all(abs(edge) > 1e-9 for edge in (*edges, edges[0] - 1, low - 1 / 1.03, high - 1.03)):
        assert back.verdict is there.verdict


def test_stages_are_judged_after_holms_correction_in_the_order_given() -> None:
    # nine of ten blocks slower, the tenth faster by the least amount: p = 4 / 1024; the others p = 1
    nearly = blocks([math.log(1.1)] * 9 + [-0.01])
    alike = around(0.0, 0.01)
    update, *others = judge_stages({"update": nearly} | {f"stage {i}": alike for i in range(12)})
    assert update.p == 4 / 1024
    assert update.p_adjusted == pytest.approx(13 * 4 / 1024)  # 0.0508
    assert update.verdict is Verdict.INCONCLUSIVE
    assert update.reason == "among 13 stages such a change may be chance (p 0.051 after Holm's correction)"
    assert [effect.name for effect in others] == [f"stage {i}" for i in range(12)]
    assert {effect.verdict for effect in others} == {Verdict.EQUIVALENT}
    (update, *_) = judge_stages({"update": nearly} | {f"stage {i}": alike for i in range(11)})
    assert update.p_adjusted == pytest.approx(12 * 4 / 1024)  # 0.047
    assert update.verdict is Verdict.DIFFERENT


def test_a_probability_of_five_percent_after_the_correction_is_enough() -> None:
    # 30 blocks that agree: 1 of the 10,000 drawn patterns, and the smallest of 500 probabilities counts 500 times
    others = {f"stage {i}": around(0.0, 0.01, count=2) for i in range(499)}
    update, *_ = judge_stages({"update": around(0.2, 0.02, count=10) * 3} | others)
    assert update.p_adjusted == 0.05
    assert update.verdict is Verdict.DIFFERENT


def test_too_few_blocks_for_so_many_stages_is_said_with_the_number_that_would_do() -> None:
    doubled, alike = around(1.0, 0.02, count=6), around(0.0, 0.02, count=6)
    found = judge_stages({"update": doubled, "generate": alike, "score": alike})
    assert found[0].verdict is Verdict.INCONCLUSIVE
    assert found[0].reason == "6 blocks cannot tell 3 stages apart; at least 7 can"
    assert found[1].verdict is Verdict.EQUIVALENT  # half-width 2.570582 / sqrt(6) * 0.0208 = 2.2%
    (alone,) = judge_stages({"update": doubled})
    assert alone.verdict is Verdict.DIFFERENT


def test_a_stage_that_one_block_alone_made_slow_is_not_called_different() -> None:
    # every block was slower, so the signs reject (2 / 1024), but the mean is the wild block's. Standard deviation
    # 2.94 / sqrt(10) = 0.92971; 0.354 +- 2.262157 * 0.92971 / sqrt(10) is -0.3111 to 1.0191 in logs
    (stage,) = judge_stages({"update": blocks([0.06] * 9 + [3.0])})
    assert stage.p_adjusted == 2 / 1024
    assert not stage.shows
    assert stage.verdict is Verdict.INCONCLUSIVE
    assert stage.reason is not None
    assert stage.reason.startswith("the interval, -26.7% to +177.1%, is too wide")


def test_a_stage_has_to_change_by_five_percent_where_the_step_needs_three() -> None:
    assert judge_step(around(0.04, 0.005)).verdict is Verdict.DIFFERENT
    (stage,) = judge_stages({"update": around(0.04, 0.005)})
    assert stage.threshold == 0.05
    assert stage.verdict is Verdict.EQUIVALENT
    assert stage.reason == "a change of +4.0% shows, below the 5% that counts"


def test_a_stage_without_blocks_does_not_weigh_on_the_others() -> None:
    slower = around(0.2, 0.02)
    update, checkpoint = judge_stages({"update": slower, "checkpoint": []})
    assert update.p_adjusted == update.p
    assert (checkpoint.p, checkpoint.p_adjusted, checkpoint.reason) == (None, None, "0 of 6 blocks")
    assert judge_stages({}) == ()


def test_every_stage_is_refused_for_a_reason_from_outside() -> None:
    found = judge_stages({"update": around(0.2, 0.02), "score": []}, not_comparable=["they differ in machine"])
    assert [effect.verdict for effect in found] == [Verdict.NOT_COMPARABLE] * 2


def test_occasions_measured_apart_are_judged_by_welch_and_said_to_be() -> None:
    up, down = math.exp(0.01), math.exp(-0.01)
    before = [(0.5, up, 9.0), (0.5, down, 9.0)] * 4
    after = [(1.2 * up,), (1.2 * down,)] * 3
    effect = judge_apart(before, after)
    assert effect.verdict is Verdict.DIFFERENT
    assert effect.blocks == 6
    assert effect.ratio == pytest.approx(1.2)
    # variances 1e-4 * 8/7 and 1e-4 * 6/5: error^2 = 1e-4 / 7 + 1e-4 / 5 = 3.42857e-5, and its square over
    # (1e-4 / 7)^2 / 7 + (1e-4 / 5)^2 / 5 = 1.09155e-10 gives 10.7692 degrees
    reach = math.exp(t_quantile(0.975, 10.7692) * math.sqrt(3.42857e-5))
    assert interval(effect) == pytest.approx((1.2 / reach, 1.2 * reach), rel=1e-5)
    assert effect.p == effect.p_adjusted
    assert effect.p is not None
    assert effect.p < 1e-6
    assert effect.reason == "measured apart: what the machine did between the two occasions counts as a change too"


def test_too_few_blocks_of_one_occasion_are_too_few() -> None:
    effect = judge_apart([(1.0,)] * 20, [(2.0,), (2.1,)])
    assert effect.verdict is Verdict.INCONCLUSIVE
    assert effect.reason is not None
    assert effect.reason.startswith("2 of 6 blocks; measured apart")
    assert judge_apart([], [(1.0,)]).ratio is None
    assert judge_apart([(1.0,)], [(2.0,)]).ratio == pytest.approx(2.0)
