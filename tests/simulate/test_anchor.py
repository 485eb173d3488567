"""A profile that is wrong by known factors is brought back to what recorded runs of known costs say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.results import find_runs
from harness.scenario.load import load_scenario
from harness.simulate.anchor import anchored, newest_anchor, pilot
from harness.simulate.calibrate.fit import fit
from harness.simulate.machine import OCCASION_LOG_SD, MachineProfile, StageCost
from tests.simulate.test_calibrate_fit import GENERATE, MACHINE, UPDATE, VERSIONS, Writer


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with ExitStack() as opened:
        yield Writer(tmp_path / "results", opened)


def _with(machine: MachineProfile, faster: float, run_log_sd: float = 0.0) -> MachineProfile:
    """A profile of a machine that is so many times as fast."""
    costs = [
        cost.model_copy(
            update={
                "seconds": {feature: seconds / faster for feature, seconds in cost.seconds.items()},
                "run_log_sd": run_log_sd,
            }
        )
        for cost in machine.stages
    ]
    nixl = StageCost(stage="weight_publish", where={"transport": "nixl"}, seconds={"gb": 1.0})
    verify = StageCost(stage="weight_verify", seconds={"gb": 1.0})
    return machine.model_copy(update={"stages": (*costs, nixl, verify)})


def _seconds(machine: MachineProfile, stage: str, transport: str = "shared_memory") -> dict[str, float]:
    (cost,) = (
        cost for cost in machine.stages if cost.stage == stage and cost.where.get("transport", transport) == transport
    )
    return dict(cost.seconds)


@pytest.fixture
def fitted(writer: Writer) -> MachineProfile:
    writer.write_all(noise=0.0)
    return fit(find_runs(writer.root)[0], "abacus").profile


def test_costs_are_those_of_the_run_where_runs_do_not_differ(writer: Writer, fitted: MachineProfile) -> None:
    run = find_runs(writer.write("small", 32, 8))[0][0]
    found = anchored(_with(fitted, faster=1.25), run)
    assert found.overall == pytest.approx(1.25, rel=1e-3)
    assert found.factors["update"] == pytest.approx(1.25, rel=1e-3)
    assert _seconds(found.profile, "generate") == pytest.approx(GENERATE, rel=2e-3)
    assert _seconds(found.profile, "update") == pytest.approx(UPDATE, rel=2e-3)
    # another transport's publishing takes the factor of the stage, a stage that the run did not have that of all
    assert _seconds(found.profile, "weight_publish", "nixl") == pytest.approx({"gb": 1.25}, rel=2e-3)
    assert _seconds(found.profile, "weight_verify") == pytest.approx({"gb": 1.25}, rel=2e-3)
    assert found.profile.stages[0].models["small"].log_sd == 0


def test_half_of_a_factor_is_the_runs_own_where_runs_differ_as_much_as_occasions(
    writer: Writer, fitted: MachineProfile
) -> None:
    run = find_runs(writer.write("small", 32, 8))[0][0]
    found = anchored(_with(fitted, faster=1.25, run_log_sd=OCCASION_LOG_SD), run).profile
    half = {feature: seconds / 1.25 * math.sqrt(1.25) for feature, seconds in UPDATE.items()}
    assert _seconds(found, "update") == pytest.approx(half, rel=2e-3)
    update = next(cost for cost in found.stages if cost.stage == "update")
    assert update.run_log_sd == pytest.approx(math.sqrt(1.5) * OCCASION_LOG_SD, rel=1e-4)  # r^2 + r^2 / 2


def test_it_says_which_run_and_how_old(writer: Writer, fitted: MachineProfile) -> None:
    run = find_runs(writer.write("small", 32, 8))[0][0]
    found = anchored(_with(fitted, faster=1.25), run)
    told = found.sentence(datetime(2026, 11, 21, 15, 30, tzinfo=UTC))
    label = f"calibration/20261121-120000/{run.manifest.arm}"
    assert told.startswith(
        f"Seconds are those of the machine in the run {label}, 3.5 hours ago: its stages took 1.25 of"
    )
    assert "5 days ago" in found.sentence(datetime(2026, 11, 26, 12, tzinfo=UTC))
    assert found.profile.name == f"abacus at the speed of {label}"


def test_a_run_that_teaches_nothing_is_refused(writer: Writer, fitted: MachineProfile) -> None:
    run = find_runs(writer.write(steps=4))[0][0]
    with pytest.raises(UserError, match="no run has 3 training steps beyond warm-up"):
        anchored(fitted, run)


def test_a_fitted_profile_does_not_know_the_speed_of_today_and_an_anchored_one_does(
    writer: Writer, fitted: MachineProfile
) -> None:
    assert fitted.occasion_log_sd == OCCASION_LOG_SD
    assert not fitted.speed_is_known
    assert anchored(fitted, find_runs(writer.write("small", 32, 8))[0][0]).profile.speed_is_known


def test_the_newest_run_of_this_machine_that_tells_a_speed_is_taken(
    writer: Writer, fitted: MachineProfile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("harness.simulate.anchor", "harness.run.earlier_runs"):
        monkeypatch.setattr(f"{module}.machine_facts", lambda: MACHINE)
    monkeypatch.setattr("harness.run.earlier_runs.package_versions", lambda: VERSIONS)
    started = ("2026-11-22T10", "2026-11-22T14", "2026-11-22T13", "2026-11-22T12")
    other = MACHINE | {"fingerprint": "another"}
    told: tuple[dict[str, Any], ...] = ({}, {"machine": other}, {"steps": 4}, {})  # the third is too short
    here = Writer(tmp_path / "here", writer._opened)
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


def test_a_pilot_is_refused_where_it_says_nothing(fitted: MachineProfile, tmp_path: Path) -> None:
    scenario = load_scenario("sync_k1")
    with pytest.raises(UserError, match="--pilot is 3, and a run of fewer than 5 steps tells no speed"):
        pilot(fitted, scenario, None, 3, tmp_path, True)
    with pytest.raises(UserError, match="the profile abacus is of another machine"):
        pilot(fitted, scenario, None, 6, tmp_path, True)
    assert not list(tmp_path.glob("sync_k1*"))
