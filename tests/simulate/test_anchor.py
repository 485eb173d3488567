"""A profile that is wrong by known factors is brought back to what recorded runs of known costs say."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.results import Run, find_runs
from harness.scenario.load import load_scenario
from harness.simulate.anchor import anchored, newest_anchor, pilot
from harness.simulate.calibrate.fit import fit
from harness.simulate.machine import OCCASION_LOG_SD, MachineProfile
from tests.simulate.conftest import GENERATE, MACHINE, UPDATE, VERSIONS, Planted, WriteRun, cost


def _with(machine: MachineProfile, faster: float, run_log_sd: float = 0.0) -> MachineProfile:
    """A profile of a machine that is so many times as fast."""
    costs = [
        each.model_copy(
            update={
                "seconds": {feature: seconds / faster for feature, seconds in each.seconds.items()},
                "run_log_sd": run_log_sd,
            }
        )
        for each in machine.stages
    ]
    more = (cost("weight_publish", {"transport": "nixl"}, gb=1.0), cost("weight_verify", gb=1.0))
    return machine.model_copy(update={"stages": (*costs, *more)})


def _seconds(machine: MachineProfile, stage: str, transport: str = "shared_memory") -> dict[str, float]:
    (found,) = (
        each for each in machine.stages if each.stage == stage and each.where.get("transport", transport) == transport
    )
    return dict(found.seconds)


@pytest.fixture
def fitted(planted: Planted) -> MachineProfile:
    planted.write_all()
    return fit(find_runs(planted.root)[0], "abacus").profile


@pytest.fixture
def run(planted: Planted, fitted: MachineProfile) -> Run:
    return find_runs(planted.write("small", 32, 8))[0][0]


def test_costs_are_those_of_the_run_where_runs_do_not_differ(fitted: MachineProfile, run: Run) -> None:
    found = anchored(_with(fitted, faster=1.25), run)
    assert found.overall == pytest.approx(1.25, rel=1e-3)
    assert found.factors["update"] == pytest.approx(1.25, rel=1e-3)
    assert _seconds(found.profile, "generate") == pytest.approx(GENERATE, rel=2e-3)
    assert _seconds(found.profile, "update") == pytest.approx(UPDATE, rel=2e-3)
    # another transport's publishing takes the factor of the stage, a stage that the run did not have that of all
    assert _seconds(found.profile, "weight_publish", "nixl") == pytest.approx({"gb": 1.25}, rel=2e-3)
    assert _seconds(found.profile, "weight_verify") == pytest.approx({"gb": 1.25}, rel=2e-3)
    assert found.profile.stages[0].models["small"].log_sd == 0
    # a fitted profile does not know the speed of today, and an anchored one does
    assert (fitted.occasion_log_sd, fitted.speed_is_known) == (OCCASION_LOG_SD, False)
    assert found.profile.speed_is_known
    label = f"made/20261121-120000/{run.manifest.arm}"
    assert found.profile.name == f"abacus at the speed of {label}"
    told = found.sentence(datetime(2026, 11, 21, 15, 30, tzinfo=UTC))
    assert all(part in told for part in (label, "3.5 hours ago", "1.25"))
    assert "5 days ago" in found.sentence(datetime(2026, 11, 26, 12, tzinfo=UTC))


def test_half_of_a_factor_is_the_runs_own_where_runs_differ_as_much_as_occasions(
    fitted: MachineProfile, run: Run
) -> None:
    found = anchored(_with(fitted, faster=1.25, run_log_sd=OCCASION_LOG_SD), run).profile
    half = {feature: seconds / 1.25 * math.sqrt(1.25) for feature, seconds in UPDATE.items()}
    assert _seconds(found, "update") == pytest.approx(half, rel=2e-3)
    update = next(each for each in found.stages if each.stage == "update")
    assert update.run_log_sd == pytest.approx(math.sqrt(1.5) * OCCASION_LOG_SD, rel=1e-4)  # r^2 + r^2 / 2


def test_the_newest_run_of_this_machine_that_tells_a_speed_is_taken(
    write_run: WriteRun, fitted: MachineProfile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("harness.simulate.anchor", "harness.run.earlier_runs"):
        monkeypatch.setattr(f"{module}.machine_facts", lambda: MACHINE)
    monkeypatch.setattr("harness.run.earlier_runs.package_versions", lambda: VERSIONS)
    started = ("2026-11-22T10", "2026-11-22T14", "2026-11-22T13", "2026-11-22T12")
    other = MACHINE | {"fingerprint": "another"}
    told: tuple[dict[str, Any], ...] = ({}, {"machine": other}, {"steps": 4}, {"steps": 5})  # the third is too short
    here = Planted(write_run, tmp_path / "here")
    folders = [
        here.write("small", 32, 8, started_at=f"{hour}:00:00.000Z", **each)
        for hour, each in zip(started, told, strict=True)
    ]
    found = newest_anchor(fitted, here.root)
    assert found is not None
    assert found.run.folder == folders[3]
    assert newest_anchor(fitted, tmp_path / "nowhere") is None
    elsewhere = fitted.model_copy(update={"device": fitted.device.model_copy(update={"fingerprint": "elsewhere"})})
    assert newest_anchor(elsewhere, here.root) is None


def test_a_run_or_a_pilot_that_says_nothing_is_refused(
    planted: Planted, fitted: MachineProfile, tmp_path: Path
) -> None:
    short = find_runs(planted.write(steps=4))[0][0]
    with pytest.raises(UserError, match="no run has 3 training steps beyond warm-up"):
        anchored(fitted, short)
    scenario = load_scenario("sync_k1")
    with pytest.raises(UserError, match="--pilot is 4, and a run of fewer than 5"):
        pilot(fitted, scenario, None, 4, tmp_path, True)
    for steps in (5, 6):  # steps enough, and refused for the machine
        with pytest.raises(UserError, match="abacus is of another machine"):
            pilot(fitted, scenario, None, steps, tmp_path, True)
    assert not list(tmp_path.glob("sync_k1*"))
