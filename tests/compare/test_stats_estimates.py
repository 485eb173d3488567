"""Intervals, estimates, drift and the rule that ends an experiment, against tables and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.compare.stats.drift import Drift, speed_drift
from harness.compare.stats.estimates import Estimate, inflation, of_blocks, of_occasions
from harness.compare.stats.intervals import Interval, holm, t_interval, t_quantile, wilson_interval
from harness.compare.stats.verdicts import Comparison, Verdict, enough, half_width, judge, side_of_limit
from harness.core.errors import UserError
from tests.stand_ins.simulated_verdicts import judge_step

SIGNS = (1.0, -1.0) * 5
BLOCKY = (0.1,) * 5 + (-0.1,) * 5


def test_the_interval_is_students():
    # mean 0.1, standard deviation 0.2; 4.302653 * 0.2 / sqrt(3) = 0.496828
    interval, ninety = t_interval([0.1, -0.1, 0.3]), t_interval([0.1, -0.1, 0.3], confidence=0.9)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0.1, -0.396828, 0.596828), abs=1e-6)
    assert ninety.high - ninety.value == pytest.approx(2.919986 * 0.2 / math.sqrt(3), abs=1e-6)
    assert (t_interval([0.1]), t_interval([])) == (None, None)
    assert t_interval([0.25, 0.25, 0.25]) == Interval(0.25, 0.25, 0.25)


def test_an_interval_excludes_what_lies_outside_and_is_within_what_holds_it():
    interval = Interval(0.01, -0.01, 0.03)
    assert [interval.excludes(value) for value in (0.0, 0.03, 0.031)] == [False, False, True]
    assert [interval.within(reach) for reach in (0.031, 0.03)] == [True, False]  # touching is not inside
    assert not Interval(-0.01, -0.03, 0.01).within(0.03)


def test_wilsons_interval():
    # 0 of 10: from 0 to z^2 / (n + z^2) = 3.841459 / 13.841459
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(10, 10) == pytest.approx((1 - 0.277533, 1.0), abs=1e-6)
    theirs = stats.binomtest(10, 100).proportion_ci(0.95, method="wilson")
    assert wilson_interval(10, 100) == pytest.approx((theirs.low, theirs.high))
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_holms_correction_in_the_order_given_and_with_weights():
    # sorted: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, 0.04 * 1 raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert (holm([0.7, 0.9]), holm([0.03]), holm([])) == ((1.0, 1.0), (0.03,), ())
    # p / weight: 0.02 / 0.8 = 0.025, 0.004 / 0.1 = 0.04, 0.03 / 0.1 = 0.3. So 0.02 * 1 / 0.8 = 0.025,
    # then 0.004 * 0.2 / 0.1 = 0.008 raised to 0.025, then 0.03
    assert holm([0.02, 0.004, 0.03], [0.8, 0.1, 0.1]) == pytest.approx((0.025, 0.025, 0.03))
    # what is rejected leaves its weight to the rest: a stage at 0.02 of two pays 2, not 10
    assert holm([1e-6, 0.02, 0.9], [0.8, 0.1, 0.1])[1] == pytest.approx(0.04)
    assert holm([0.5, 0.02, 0.9], [0.8, 0.1, 0.1])[1] == pytest.approx(0.2)
    assert holm([0.01, 0.04, 0.03], [7.0, 7.0, 7.0]) == pytest.approx(holm([0.01, 0.04, 0.03]))


# ---- blocks


def test_no_block_gives_nothing_and_one_gives_a_point_without_an_error():
    assert of_blocks([]) is None
    one = of_blocks((0.2,))
    assert (one.point, one.blocks, one.error, one.p, one.interval()) == (0.2, 1, None, None, None)
    assert one.smallest_effect(0.03) is None


def test_the_error_of_a_mean_of_correlated_values_grows_by_what_they_share():
    assert inflation(0.0, 10) == 1.0
    # n = 3, rho = 0.5: v = 1 + 2 (2/3 0.5 + 1/3 0.25) = 11/6, s = (3 - v) / 2 = 7/12; v / s = 22/7
    assert inflation(0.5, 3) == pytest.approx(math.sqrt(22 / 7))
    # against the definition: the variance of a mean of ten AR(1) values, over the mean of their variances
    covariance = 0.65 ** np.abs(np.subtract.outer(np.arange(10), np.arange(10)))
    of_mean = covariance.mean()
    shown = (np.trace(covariance) - 10 * of_mean) / 9
    assert inflation(0.65, 10) == pytest.approx(math.sqrt(of_mean / (shown / 10)))


def test_blocks_that_resemble_their_neighbours_widen_the_interval_and_alternating_ones_do_not():
    # r = -9/10; (9 r + 1) / 6 = -1.1833, kept to -1; -1 + 0.35 is below 0
    alternating = of_blocks(SIGNS)
    assert (alternating.point, alternating.degrees) == (0.0, 9)
    assert (alternating.correlation, alternating.widening) == (-1.0, 1.0)
    assert alternating.error == pytest.approx(1 / 3)  # sd = sqrt(10/9), over sqrt(10)
    # five up, five down: r = (8 - 1) / 10 = 0.7; (9 * 0.7 + 1) / 6 = 1.2167, kept to 1; the upper end is kept to 0.65
    alike = of_blocks(BLOCKY)
    interval = alike.interval()
    assert (alike.correlation, alike.widening) == (1.0, pytest.approx(inflation(0.65, 10)))
    assert alike.error == pytest.approx(alike.widening * 0.1 / 3)
    # t(0.975, 9) = 2.262157, https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    assert interval.high == pytest.approx(2.262157 * alike.error, rel=1e-6)
    shuffled = of_blocks((0.1, -0.1, -0.1, 0.1, 0.1, -0.1, 0.1, -0.1, -0.1, 0.1))
    assert shuffled.widening < alike.widening


def test_below_six_blocks_the_correlation_is_unknown_and_taken_to_be_high():
    few = of_blocks((0.0, 0.02))
    assert (few.correlation, few.widening) == (None, pytest.approx(inflation(0.65, 2)))


def test_half_of_the_correlation_is_the_experiments():
    # (-1 + 0.5) / 2 = -0.25, and the upper end -0.25 + 3.5 / 10 = 0.1
    shared = of_blocks(SIGNS).sharing(0.5)
    assert shared == Estimate(0.0, 10, shared.error, 9, -0.25, pytest.approx(inflation(0.1, 10)))
    assert shared.error == pytest.approx(inflation(0.1, 10) / 3)


def test_values_without_spread_have_an_interval_without_width():
    alike = of_blocks((0.25,) * 8)
    assert (alike.interval(), alike.p) == (Interval(0.25, 0.25, 0.25), 0.0)
    assert of_blocks((0.0,) * 8).p == 1.0


def test_the_smallest_effect_passes_both_the_test_and_the_threshold():
    estimate = Estimate(0.0, 10, error=0.02, degrees=9)
    # t(0.975, 9) 0.02 = 0.045243 is above log 1.03; with t(0.8, 9) 0.02 = 0.017668 it is 0.062911
    assert estimate.smallest_effect(0.03) == pytest.approx(math.expm1(0.062911), abs=1e-5)
    # log 1.1 = 0.095310 is above; with 0.017668 it is 0.112978
    assert estimate.smallest_effect(0.1) == pytest.approx(math.expm1(0.112978), abs=1e-5)
    # at a level of 1%, t(0.995, 9) = 3.249836: 0.064997 + 0.017668
    assert estimate.smallest_effect(0.03, level=0.01) == pytest.approx(math.expm1(0.082665), abs=1e-5)


# ---- occasions


@pytest.mark.parametrize(
    ("before", "after", "point", "error", "degrees", "fewest"),
    [
        # means 0.0, 0.02, 0.04: sd 0.02, two degrees; the new one 0.14. Within occasions nothing spreads
        ([[0.0] * 6, [0.02] * 8, [0.04] * 6], [[0.14] * 6], 0.12, 0.02 * math.sqrt(1 / 3 + 1), 2, 6),
        # squares about the means: 0.0002 of the old, 0.0008 of the new; over 1 + 1 degrees 0.0005
        ([[0.0], [0.02]], [[0.1], [0.14]], 0.11, math.sqrt(0.0005 * (1 / 2 + 1 / 2)), 2, 1),
        ([[0.0] * 8], [[0.1] * 8], 0.1, None, 1.0, 8),
    ],
)
def test_a_difference_between_occasions_rests_on_the_spread_between_them(before, after, point, error, degrees, fewest):
    error = None if error is None else pytest.approx(error)
    assert of_occasions(before, after) == Estimate(pytest.approx(point), fewest, error, degrees)


def test_no_occasion_gives_nothing_and_a_new_one_of_noisier_blocks_widens_the_interval():
    assert of_occasions([], [[0.1]]) is of_occasions([[0.1]], []) is None
    quiet = [[0.001 * sign for sign in SIGNS], [0.01 + 0.001 * sign for sign in SIGNS]]
    like, beyond = (of_occasions(quiet, [new]) for new in (quiet[0], [0.1 * sign for sign in SIGNS]))
    # standard errors of their means: 0.1 / 3 and 0.001 / 3, as alternating blocks do not widen
    assert beyond.error**2 - like.error**2 == pytest.approx((0.1**2 - 0.001**2) / 9)


# ---- drift of the machine


def test_spread_and_slope_of_a_machine_and_that_two_blocks_tell_none():
    # 0.9, 1.0, 1.1: mean 1, standard deviation 0.1, and the line rises by 0.2 from the first to the last
    assert speed_drift([0.9, 1.0, 1.1]) == Drift(3, pytest.approx(0.1), pytest.approx(0.2))
    # centred places -1.5, -0.5, 0.5, 1.5: (-1.5 - 0.6 + 0.4 + 1.5) / 5 = -0.04 a block, three blocks apart
    drift = speed_drift([1.0, 1.2, 0.8, 1.0])
    assert drift.slope == pytest.approx(-0.12)
    assert speed_drift([1.0, 2.0]) is speed_drift([]) is None
    with pytest.raises(UserError, match="speed probe"):
        speed_drift([1.0, 0.0, 1.0])


def test_only_what_the_probe_can_tell_is_said():
    """Times that vary by 81% and drift by 60% either way, and none that vary by 23% and drift by 42%."""
    said, silent = ("0.3 1.7 1.7 0.3", "0.7 0.9 1.1 1.3", "1.3 1.1 0.9 0.7"), ("0.8 1.2 0.8 1.2", "0.8 0.9 1.1 1.2")
    told = [text for text in (*said, *silent) if speed_drift([float(each) for each in text.split()]).sentence]
    assert told == [*said]


# ---- the rule by which an experiment ends; its coverage is in test_false_alarms.py


def effect(spread, change=0.0, count=10):
    """Of log-ratios of standard deviation ``spread`` that alternate around a change: nothing widens their interval."""
    return judge_step([change + spread * math.sqrt(0.9) * sign for sign in SIGNS[:count]])


def test_the_half_width_is_relative_and_blind_to_the_estimate():
    for change in (0.0, 0.5, -0.5):  # 2.262157 / sqrt(10) * 0.02 = 0.0143071
        assert half_width(effect(0.02, change)) == pytest.approx(math.expm1(0.0143071), abs=1e-6)
        assert enough([effect(0.02, change)], 10, width=0.0145, most=40)
        assert not enough([effect(0.02, change)], 10, width=0.0143, most=40)
    assert half_width(effect(0.02, count=1)) is None


def test_not_before_the_fewest_and_always_at_the_most():
    assert not enough([effect(0.0, count=9)], 9, width=0.01, most=40)
    assert enough([effect(0.0, count=6)], 6, width=0.01, most=40, fewest=6)
    assert not enough([], 0, width=0.01, most=40)
    assert not enough([], 10, width=0.01, most=40)  # one arm has no interval
    assert not enough([effect(5.0)], 10, width=0.01, most=11)
    assert enough([effect(5.0)], 10, width=0.01, most=10)


@pytest.mark.parametrize(
    ("width", "fewest", "most", "what"),
    [
        *((width, 10, 40, "the half-width is") for width in (0.0, -0.01, math.nan)),
        *((0.01, *ends, f"between {ends[0]} and {ends[1]} blocks is no range") for ends in ((1, 10), (11, 10))),
    ],
)
def test_a_width_has_to_be_above_zero_and_blocks_a_range(width, fewest, most, what):
    with pytest.raises(UserError, match=what):
        enough([effect(0.02)], 10, width=width, most=most, fewest=fewest)


# ---- from log-ratios to verdicts

# Ten log-ratios around 0 with a standard deviation of 1 (each of -1 and 1 scaled by sqrt(0.9)). They alternate, so that
# nothing widens their interval: the half-width is 2.262157 / sqrt(10) = 0.715357
HALF_WIDTH = 0.715357
WIGGLE = [math.sqrt(0.9) * sign for sign in (1, -1) * 5]


def around(change, spread, count=10):
    """Blocks whose mean log-ratio is log(1 + change), with the standard deviation ``spread``."""
    return [math.log1p(change) + spread * value for value in WIGGLE[:count]]


def compared(change, spread, count=10, name="update", threshold=0.05):
    return Comparison(name, of_blocks(around(change, spread, count)), threshold)


def with_p(p, point=0.5, name="update"):
    """A comparison whose probability is known: nine degrees of freedom."""
    return Comparison(name, Estimate(point, 10, point / t_quantile(1 - p / 2, 9), 9), 0.03)


def test_a_change_that_shows_and_counts_is_different():
    effect = judge_step(around(0.05, 0.02))
    assert effect.verdict is Verdict.DIFFERENT
    assert effect.reason is None
    assert (effect.name, effect.blocks, effect.threshold, effect.degrees) == ("step", 10, 0.03, 9)
    assert effect.ratio == pytest.approx(1.05)
    reach = math.exp(HALF_WIDTH * 0.02)
    assert (effect.low, effect.high) == pytest.approx((1.05 / reach, 1.05 * reach), rel=1e-6)
    # log 1.05 = 0.048790 over 0.02 / sqrt(10) = 0.0063246 is 7.7144; twice P(T < -7.7144) with 9 degrees
    assert effect.p == effect.p_adjusted == pytest.approx(2.96e-5, rel=0.01)
    # t(0.975, 9) 0.0063246 = 0.014307 is below log 1.03 = 0.029559; with t(0.8, 9) 0.0063246 = 0.005587 it is 0.035146
    assert effect.minimum_effect == pytest.approx(math.expm1(0.035146), abs=1e-5)
    assert (effect.correlation, effect.widening) == (-1.0, 1.0)


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
def test_verdicts_by_the_whole_interval(change, spread, verdict, words):
    effect = judge_step(around(change, spread))
    assert (effect.verdict, effect.reason is None) == (verdict, words is None)
    assert (words or "") in (effect.reason or "")
    low, high = (effect.low, effect.high)
    assert effect.shows == (not low <= 1 <= high)


def test_an_estimate_that_just_reaches_the_threshold_counts_and_six_blocks_are_enough():
    effect = judge_step([math.log(2.0)] * 8, threshold=1.0)
    assert (effect.ratio, effect.verdict) == (pytest.approx(2.0), Verdict.DIFFERENT)
    assert judge_step(around(0.2, 0.02, count=6)).verdict is Verdict.DIFFERENT
    # (2.262157 + 0.883404) * 0.1 / sqrt(10) = 0.0994714, and e to that less 1 is 10.5%
    assert judge_step(around(0.02, 0.1)).minimum_effect == pytest.approx(0.1046, abs=1e-4)
    assert not judge_step([0.5]).shows


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_fewer_than_six_blocks_give_no_verdict_however_clear(count):
    effect = judge_step([math.log(2.0)] * count)
    assert effect.verdict is Verdict.INCONCLUSIVE
    assert effect.reason == f"{count} of 6 blocks"
    assert (effect.blocks, effect.p_adjusted) == (count, None)
    assert (effect.ratio is None) == (count == 0)
    assert (effect.low is None) == (effect.p is None) == (count < 2)


def test_reasons_from_outside_forbid_a_verdict_and_keep_the_figures():
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
def test_a_threshold_has_to_be_above_zero(threshold):
    with pytest.raises(UserError, match="it must be above 0"):
        judge_step(around(0.0, 0.02), threshold)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=6, max_size=12), st.floats(0.01, 0.2))
def test_setting_the_arms_the_other_way_round_turns_the_ratio_over_and_keeps_the_verdict(values, threshold):
    there, back = judge_step(values, threshold), judge_step([-value for value in values], threshold)
    assert there.verdict is back.verdict
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.p == pytest.approx(there.p)
    assert back.minimum_effect == pytest.approx(there.minimum_effect, abs=1e-9)


def test_primary_endpoints_share_eight_tenths_and_the_rest_two():
    (step,), stages = judge([with_p(0.03, name="step")], [with_p(0.5, 0.001), with_p(0.6, 0.001)])
    assert step.p_adjusted == pytest.approx(0.03 / 0.8)
    assert step.verdict is Verdict.DIFFERENT
    # once the step is rejected, two stages share everything: 0.5 * 2, at most 1
    assert [stage.p_adjusted for stage in stages] == pytest.approx([1.0, 1.0])
    (step,), (stage, _) = judge([with_p(0.5, 0.001, "step")], [with_p(0.006), with_p(0.9, 0.001)])
    assert stage.p_adjusted == pytest.approx(0.006 / 0.1)
    assert stage.verdict is Verdict.INCONCLUSIVE
    assert "3 comparisons" in stage.reason
    (step,), (stage, _) = judge([with_p(1e-4, name="step")], [with_p(0.006), with_p(0.9, 0.001)])
    assert stage.p_adjusted == pytest.approx(0.006 * 2)
    assert stage.verdict is Verdict.DIFFERENT


def test_every_arm_is_corrected_for_all_of_them_and_one_without_stages_pays_nothing():
    (alone,), _ = judge([with_p(0.049)])
    assert (alone.p_adjusted, alone.verdict) == (pytest.approx(0.049), Verdict.DIFFERENT)
    arms, _ = judge([with_p(0.01), with_p(0.03), with_p(0.9, 0.001)])
    assert [effect.p_adjusted for effect in arms] == pytest.approx([0.03, 0.06, 0.9])
    assert [effect.verdict for effect in arms] == [Verdict.DIFFERENT, Verdict.INCONCLUSIVE, Verdict.EQUIVALENT]


def test_what_can_have_no_verdict_takes_no_share_of_the_correction():
    refused = Comparison("step", of_blocks(around(0.0, 0.01)), 0.03, not_comparable=("another machine",))
    few, none = compared(0.0, 0.01, count=5), Comparison("checkpoint", None, 0.05)
    arms, rest = judge([with_p(0.04), refused], [few, none])
    assert [effect.p_adjusted for effect in (*arms, *rest)] == [pytest.approx(0.04), None, None, None]
    assert [effect.reason for effect in rest] == ["5 of 6 blocks", "0 of 6 blocks"]


def test_the_smallest_effect_is_that_of_the_level_after_the_correction():
    (step,), (stage,) = judge([compared(0.0, 0.1, name="step", threshold=0.03)], [compared(0.0, 0.1)])
    error = 0.1 / math.sqrt(10)
    for effect, level in ((step, 0.04), (stage, 0.01)):
        needed = t_quantile(1 - level / 2, 9) * error + t_quantile(0.8, 9) * error
        assert effect.minimum_effect == pytest.approx(math.expm1(needed))


def test_an_experiment_shares_its_estimate_of_the_correlation():
    (step,), (stage,) = judge([compared(0.0, 0.02)], [Comparison("score", of_blocks(sorted(around(0.0, 0.02))), 0.05)])
    # -1 and 1 by themselves; their mean is 0
    assert (step.correlation, stage.correlation) == (-0.5, 0.5)
    assert 1.0 == step.widening < stage.widening


@pytest.mark.parametrize(
    ("change", "side"),  # half-width 0.715357 * 0.02 = 1.44%
    [(0.08, "above"), (0.06, "neither"), (0.05, "neither"), (0.03, "below"), (-0.5, "below")],
)
def test_the_side_of_a_limit_on_which_the_whole_interval_lies(change, side):
    assert side_of_limit(judge_step(around(change, 0.02)), 0.05) == side
    assert side_of_limit(judge_step([0.5]), 0.05) == "neither"


def test_the_side_of_a_limit_is_corrected_for_the_arms():
    effect = judge_step(around(0.07, 0.02))
    assert side_of_limit(effect, 0.05) == "above"
    # four intervals at 98.75%: t(0.99375, 9) = 3.1109 over 2.2622 widens 1.44% to 1.98%: from 4.9%
    assert side_of_limit(effect, 0.05, comparisons=4) == "neither"
    wider = effect.ends(comparisons=4)
    reach = math.exp(t_quantile(1 - 0.025 / 4, 9) * 0.02 / math.sqrt(10))
    assert wider == pytest.approx((1.07 / reach, 1.07 * reach))
