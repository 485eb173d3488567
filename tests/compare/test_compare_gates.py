"""The gate: which verdicts end a CI job with which code."""

from dataclasses import replace
from math import exp, log, nextafter, sqrt
from pathlib import Path

import pytest

from harness.compare.completeness import Gap, Gaps
from harness.compare.experiment import experiment_of, gather
from harness.compare.gates import FINE, INCONCLUSIVE, NOT_COMPARABLE, WORSE, Judge, gate, read_limit, refusals_of
from harness.compare.judging import Judgement, judge_against
from harness.compare.occasions import Baseline, read_occasions
from harness.compare.stats.verdicts import Effect, Verdict
from harness.core.errors import UserError
from tests.stand_ins.members import made_run


def effect(ratio, low, high, verdict, blocks=10, reason=""):
    return Effect("step", blocks, ratio, low, high, 0.01, 0.01, 0.02, 0.05, verdict, reason or None)


def judged(step, noise_floor=None, name="b"):
    return Judgement("a", name, (step,), True, noise_floor)


SLOWER = effect(1.08, 1.06, 1.10, Verdict.DIFFERENT)
SLIGHTLY = effect(1.02, 1.01, 1.04, Verdict.EQUIVALENT)
FASTER = effect(0.8, 0.75, 0.85, Verdict.DIFFERENT)
WIDE = effect(1.01, 0.9, 1.2, Verdict.INCONCLUSIVE, reason="the interval is wide")
WIDE_BELOW = effect(0.93, 0.85, 1.01, Verdict.INCONCLUSIVE, reason="the interval is wide")
FEW = effect(1.5, 1.4, 1.6, Verdict.INCONCLUSIVE, blocks=5, reason="5 of 6 blocks")
UNLIKE = effect(1.5, 1.4, 1.6, Verdict.NOT_COMPARABLE, reason="they differ in machine")


def at(ratio, low, high, verdict):
    """Of an interval that may lie at the limit of 25%, which is exact in binary."""
    return [judged(effect(ratio, low, high, verdict))]


def floor(*effects, **fields):
    return replace(judged(*effects, name="again"), is_noise_floor=True, **fields)


BELOW, ABOVE = nextafter(1.25, 0), nextafter(1.25, 2)
GAP = Gap(Path("results/bench/20261120-080000/b,block=3"), "b", "is missing")
NEWER = refusals_of([Path("results/bench/20261121-080000")], Gaps((), ()))
LOST, INCOMPLETE = refusals_of([], Gaps((GAP,), ("b",))), refusals_of([], Gaps((GAP,), ()))
CASES = [
    ([judged(SLOWER)], 0.05, WORSE, "worse: +8.0%, 95% interval +6.0% to +10.0%; the limit is +5.0%"),
    ([judged(SLIGHTLY)], 0.05, FINE, "fine: +2.0%, 95% interval +1.0% to +4.0%"),
    ([judged(FASTER)], 0.05, FINE, "fine: -20.0%"),
    ([judged(WIDE_BELOW)], 0.05, FINE, "fine: -7.0%, 95% interval -15.0% to +1.0%"),
    ([judged(WIDE)], 0.05, INCONCLUSIVE, "cannot tell: +1.0%, 95% interval -10.0% to +20.0%"),
    ([judged(FEW)], 0.05, INCONCLUSIVE, "cannot tell: 5 of 6 blocks"),
    ([judged(UNLIKE)], 0.05, NOT_COMPARABLE, "not comparable: they differ in machine"),
    # an estimate at the limit was called worse on the old code: half of the arms that are at the limit, then
    (at(1.3, ABOVE, 1.4, Verdict.DIFFERENT), 0.25, WORSE, ""),
    (at(1.3, 1.25, 1.4, Verdict.DIFFERENT), 0.25, INCONCLUSIVE, ""),
    (at(1.25, 1.2, 1.3, Verdict.DIFFERENT), 0.25, INCONCLUSIVE, ""),
    (at(1.1, 1.0, 1.25, Verdict.INCONCLUSIVE), 0.25, INCONCLUSIVE, ""),
    (at(1.1, 1.0, BELOW, Verdict.INCONCLUSIVE), 0.25, FINE, ""),
    (at(1.3, 0.9, 1.7, Verdict.INCONCLUSIVE), 0.25, INCONCLUSIVE, ""),  # much slower, and it may be chance
    # the gravest arm decides
    ([judged(each) for each in (FASTER, WIDE, UNLIKE, SLOWER)], 0.05, WORSE, ""),
    ([judged(each) for each in (FASTER, WIDE, UNLIKE)], 0.05, NOT_COMPARABLE, ""),
    ([judged(each) for each in (FASTER, WIDE)], 0.05, INCONCLUSIVE, ""),
    # the noise floor is no arm that could be worse, and where it shows nothing can be compared
    ([judged(SLOWER, SLOWER)], 0.05, NOT_COMPARABLE, "+8.0%, 95% interval +6.0% to +10.0% from itself"),
    ([judged(SLOWER, effect(1.0, 0.99, 1.01, Verdict.EQUIVALENT))], 0.05, WORSE, ""),
    ([judged(SLIGHTLY, SLOWER), floor(SLOWER)], 0.05, NOT_COMPARABLE, ""),
    ([judged(FASTER), floor(SLOWER)], 0.05, NOT_COMPARABLE, "+8.0%, 95% interval +6.0% to +10.0%: slower."),
    ([judged(FASTER, SLIGHTLY), floor(SLIGHTLY)], 0.05, FINE, ""),
    ([floor(SLIGHTLY)], 0.05, INCONCLUSIVE, ""),  # there was nothing else
    ([judged(FASTER, SLIGHTLY), floor(SLIGHTLY, unfinished=1)], 0.05, INCONCLUSIVE, ""),
    ([judged(FASTER), floor(UNLIKE)], 0.05, NOT_COMPARABLE, ""),
    # an arm with runs that did not finish cannot pass
    ([replace(judged(FASTER), unfinished=3)], 0.05, INCONCLUSIVE, "3 runs"),
    ([replace(judged(SLOWER), unfinished=3)], 0.05, WORSE, ""),
    ([], 0.05, INCONCLUSIVE, ""),  # nothing to compare
]


@pytest.mark.parametrize(("of", "limit", "code", "words"), CASES)
def test_which_code_a_gate_ends_with_and_why(of, limit, code, words):
    result = gate(of, limit)
    assert (result.code, words in " ".join(result.sentences)) == (code, True)


def test_what_is_missing_of_what_was_asked_for_keeps_a_gate_from_passing():
    codes = [gate([judged(FASTER)], 0.05, refusals).code for refusals in (NEWER, LOST, INCOMPLETE, [])]
    assert codes == [NOT_COMPARABLE, NOT_COMPARABLE, INCONCLUSIVE, FINE]
    assert gate([judged(SLOWER)], 0.05, NEWER).code == WORSE
    assert gate([], 0.05, NEWER).code == NOT_COMPARABLE


def test_a_limit_is_a_share():
    assert [read_limit(text) for text in ("5%", " 0.5 %", "0.05")] == pytest.approx([0.05, 0.005, 0.05])
    for wrong in ("5", "0", "-1%", "100%", "five", "", "nan"):
        with pytest.raises(UserError, match=f"^'{wrong}'[^\n]*0%[^\n]*100%") as caught:
            read_limit(wrong)
        assert (caught.value.where, "--fail-on 5%" in (caught.value.fix or "")) == ("--fail-on", True)


# ---- a baseline of several occasions

SETTINGS = {"steps": 6, "group_size": 8}


def occasion(day, seconds, arm="a", **fields):
    """Return an experiment of one arm, a block for each number of seconds that a step takes."""
    plan = {"steps": 12, "settings": SETTINGS, "experiment": f"202611{day:02d}-080000"} | fields
    runs = [
        made_run(arm, block, wall_s=step_s, block=block, started_at=f"2026-11-{day:02d}T08:{block:02d}:00.000Z", **plan)
        for block, step_s in enumerate(seconds)
    ]
    return experiment_of(Path("made", str(day)), runs)


def test_folders_in_any_order_are_occasions_oldest_first(make_run, tmp_path):
    folders = []
    for day in (1, 2, 3):
        name = f"202611{day:02d}-080000"
        for block in range(2):
            started_at = f"2026-11-{day:02d}T08:{block:02d}:00.000Z"
            make_run(experiment=name, arm="a", block=block, seed=block, started_at=started_at)
        folders.append(tmp_path / "results" / "sync_k" / name)
    baseline = read_occasions([folders[place] for place in (2, 0, 1)])
    assert [item.folder for item in baseline.occasions] == folders
    assert [len(runs) for runs in baseline.runs_for("a")] == [2, 2, 2]
    assert [len(runs) for runs in baseline.runs_for("of another name")] == [2, 2, 2]
    (second,), _ = gather([folders[1]])
    assert baseline.has(second)
    assert baseline.has(replace(second, folder=tmp_path / "copy"))
    assert not baseline.has(occasion(4, [1.0] * 2))


def test_occasions_within_an_hour_are_a_caution():
    """Of one alone the verdict says more."""
    for starts, minutes in ((["08:00"], None), (["08:00", "08:30", "08:59"], 59), (["08:00", "09:01"], None)):
        runs = [made_run("a", started_at=f"2026-11-20T{start}:00.000Z") for start in starts]
        cautions = Baseline(tuple(experiment_of(Path("made"), [run]) for run in runs)).cautions()
        assert [f"{minutes} minutes" in caution for caution in cautions] == [True] * (minutes is not None)


def test_a_baseline_of_several_occasions_judges_by_the_spread_between_them():
    """Eight blocks on each day, whose weather is a tenth of a percent."""
    weather = [1.001 if block % 2 else 1.0 for block in range(8)]
    days = {16: 0.98, 17: 1.0, 18: 1.02, 20: 1.25}
    *old, new = (occasion(day, [seconds * each for each in weather], commit=f"{day}") for day, seconds in days.items())
    (judged,) = judge_against(Baseline(tuple(old)), new, 0.03, ())
    logs = [log(0.98), 0.0, log(1.02)]
    middle = sum(logs) / 3
    spread = sqrt(sum((value - middle) ** 2 for value in logs) / 2)
    # t(0.975, 2) = 4.302653, https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
    reach = 4.302653 * spread * sqrt(1 / 3 + 1)
    assert judged.step.ratio == pytest.approx(1.25 / exp(middle))
    assert judged.step.low == pytest.approx(exp(log(1.25) - middle - reach))
    assert (judged.step.verdict, judged.step.degrees, judged.step.blocks) == (Verdict.DIFFERENT, 2, 8)
    assert (judged.base, judged.alternated) == ("a of made/20261118-080000 and 2 earlier", None)
    assert judged.cautions == ("The runs differ in commit (16: 8 runs; 17: 8 runs; 18: 8 runs; 20: 8 runs).",)
    (like,) = judge_against(Baseline(tuple(old[:2])), old[2], 0.03, ())
    assert like.step.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("endpoint", ["weight_sync_seconds", "reward_at_rollouts"])
def test_the_step_is_there_where_something_else_decides(endpoint):
    of = {"settings": SETTINGS | {"endpoint": endpoint}, "evaluations": {12: (0.5, 9.0)}}
    occasions = tuple(occasion(day, [1.0] * 8, **of) for day in (1, 2, 3))
    (judged,) = judge_against(Baseline(occasions), occasion(4, [2.0] * 8, **of), 0.03, ())
    assert [effect.name for effect in judged.effects] == [endpoint, "step"] == [judged.primary.name, judged.step.name]
    assert judged.step.ratio == pytest.approx(2.0)


def test_what_gives_no_verdict_has_its_reason():
    """One occasion, one without a measured step, another scenario, settings that were not recorded."""
    one, two = (occasion(day, [1.0] * 6) for day in (1, 2))
    new, cut = occasion(9, [1.5] * 6), occasion(3, [1.0] * 6, steps=0)
    for occasions, against, verdict, word in (
        ((one,), new, Verdict.INCONCLUSIVE, "one occasion"),
        ((one, two, cut), new, Verdict.INCONCLUSIVE, "every occasion"),
        ((one,), occasion(9, [1.0] * 6, scenario="new"), Verdict.NOT_COMPARABLE, "made and new"),
        ((one,), occasion(9, [1.0] * 6, settings={}), Verdict.NOT_COMPARABLE, "settings of 6 runs"),
    ):
        (judged,) = judge_against(Baseline(occasions), against, 0.03, ())
        assert (judged.step.verdict, word in (judged.step.reason or "")) == (verdict, True)


def test_a_judge_comes_to_verdicts_once_with_its_threshold_and_shows_the_first_arm_where_its_own_is_missing():
    judge = Judge(against=Baseline(tuple(occasion(day, [1.0] * 6) for day in (1, 2))), threshold=0.2)
    new = occasion(9, [1.0] * 6)
    (judged,) = judge(new)
    assert (judged.other, judged.step.threshold) == ("a", 0.2)
    assert judge(new) is judge(new)
    (judged,) = Judge("c")(experiment_of(Path("made"), [made_run("b"), made_run("d")]))
    assert (judged.base, judged.other) == ("b", "d")
