"""Which runs an examination accepts: measured, complete, all that are planned, and on one side only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.results import RunFolder
from tests.holdout.plan import Plan, TierPlan, load_plan, read_measured

Make = Callable[..., RunFolder]


@pytest.fixture
def plan(make_run: Make) -> Plan:
    """Two arms of the plan are examined; each is measured twice, and what is to be fitted once."""
    make_run(scenario="transport_sweep", experiment="20261121-090000")
    for arm in ("small", "wide"):
        make_run(scenario="calibration", experiment="20261121-100000", arm=arm, started_at="2026-11-21T10:00:00+00:00")
    for seed, experiment in ((1, "20261121-120000"), (0, "20261121-110000")):
        for arm in ("k4", "base"):
            make_run(scenario="holdout", experiment=experiment, arm=arm, seed=seed)
    tier = TierPlan(what="between", arms=("base", "k4"), bound=0.05)
    return load_plan().model_copy(update={"tiers": {"inside": tier}})


def test_runs_are_sorted_by_arm_and_repeat(plan: Plan, tmp_path: Path) -> None:
    measured = read_measured(plan, tmp_path / "results")
    assert [run.manifest.arm for run in measured.fitted] == ["small", "wide"]
    assert {arm: [run.manifest.seed for run in runs] for arm, runs in measured.held_out.items()} == {
        "base": [0, 1],
        "k4": [0, 1],
    }
    assert [run.manifest.scenario for run in measured.syncs] == ["transport_sweep"]
    assert {arm: one.epochs_per_batch for arm, one in measured.scenarios.items()} == {"base": 1, "k4": 4}


def a_copy(results: Path, make_run: Make) -> None:
    """It was renamed into the fitted scenario, so that its name gives nothing away."""
    shutil.copytree(results / "holdout" / "20261121-110000", results / "calibration" / "20261121-110000")
    renamed(results / "calibration", '"scenario": "holdout"', '"scenario": "calibration"')


def renamed(folder: Path, old: str, new: str) -> None:
    for path in folder.rglob("manifest.json"):
        path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda results, make: shutil.rmtree(results / "holdout" / "20261121-110000"), None),
        (lambda results, make: [shutil.rmtree(path) for path in results.glob("holdout/*/k4*")], "no run of k4"),
        (a_copy, "among the fitted ones"),
        (lambda results, make: renamed(results / "holdout", '"scenario": "holdout"', '"scenario": "x"'), "'x'"),
        (lambda results, make: renamed(results / "holdout", '"simulated": null', '"simulated": "mine"'), "'mine'"),
        (
            lambda results, make: make(scenario="calibration", experiment="20261121-130000", status="interrupted"),
            "interrupted",
        ),
    ],
)
def test_what_is_not_as_planned_is_refused(
    plan: Plan, make_run: Make, tmp_path: Path, change: Callable[[Path, Make], None], told: str | None
) -> None:
    change(tmp_path / "results", make_run)
    if told is None:  # one repeat is enough
        assert len(read_measured(plan, tmp_path / "results").runs) == 2
        return
    with pytest.raises(UserError, match=told):
        read_measured(plan, tmp_path / "results")
