"""The forest plot: ratios, intervals and thresholds where they belong, verdicts in words, and none from one block."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from harness.compare.stats import STEP, Effect, Verdict
from harness.compare.verdicts import Judgement
from harness.report.html.forest import TICKS_APART, WIDEST, ratio_axis, verdict_section


def _effect(name: str, ratio: float | None, low: float | None, high: float | None, verdict: Verdict) -> Effect:
    blocks = 6 if low else 1
    return Effect(name, blocks, ratio, low, high, 0.03, 0.06, 0.034, 0.03 if name == STEP else 0.05, verdict)


SLOWER = Judgement(
    "k1",
    "<k2>",
    _effect(STEP, 1.25, 1.2, 1.3, Verdict.DIFFERENT),
    (
        _effect("generate", 1.0, 0.99, 1.01, Verdict.EQUIVALENT),
        _effect("update", 0.8, 0.7, 0.9, Verdict.DIFFERENT),
        _effect("weight_load", 1.1, 0.8, 1.4, Verdict.INCONCLUSIVE),
    ),
    alternated=True,
    noise_floor=_effect(STEP, 1.01, 0.98, 1.04, Verdict.INCONCLUSIVE),
    cautions=("the machine drifted by 6%",),
)


def test_a_row_shows_ratio_interval_threshold_and_verdict() -> None:
    drawn = verdict_section([SLOWER], 2, "v")
    assert drawn is not None
    axis = ratio_axis([SLOWER])
    reach = 1 / 0.7 * 1.02  # the end farthest from 1 is 0.7, whose inverse is larger than 1.4
    assert (axis.low, axis.high) == pytest.approx((1 / reach, reach))
    place = 0.5 + math.log(1.25) / (2 * math.log(reach))
    circles = [float(x) / 100 for x in re.findall(r'<circle cx="([\d.]+)%"', drawn)]
    assert circles[0] == pytest.approx(place, abs=1e-4)
    assert len(circles) == 5  # the step, three stages, the noise floor
    (threshold, *_) = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%" y="-2.5"', drawn)
    low, high = 0.5 - math.log(1.03) / (2 * math.log(reach)), 0.5 + math.log(1.03) / (2 * math.log(reach))
    assert (float(threshold[0]) / 100, float(threshold[1]) / 100) == pytest.approx((low, high - low), abs=1e-4)
    assert re.findall(r'<span class="chip ([\w-]+)">([^<]+)<', drawn) == [
        ("slower", "different"),
        ("equivalent", "equivalent"),
        ("faster", "different"),
        ("inconclusive", "inconclusive"),
        ("inconclusive", "inconclusive"),
    ]
    assert "1.250 (1.200 to 1.300)" in drawn
    assert "Times of &lt;k2&gt; over those of k1." in drawn
    assert "noise floor: k1 against itself" in drawn
    assert "the machine drifted by 6%" in drawn


def test_ticks_never_meet_and_the_axis_has_an_end() -> None:
    wide = Judgement("a", "b", _effect(STEP, 40.0, 10.0, 160.0, Verdict.DIFFERENT), (), True)
    narrow = Judgement("a", "b", _effect(STEP, 1.0, 0.999, 1.001, Verdict.EQUIVALENT), (), True)
    for item in (wide, narrow, SLOWER):
        axis = ratio_axis([item])
        places = [axis.place(tick) for tick in axis.ticks]
        assert 1.0 in axis.ticks
        assert all(after - before >= TICKS_APART for before, after in pairwise(places))
    assert ratio_axis([wide]).high == WIDEST
    assert ratio_axis([narrow]).high == pytest.approx(1.1 * 1.02)  # never narrower than a tenth
    assert ratio_axis([wide]).place(40.0) == 1.0  # beyond the end: at the edge


def test_there_is_no_verdict_from_one_block() -> None:
    one = Judgement("a", "b", _effect(STEP, 1.2, None, None, Verdict.INCONCLUSIVE), (), True)
    drawn = verdict_section([one], 2, "v")
    assert drawn is not None
    assert "No verdict. It takes at least two blocks" in drawn
    assert "this experiment has one." in drawn
    assert "--blocks 6" in drawn
    assert "<circle" not in drawn
    assert verdict_section([], 1, "v") is None  # a single arm has nothing to be set against
    both = verdict_section([SLOWER, one], 3, "v")
    assert both is not None
    assert "b: inconclusive; fewer than two paired blocks." in both
