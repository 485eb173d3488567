"""A profile that is wrong by known factors is brought back to what recorded runs of known costs say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.results import find_runs
from harness.simulate.anchor import OCCASION_LOG_SD, anchored
from harness.simulate.calibrate.fit import fit
from harness.simulate.machine import MachineProfile, StageCost
from tests.simulate.test_calibrate_fit import GENERATE, UPDATE, Writer


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
    with pytest.raises(UserError, match="no run has 5 training steps beyond warm-up"):
        anchored(fitted, run)
