"""The gate: which verdicts end a CI job with which code."""

from dataclasses import replace
from math import nextafter
from pathlib import Path

import pytest

from harness.compare.completeness import Gap, Gaps
from harness.compare.gates import FINE, INCONCLUSIVE, NOT_COMPARABLE, WORSE, gate, read_limit, refusals_of
from harness.compare.judging import Judgement
from harness.compare.stats.verdicts import Effect, Verdict
from harness.core.errors import UserError


def effect(ratio: float, low: float, high: float, verdict: Verdict, blocks: int = 10, reason: str = "") -> Effect:
    return Effect("step", blocks, ratio, low, high, 0.01, 0.01, 0.02, 0.05, verdict, reason or None)


def judged(step: Effect, floor: Effect | None = None, name: str = "b") -> Judgement:
    return Judgement("a", name, (step,), True, floor)


SLOWER = effect(1.08, 1.06, 1.10, Verdict.DIFFERENT)
SLIGHTLY = effect(1.02, 1.01, 1.04, Verdict.EQUIVALENT)
FASTER = effect(0.8, 0.75, 0.85, Verdict.DIFFERENT)
WIDE = effect(1.01, 0.9, 1.2, Verdict.INCONCLUSIVE, reason="the interval is wide")
WIDE_BELOW = effect(0.93, 0.85, 1.01, Verdict.INCONCLUSIVE, reason="the interval is wide")
FEW = effect(1.5, 1.4, 1.6, Verdict.INCONCLUSIVE, blocks=5, reason="5 of 6 blocks")
UNLIKE = effect(1.5, 1.4, 1.6, Verdict.NOT_COMPARABLE, reason="they differ in machine")


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        (SLOWER, WORSE, "worse: +8.0%, 95% interval +6.0% to +10.0%; the limit is +5.0%"),
        (SLIGHTLY, FINE, "fine: +2.0%, 95% interval +1.0% to +4.0%"),
        (FASTER, FINE, "fine: -20.0%"),
        (WIDE_BELOW, FINE, "fine: -7.0%, 95% interval -15.0% to +1.0%"),
        (WIDE, INCONCLUSIVE, "cannot tell: +1.0%, 95% interval -10.0% to +20.0% reaches the limit of +5.0%"),
        (FEW, INCONCLUSIVE, "cannot tell: 5 of 6 blocks"),
        (UNLIKE, NOT_COMPARABLE, "not comparable: they differ in machine"),
    ],
)
def test_one_arm_decides_by_its_interval(step: Effect, code: int, words: str) -> None:
    result = gate([judged(step)], 0.05)
    assert result.code == code
    assert result.sentences[0].startswith(f"gate: b against a, seconds per step: {words}")


def test_an_interval_that_reaches_the_limit_from_either_side_decides_nothing() -> None:
    """An estimate at the limit was called worse on the old code: half of the arms that are at the limit, then."""

    # 1 + 25% is exact in binary; the number just below it is 1.25 - 2^-52
    def code(ratio: float, low: float, high: float, verdict: Verdict) -> int:
        return gate([judged(effect(ratio, low, high, verdict))], 0.25).code

    below, above = nextafter(1.25, 0), nextafter(1.25, 2)
    assert code(1.3, above, 1.4, Verdict.DIFFERENT) == WORSE
    assert code(1.3, 1.25, 1.4, Verdict.DIFFERENT) == INCONCLUSIVE
    assert code(1.25, 1.2, 1.3, Verdict.DIFFERENT) == INCONCLUSIVE
    assert code(1.1, 1.0, 1.25, Verdict.INCONCLUSIVE) == INCONCLUSIVE
    assert code(1.1, 1.0, below, Verdict.INCONCLUSIVE) == FINE
    assert code(1.3, 0.9, 1.7, Verdict.INCONCLUSIVE) == INCONCLUSIVE  # much slower, and it may be chance


def test_the_gravest_arm_decides() -> None:
    arms = {"s": SLOWER, "u": UNLIKE, "w": WIDE, "f": FASTER}

    def code(names: str) -> int:
        return gate([judged(arms[name], name=name) for name in names], 0.05).code

    assert [code("suwf"), code("uwf"), code("wf"), code("f")] == [WORSE, NOT_COMPARABLE, INCONCLUSIVE, FINE]


def test_a_baseline_that_differs_from_itself_compares_with_nothing() -> None:
    floor = effect(1.07, 1.05, 1.09, Verdict.DIFFERENT)
    result = gate([judged(SLOWER, floor)], 0.05)
    assert result.code == NOT_COMPARABLE
    assert result.sentences == (
        "gate: b against a, seconds per step: not comparable: the baseline is +7.0%, 95% interval +5.0% to +9.0% from "
        "itself.",
    )
    assert gate([judged(SLOWER, effect(1.0, 0.99, 1.01, Verdict.EQUIVALENT))], 0.05).code == WORSE


def test_the_noise_floor_is_no_arm_that_could_be_worse() -> None:
    again = replace(judged(SLOWER, name="again"), is_noise_floor=True)
    floor = SLOWER  # the baseline against itself: 8% apart
    result = gate([judged(SLIGHTLY, floor), again], 0.05)
    assert result.code == NOT_COMPARABLE
    alone = gate([judged(FASTER), again], 0.05)
    assert alone.code == NOT_COMPARABLE  # the noise floor says so by itself
    assert alone.sentences[1].endswith("the same settings, +8.0%, 95% interval +6.0% to +10.0%: slower.")
    quiet = replace(judged(SLIGHTLY, name="again"), is_noise_floor=True)
    assert gate([judged(FASTER, SLIGHTLY), quiet], 0.05).code == FINE
    assert gate([quiet], 0.05).code == INCONCLUSIVE  # there was nothing else
    assert gate([judged(FASTER, SLIGHTLY), replace(quiet, unfinished=1)], 0.05).code == INCONCLUSIVE
    assert gate([judged(FASTER), replace(quiet, effects=(UNLIKE,))], 0.05).code == NOT_COMPARABLE


def test_what_is_missing_of_what_was_asked_for_keeps_a_gate_from_passing() -> None:
    gap = Gap(Path("results/bench/20261120-080000/b,block=3"), "b", "is missing")
    newer = refusals_of([Path("results/bench/20261121-080000")], Gaps((), ()))
    lost, incomplete = refusals_of([], Gaps((gap,), ("b",))), refusals_of([], Gaps((gap,), ()))
    codes = [gate([judged(FASTER)], 0.05, refusals).code for refusals in (newer, lost, incomplete, [])]
    assert codes == [NOT_COMPARABLE, NOT_COMPARABLE, INCONCLUSIVE, FINE]
    assert gate([judged(SLOWER)], 0.05, newer).code == WORSE
    assert gate([], 0.05, newer).code == NOT_COMPARABLE


def test_an_arm_with_runs_that_did_not_finish_cannot_pass() -> None:
    result = gate([replace(judged(FASTER), unfinished=3)], 0.05)
    assert result.code == INCONCLUSIVE
    assert "3 runs did not finish" in result.sentences[0]
    assert gate([replace(judged(SLOWER), unfinished=3)], 0.05).code == WORSE
    assert gate([], 0.05).code == INCONCLUSIVE  # nothing to compare


@pytest.mark.parametrize(("text", "limit"), [("5%", 0.05), (" 0.5 %", 0.005), ("0.05", 0.05)])
def test_a_limit_is_a_share(text: str, limit: float) -> None:
    assert read_limit(text) == pytest.approx(limit)
    for wrong in ("5", "0", "-1%", "100%", "five", "", "nan"):
        with pytest.raises(
            UserError, match=r"not a share above 0% and below 100%[\s\S]*write for example --fail-on 5%"
        ):
            read_limit(wrong)
