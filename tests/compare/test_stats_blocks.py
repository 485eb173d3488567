"""Blocks and their log-ratios."""

from __future__ import annotations

import math

import pytest

from harness.compare.stats import PairedBlock, log_ratio, log_ratios, summarise
from harness.compare.stats.verdicts import log_medians
from harness.core.errors import UserError


def test_alternated_steps_are_compared_with_their_neighbours() -> None:
    # neighbours differ by 10%, 20% and 5%; the middle one counts, although the weather makes steps of 1, 2 and 8 s
    block = PairedBlock((1.0, 2.0, 8.0), (1.1, 2.4, 8.4), alternated=True)
    assert log_ratio(block) == pytest.approx(math.log(1.1))


def test_an_outlier_in_one_arm_does_not_move_an_alternated_block() -> None:
    block = PairedBlock((1.0, 1.0, 1.0), (1.1, 50.0, 1.1), alternated=True)
    assert log_ratio(block) == pytest.approx(math.log(1.1))


def test_runs_after_each_other_are_compared_by_their_medians() -> None:
    # medians 2.0 of three steps and 3.0 of five
    block = PairedBlock((1.0, 2.0, 8.0), (3.0, 3.0, 9.0, 2.5, 4.0), alternated=False)
    assert log_ratio(block) == pytest.approx(math.log(3.0 / 2.0))


def test_the_ratio_of_medians_is_not_the_median_of_ratios() -> None:
    before, after = (1.0, 2.0, 8.0), (4.0, 1.0, 9.0)
    # ratios 4, 1/2, 9/8: median 9/8; medians 2 and 4: ratio 2
    assert log_ratio(PairedBlock(before, after, alternated=True)) == pytest.approx(math.log(9 / 8))
    assert log_ratio(PairedBlock(before, after, alternated=False)) == pytest.approx(math.log(2.0))


def test_each_block_gives_one_number() -> None:
    blocks = [PairedBlock((1.0,), (ratio,), alternated=True) for ratio in (1.0, 2.0, 0.5)]
    assert log_ratios(blocks).tolist() == pytest.approx([0.0, math.log(2), -math.log(2)])
    assert log_ratios([]).shape == (0,)


def test_only_steps_that_both_alternated_arms_have_are_paired() -> None:
    block = PairedBlock.from_steps({4: 1.4, 2: 1.2, 3: 1.3}, {3: 2.3, 4: 2.4, 5: 2.5}, alternated=True)
    assert block == PairedBlock((1.3, 1.4), (2.3, 2.4), alternated=True)


def test_runs_after_each_other_keep_all_their_steps_in_order() -> None:
    block = PairedBlock.from_steps({4: 1.4, 2: 1.2}, {3: 2.3, 4: 2.4, 5: 2.5}, alternated=False)
    assert block == PairedBlock((1.2, 1.4), (2.3, 2.4, 2.5), alternated=False)


def test_a_step_in_which_the_stage_did_not_occur_has_no_ratio() -> None:
    block = PairedBlock.from_steps({2: 0.0, 3: 1.3, 4: 1.4}, {2: 2.2, 3: 2.3, 4: 0.0}, alternated=True)
    assert block == PairedBlock((1.3,), (2.3,), alternated=True)
    assert PairedBlock.from_steps({2: 0.0}, {2: 2.2}, alternated=True) is None
    assert PairedBlock.from_steps({2: 1.0}, {}, alternated=False) is None


@pytest.mark.parametrize(
    ("before", "after", "alternated", "message"),
    [
        ((), (1.0,), False, "a block of the baseline has no kept steps"),
        ((1.0,), (), False, "a block of the arm has no kept steps"),
        ((1.0, 0.0), (1.0,), False, "the baseline has a step time of 0.0 s at place 1; it must be a number above 0"),
        ((1.0,), (-2.0,), False, "the arm has a step time of -2.0 s at place 0"),
        ((1.0,), (math.nan,), False, "the arm has a step time of nan s at place 0"),
        ((math.inf,), (1.0,), False, "the baseline has a step time of inf s at place 0"),
        ((1.0, 1.0), (1.0,), True, "alternated arms have 2 and 1 steps; they must be pairs"),
    ],
)
def test_times_that_have_no_ratio_are_refused(
    before: tuple[float, ...], after: tuple[float, ...], alternated: bool, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        PairedBlock(before, after, alternated)
    assert message in refused.value.what
    assert refused.value.fix


def test_blocks_measured_apart_give_their_log_medians() -> None:
    assert log_medians([(1.0, 2.0, 8.0), (4.0,)], "the arm").tolist() == pytest.approx([math.log(2), math.log(4)])
    with pytest.raises(UserError, match="a block of the arm has no kept steps"):
        log_medians([(1.0,), ()], "the arm")


def test_the_summary_counts_the_blocks_in_which_the_arm_was_slower() -> None:
    blocks = [PairedBlock((1.0,), (math.exp(value),), alternated=True) for value in (0.1, 0.2, 1.0, -0.1, 0.0)]
    summary = summarise(blocks)
    assert (summary.blocks, summary.slower) == (5, 3)
    # the 15 means of pairs, in order: -.1 -.05 0 0 .05 .05 .1 .1 .15 .2 .45 .5 .55 .6 1.0; the eighth is .1
    assert summary.hodges_lehmann == pytest.approx(math.exp(0.1))
    assert summarise([]).hodges_lehmann is None
