"""A baseline of several occasions: what an experiment is set against, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.compare import gather
from harness.compare.experiments import Experiment
from harness.compare.gates import Judge
from harness.compare.occasions import Baseline, read_occasions
from harness.compare.stats import Verdict
from harness.compare.verdicts import judge_against
from harness.core.trace import Stage
from harness.results import RunFolder

Make = Callable[..., RunFolder]
SETTINGS = "steps: 6\nreward_target: 0.5\nmax_lag: 0\ngroup_size: 8\n"


def occasion(
    make_run: Make, tmp_path: Path, day: int, seconds: Sequence[float], arm: str = "a", **fields: Any
) -> Experiment:
    """Write an experiment of one arm, a block for each number of seconds that a step takes, and read it."""
    name = f"202611{day:02d}-080000"
    for block, step_s in enumerate(seconds):
        stages = (("generator", Stage.GENERATE, step_s / 2), ("learner", Stage.UPDATE, step_s / 2))
        plan = {"arm": arm, "block": block, "seed": block, "steps": 6, "stages": stages, "settings": SETTINGS}
        started_at = f"2026-11-{day:02d}T08:{block:02d}:00.000Z"
        make_run(**plan | {"experiment": name, "started_at": started_at} | fields)
    scenario = fields.get("scenario", "sync_k")
    (experiment,), damaged = gather([tmp_path / "results" / scenario / name])
    assert damaged == []
    return experiment


def test_folders_in_any_order_are_occasions_oldest_first(make_run: Make, tmp_path: Path) -> None:
    made = [occasion(make_run, tmp_path, day, [1.0] * 2) for day in (1, 2, 3)]
    baseline = read_occasions([made[place].folder for place in (2, 0, 1)])
    assert baseline.occasions == tuple(made)
    assert len(baseline.runs_for("a")) == len(baseline.runs_for("of another name")) == 6
    assert (baseline.has(made[1]), baseline.has(replace(made[1], started_at="2026-11-09"))) == (True, True)
    assert not baseline.has(occasion(make_run, tmp_path, 4, [1.0] * 2))


@pytest.mark.parametrize(
    ("starts", "cautions"),
    [
        (["2026-11-20T08:00:00.000Z"], 0),  # of which the verdict says more
        (["2026-11-20T08:00:00.000Z", "2026-11-20T08:30:00.000Z", "2026-11-20T08:59:00.000Z"], 1),
        (["2026-11-20T08:00:00.000Z", "2026-11-20T09:01:00.000Z"], 0),
    ],
)
def test_occasions_within_an_hour_are_a_caution(
    make_run: Make, tmp_path: Path, starts: list[str], cautions: int
) -> None:
    made = occasion(make_run, tmp_path, 1, [1.0])
    baseline = Baseline(tuple(replace(made, started_at=start) for start in starts))
    assert len(baseline.cautions()) == cautions


def test_a_baseline_is_set_against_a_later_experiment_without_pairing(make_run: Make, tmp_path: Path) -> None:
    seconds = [1 + 0.001 * block for block in range(8)]
    baseline = Baseline(tuple(occasion(make_run, tmp_path, day, seconds) for day in (1, 2)))
    new = occasion(make_run, tmp_path, 9, [1.5 + 0.001 * block for block in range(8)])
    (found,) = judge_against(baseline, new, 0.03, ())
    assert found.step.ratio == pytest.approx(1.5035 / 1.0035, rel=1e-4)  # the geometric means are these to 1e-5
    assert (found.step.verdict, found.alternated) == (Verdict.DIFFERENT, None)


def test_an_occasion_without_a_measured_step_gives_no_verdict(make_run: Make, tmp_path: Path) -> None:
    made = [occasion(make_run, tmp_path, day, [1.0] * 6) for day in (1, 2, 3)]
    new = occasion(make_run, tmp_path, 9, [1.5] * 6)
    empty = tuple(replace(run, series=None) for run in made[0].runs)
    made[0] = replace(made[0], variants=(replace(made[0].variants[0], runs=empty),))
    (found,) = judge_against(Baseline(tuple(made)), new, 0.03, ())
    assert found.step.verdict is Verdict.INCONCLUSIVE
    assert "not measured on every occasion" in (found.step.reason or "")


def test_a_judge_comes_to_verdicts_once_with_its_threshold(make_run: Make, tmp_path: Path) -> None:
    baseline = Baseline(tuple(occasion(make_run, tmp_path, day, [1.0] * 6) for day in (1, 2)))
    new = occasion(make_run, tmp_path, 9, [1.0] * 6)
    judge = Judge(against=baseline, threshold=0.2)
    (found,) = judge(new)
    assert (found.other, found.step.threshold) == ("a", 0.2)
    assert judge(new) is judge(new)


def test_an_experiment_without_the_arm_that_is_the_baseline_shows_its_first_one(make_run: Make, tmp_path: Path) -> None:
    occasion(make_run, tmp_path, 1, [1.0], arm="b")
    experiment = occasion(make_run, tmp_path, 1, [1.0], arm="d")
    (found,) = Judge("c")(experiment)
    assert (found.base, found.other) == ("b", "d")


def test_a_baseline_of_another_scenario_is_not_comparable(make_run: Make, tmp_path: Path) -> None:
    baseline = Baseline((occasion(make_run, tmp_path, 1, [1.0] * 8, scenario="old"),))
    new = occasion(make_run, tmp_path, 2, [1.0] * 8, scenario="new")
    (found,) = judge_against(baseline, new, 0.03, ())
    assert found.step.verdict is Verdict.NOT_COMPARABLE
    assert "they are runs of the scenarios old and new" in (found.step.reason or "")


def test_settings_that_were_not_saved_are_not_alike(make_run: Make, tmp_path: Path) -> None:
    baseline = Baseline((occasion(make_run, tmp_path, 1, [1.0] * 8),))
    new = occasion(make_run, tmp_path, 2, [1.0] * 8)
    runs = tuple(replace(run, settings={}) for run in new.runs)
    unknown = replace(new, variants=(replace(new.variants[0], runs=runs),))
    (found,) = judge_against(baseline, unknown, 0.03, ())
    assert found.step.verdict is Verdict.NOT_COMPARABLE
