"""From log-ratios to verdicts, each with the figures that lead to it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compare.stats.estimates import Estimate, of_blocks
from harness.compare.stats.intervals import t_quantile
from harness.compare.stats.verdicts import Comparison, Effect, Verdict, judge, side_of_limit
from harness.core.errors import UserError
from tests.stand_ins.simulated_verdicts import judge_step

# Ten log-ratios around 0 with a standard deviation of 1 (each of -1 and 1 scaled by sqrt(0.9)). They alternate, so that
# nothing widens their interval: the half-width is 2.262157 / sqrt(10) = 0.715357
HALF_WIDTH = 0.715357
WIGGLE = [math.sqrt(0.9) * sign for sign in (1, -1) * 5]


def around(change: float, spread: float, count: int = 10) -> list[float]:
    """Blocks whose mean log-ratio is log(1 + change), with the standard deviation ``spread``."""
    return [math.log1p(change) + spread * value for value in WIGGLE[:count]]


def compared(
    change: float, spread: float, count: int = 10, name: str = "update", threshold: float = 0.05
) -> Comparison:
    return Comparison(name, of_blocks(around(change, spread, count)), threshold)


def interval(effect: Effect) -> tuple[float, float]:
    assert effect.low is not None
    assert effect.high is not None
    return effect.low, effect.high


def with_p(p: float, point: float = 0.5, name: str = "update") -> Comparison:
    """A comparison whose probability is known: nine degrees of freedom."""
    return Comparison(name, Estimate(point, 10, point / t_quantile(1 - p / 2, 9), 9), 0.03)


def test_a_change_that_shows_and_counts_is_different() -> None:
    effect = judge_step(around(0.05, 0.02))
    assert effect.verdict is Verdict.DIFFERENT
    assert effect.reason is None
    assert (effect.name, effect.blocks, effect.threshold, effect.degrees) == ("step", 10, 0.03, 9)
    assert effect.ratio == pytest.approx(1.05)
    reach = math.exp(HALF_WIDTH * 0.02)
    assert interval(effect) == pytest.approx((1.05 / reach, 1.05 * reach), rel=1e-6)
    # log 1.05 = 0.048790 over 0.02 / sqrt(10) = 0.0063246 is 7.7144; twice P(T < -7.7144) with 9 degrees
    assert effect.p == effect.p_adjusted == pytest.approx(2.96e-5, rel=0.01)
    # t(0.975, 9) 0.0063246 = 0.014307 is below log 1.03 = 0.029559; with t(0.8, 9) 0.0063246 = 0.005587 it is 0.035146
    assert effect.minimum_effect == pytest.approx(math.expm1(0.035146), abs=1e-5)
    assert (effect.correlation, effect.widening) == (-1.0, 1.0)


def test_blocks_that_resemble_their_neighbours_are_different_later_than_others() -> None:
    grouped = sorted(around(0.05, 0.04))
    assert judge_step(around(0.05, 0.04)).verdict is Verdict.DIFFERENT
    found = judge_step(grouped)
    assert found.verdict is Verdict.INCONCLUSIVE  # the old code took no notice of the order
    assert found.correlation == 1.0
    assert found.widening > 2
    assert found.p is not None
    assert found.p > 0.05


@pytest.mark.parametrize(
    ("change", "spread", "verdict", "words"),
    [
        # 1 / 1.03 is as far from 1 as 1.03; 0.97 is a little further
        (1 / 1.0301 - 1, 0.02, Verdict.DIFFERENT, None),
        (1 / 1.0299 - 1, 0.02, Verdict.INCONCLUSIVE, "but not whether it reaches the 3%"),
        (0.0, 0.02, Verdict.EQUIVALENT, None),  # half-width 1.4%
        (0.01, 0.01, Verdict.EQUIVALENT, "+1.0%"),  # 0.3% to 1.7%: shows, and is too small
        (1e-15, 0.0, Verdict.EQUIVALENT, None),  # rounding
        (0.02, 0.02, Verdict.INCONCLUSIVE, "+0.6% to +3.5%"),  # shows, and may be too small
        (0.02, 0.1, Verdict.INCONCLUSIVE, "-5.0% to +9.6%"),  # half-width 7.2% in logs
        # the spread at which the interval ends at the threshold, which is not inside it
        (0.0, 0.99 * math.log1p(0.03) / HALF_WIDTH, Verdict.EQUIVALENT, None),
        (0.0, 1.01 * math.log1p(0.03) / HALF_WIDTH, Verdict.INCONCLUSIVE, "too wide"),
    ],
)
def test_verdicts_by_the_whole_interval(change: float, spread: float, verdict: Verdict, words: str | None) -> None:
    effect = judge_step(around(change, spread))
    assert (effect.verdict, effect.reason is None) == (verdict, words is None)
    assert (words or "") in (effect.reason or "")
    low, high = interval(effect)
    assert effect.shows == (not low <= 1 <= high)


def test_an_estimate_that_just_reaches_the_threshold_counts_and_six_blocks_are_enough() -> None:
    effect = judge_step([math.log(2.0)] * 8, threshold=1.0)
    assert (effect.ratio, effect.verdict) == (pytest.approx(2.0), Verdict.DIFFERENT)
    assert judge_step(around(0.2, 0.02, count=6)).verdict is Verdict.DIFFERENT
    # (2.262157 + 0.883404) * 0.1 / sqrt(10) = 0.0994714, and e to that less 1 is 10.5%
    assert judge_step(around(0.02, 0.1)).minimum_effect == pytest.approx(0.1046, abs=1e-4)
    assert not judge_step([0.5]).shows


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_fewer_than_six_blocks_give_no_verdict_however_clear(count: int) -> None:
    effect = judge_step([math.log(2.0)] * count)
    assert effect.verdict is Verdict.INCONCLUSIVE
    assert effect.reason == f"{count} of 6 blocks"
    assert (effect.blocks, effect.p_adjusted) == (count, None)
    assert (effect.ratio is None) == (count == 0)
    assert (effect.low is None) == (effect.p is None) == (count < 2)


def test_reasons_from_outside_forbid_a_verdict_and_keep_the_figures() -> None:
    refused = ("they differ in machine", "the machine's speed drifted")
    estimate = of_blocks(around(0.05, 0.02))
    (one, two), _ = judge([
        Comparison("step", estimate, 0.03, not_comparable=refused),
        Comparison("step", estimate, 0.03, undecided="one occasion"),
    ])  # fmt: skip
    assert (one.verdict, one.reason) == (Verdict.NOT_COMPARABLE, "; ".join(refused))
    assert (two.verdict, two.reason) == (Verdict.INCONCLUSIVE, "one occasion")
    assert one.ratio == two.ratio == pytest.approx(1.05)


@pytest.mark.parametrize("threshold", [0.0, -0.03, math.nan, math.inf])
def test_a_threshold_has_to_be_above_zero(threshold: float) -> None:
    with pytest.raises(UserError, match="it must be above 0"):
        judge_step(around(0.0, 0.02), threshold)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=6, max_size=12), st.floats(0.01, 0.2))
def test_setting_the_arms_the_other_way_round_turns_the_ratio_over_and_keeps_the_verdict(
    values: list[float], threshold: float
) -> None:
    there, back = judge_step(values, threshold), judge_step([-value for value in values], threshold)
    assert there.verdict is back.verdict
    assert there.ratio is not None
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.p == pytest.approx(there.p)
    assert back.minimum_effect == pytest.approx(there.minimum_effect, abs=1e-9)


def test_primary_endpoints_share_eight_tenths_and_the_rest_two() -> None:
    (step,), stages = judge([with_p(0.03, name="step")], [with_p(0.5, 0.001), with_p(0.6, 0.001)])
    assert step.p_adjusted == pytest.approx(0.03 / 0.8)
    assert step.verdict is Verdict.DIFFERENT
    # once the step is rejected, two stages share everything: 0.5 * 2, at most 1
    assert [stage.p_adjusted for stage in stages] == pytest.approx([1.0, 1.0])
    (step,), (stage, _) = judge([with_p(0.5, 0.001, "step")], [with_p(0.006), with_p(0.9, 0.001)])
    assert stage.p_adjusted == pytest.approx(0.006 / 0.1)
    assert stage.verdict is Verdict.INCONCLUSIVE
    assert stage.reason is not None
    assert "3 comparisons" in stage.reason
    (step,), (stage, _) = judge([with_p(1e-4, name="step")], [with_p(0.006), with_p(0.9, 0.001)])
    assert stage.p_adjusted == pytest.approx(0.006 * 2)
    assert stage.verdict is Verdict.DIFFERENT


def test_every_arm_is_corrected_for_all_of_them_and_one_without_stages_pays_nothing() -> None:
    (alone,), _ = judge([with_p(0.049)])
    assert (alone.p_adjusted, alone.verdict) == (pytest.approx(0.049), Verdict.DIFFERENT)
    arms, _ = judge([with_p(0.01), with_p(0.03), with_p(0.9, 0.001)])
    assert [effect.p_adjusted for effect in arms] == pytest.approx([0.03, 0.06, 0.9])
    assert [effect.verdict for effect in arms] == [Verdict.DIFFERENT, Verdict.INCONCLUSIVE, Verdict.EQUIVALENT]


def test_what_can_have_no_verdict_takes_no_share_of_the_correction() -> None:
    refused = Comparison("step", of_blocks(around(0.0, 0.01)), 0.03, not_comparable=("another machine",))
    few, none = compared(0.0, 0.01, count=5), Comparison("checkpoint", None, 0.05)
    arms, rest = judge([with_p(0.04), refused], [few, none])
    assert [effect.p_adjusted for effect in (*arms, *rest)] == [pytest.approx(0.04), None, None, None]
    assert [effect.reason for effect in rest] == ["5 of 6 blocks", "0 of 6 blocks"]


def test_the_smallest_effect_is_that_of_the_level_after_the_correction() -> None:
    (step,), (stage,) = judge([compared(0.0, 0.1, name="step", threshold=0.03)], [compared(0.0, 0.1)])
    error = 0.1 / math.sqrt(10)
    for effect, level in ((step, 0.04), (stage, 0.01)):
        needed = t_quantile(1 - level / 2, 9) * error + t_quantile(0.8, 9) * error
        assert effect.minimum_effect == pytest.approx(math.expm1(needed))


def test_an_experiment_shares_its_estimate_of_the_correlation() -> None:
    (step,), (stage,) = judge([compared(0.0, 0.02)], [Comparison("score", of_blocks(sorted(around(0.0, 0.02))), 0.05)])
    # -1 and 1 by themselves; their mean is 0
    assert (step.correlation, stage.correlation) == (-0.5, 0.5)
    assert 1.0 == step.widening < stage.widening


def test_a_stage_has_to_change_by_five_percent_where_the_step_needs_three() -> None:
    assert judge_step(around(0.04, 0.005)).verdict is Verdict.DIFFERENT
    _, (stage,) = judge([compared(0.0, 0.005, name="step", threshold=0.03)], [compared(0.04, 0.005)])
    assert stage.verdict is Verdict.EQUIVALENT


def test_the_labels_of_effects() -> None:
    added = Comparison("old_logprobs", of_blocks(around(0.18, 0.01)), 0.03, of_step=True)
    (step,), (stage, other) = judge([compared(0.0, 0.01, name="step")], [compared(0.0, 0.01), added])
    assert [effect.label for effect in (step, stage, other)] == ["whole step", "update", "old_logprobs, in steps"]
    assert other.of_step


@pytest.mark.parametrize(
    ("change", "side"),  # half-width 0.715357 * 0.02 = 1.44%
    [(0.08, "above"), (0.06, "neither"), (0.05, "neither"), (0.03, "below"), (-0.5, "below")],
)
def test_the_side_of_a_limit_on_which_the_whole_interval_lies(change: float, side: str) -> None:
    assert side_of_limit(judge_step(around(change, 0.02)), 0.05) == side
    assert side_of_limit(judge_step([0.5]), 0.05) == "neither"


def test_the_side_of_a_limit_is_corrected_for_the_arms() -> None:
    effect = judge_step(around(0.07, 0.02))
    assert side_of_limit(effect, 0.05) == "above"
    # four intervals at 98.75%: t(0.99375, 9) = 3.1109 over 2.2622 widens 1.44% to 1.98%: from 4.9%
    assert side_of_limit(effect, 0.05, comparisons=4) == "neither"
    wider = effect.ends(comparisons=4)
    assert wider is not None
    reach = math.exp(t_quantile(1 - 0.025 / 4, 9) * 0.02 / math.sqrt(10))
    assert wider == pytest.approx((1.07 / reach, 1.07 * reach))
