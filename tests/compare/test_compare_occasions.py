"""A baseline of several occasions: what an experiment is set against, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import pytest

from harness.compare.experiment import Experiment, experiment_of, gather
from harness.compare.gates import Judge
from harness.compare.judging import judge_against
from harness.compare.occasions import Baseline, read_occasions
from harness.compare.stats.verdicts import Verdict
from harness.results import RunFolder
from tests.stand_ins.members import made_run

Make = Callable[..., RunFolder]
SETTINGS = {"steps": 6, "group_size": 8}


def occasion(day: int, seconds: Sequence[float], arm: str = "a", **fields: Any) -> Experiment:
    """Return an experiment of one arm, a block for each number of seconds that a step takes."""
    plan: dict[str, Any] = {"steps": 12, "settings": SETTINGS, "experiment": f"202611{day:02d}-080000"} | fields
    runs = [
        made_run(arm, block, wall_s=step_s, block=block, started_at=f"2026-11-{day:02d}T08:{block:02d}:00.000Z", **plan)
        for block, step_s in enumerate(seconds)
    ]
    return experiment_of(Path("made", str(day)), runs)


def test_folders_in_any_order_are_occasions_oldest_first(make_run: Make, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("starts", "minutes"),
    [
        (["08:00"], None),  # of which the verdict says more
        (["08:00", "08:30", "08:59"], 59),
        (["08:00", "09:01"], None),
    ],
)
def test_occasions_within_an_hour_are_a_caution(starts: list[str], minutes: int | None) -> None:
    runs = [made_run("a", started_at=f"2026-11-20T{start}:00.000Z") for start in starts]
    cautions = Baseline(tuple(experiment_of(Path("made"), [run]) for run in runs)).cautions()
    assert [f"{minutes} minutes" in caution for caution in cautions] == [True] * (minutes is not None)


def test_a_baseline_of_several_occasions_judges_by_the_spread_between_them() -> None:
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
def test_the_step_is_there_where_something_else_decides(endpoint: str) -> None:
    of = {"settings": SETTINGS | {"endpoint": endpoint}, "evaluations": {12: (0.5, 9.0)}}
    occasions = tuple(occasion(day, [1.0] * 8, **of) for day in (1, 2, 3))
    (judged,) = judge_against(Baseline(occasions), occasion(4, [2.0] * 8, **of), 0.03, ())
    assert [effect.name for effect in judged.effects] == [endpoint, "step"]
    assert judged.primary.name == endpoint
    assert judged.step.ratio == pytest.approx(2.0)


def test_one_occasion_and_one_without_a_measured_step_give_no_verdict() -> None:
    new, whole = occasion(9, [1.5] * 6), tuple(occasion(day, [1.0] * 6) for day in (1, 2))
    for occasions, word in (
        (whole[:1], "the baseline has one occasion"),
        ((*whole, occasion(3, [1.0] * 6, steps=0)), "not measured on every occasion"),
    ):
        (judged,) = judge_against(Baseline(occasions), new, 0.03, ())
        assert judged.step.verdict is Verdict.INCONCLUSIVE
        assert word in (judged.step.reason or "")


def test_a_judge_comes_to_verdicts_once_with_its_threshold_and_shows_the_first_arm_where_its_own_is_missing() -> None:
    judge = Judge(against=Baseline(tuple(occasion(day, [1.0] * 6) for day in (1, 2))), threshold=0.2)
    new = occasion(9, [1.0] * 6)
    (judged,) = judge(new)
    assert (judged.other, judged.step.threshold) == ("a", 0.2)
    assert judge(new) is judge(new)
    (judged,) = Judge("c")(experiment_of(Path("made"), [made_run("b"), made_run("d")]))
    assert (judged.base, judged.other) == ("b", "d")


def test_a_baseline_that_is_unlike_is_not_comparable() -> None:
    for fields, word in (
        ({"scenario": "new"}, "they are runs of the scenarios made and new"),
        ({"settings": {}}, "the settings of 8 runs were not recorded"),
    ):
        new = occasion(2, [1.0] * 8, **fields)
        (judged,) = judge_against(Baseline((occasion(1, [1.0] * 8),)), new, 0.03, ())
        assert judged.step.verdict is Verdict.NOT_COMPARABLE
        assert word in (judged.step.reason or "")
