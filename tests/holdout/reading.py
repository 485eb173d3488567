"""The measured runs of an examination: read, and refused where they are not what the plan says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.results import Run, find_runs
from harness.scenario import Scenario, expand, load_scenario
from harness.scenario.load import check_data
from tests.holdout.plan import Plan

_NOT_COMPARED = ("name", "description", "seed", "blocks", "stop_at_half_width", "trackers", "arms", "sweep")
"""Settings that may differ between the plan's scenario and a recorded run: names, and what repeats differ in."""


@dataclass(frozen=True)
class Measured:
    """What an examination goes by.

    Attributes:
        fitted: runs that the fit sees.
        syncs: transport sweeps, which train nothing.
        held_out: by arm, in the order of the plan, each arm's repeats in the order in which they ran.
        scenarios: of the held-out arms, as planned.
    """

    fitted: tuple[Run, ...]
    syncs: tuple[Run, ...]
    held_out: dict[str, tuple[Run, ...]]
    scenarios: dict[str, Scenario]

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every held-out run."""
        return tuple(run for repeats in self.held_out.values() for run in repeats)


def read_measured(plan: Plan, fit: Path, held_out: Path, syncs: Path | None = None) -> Measured:
    """Read and check the runs of an examination.

    Args:
        fit, held_out: folders with their runs.
        syncs: folder with transport sweeps; None without.

    Raises:
        UserError: a run is damaged, did not complete, was simulated, is on both sides, or is not what the plan says; or
            an arm, or a change beside what it starts from, was not measured.
    """
    fitted = _completed(fit, plan.fit, "--fit")
    held = _completed(held_out, plan.held_out, "--held")
    swept = _completed(syncs, plan.transport_costs, "--syncs") if syncs and plan.transport_costs else ()
    _check_apart(fitted, held)
    _check_versions(fitted, held)
    scenarios: dict[str, Scenario] = {}
    for variant in expand(load_scenario(plan.held_out)):
        scenarios.setdefault(variant.arm or "", variant.scenario)  # of the first block
    by_arm = _by_arm(plan, held, scenarios, held_out)
    _check_promises(plan, fitted, scenarios)
    _check_pairs(plan, by_arm, held_out)
    return Measured(fitted, swept, by_arm, {arm: scenarios[arm] for arm in by_arm})


def _completed(folder: Path, scenario: str, option: str) -> tuple[Run, ...]:
    """Read the runs of one scenario: all of them whole, measured, and of the name that the plan says."""
    runs, damaged = find_runs(folder)
    if damaged:
        raise damaged[0].error
    for run in runs:
        where = str(run.folder)
        if run.manifest.simulated is not None:
            what = f"this run was simulated, with the machine profile {run.manifest.simulated!r}"
            raise UserError(what, where, f"name measured runs with {option}")
        if run.manifest.scenario != scenario:
            what = f"this run is of the scenario {run.manifest.scenario!r}, and the plan says {scenario!r}"
            raise UserError(what, where, f"name its folder with {option}")
        if run.status != "completed":
            what = f"this run is not complete ({run.status}), and an average over it would say nothing"
            raise UserError(what, where, "measure it again, or move the folder away")
    return tuple(sorted(runs, key=lambda run: (run.manifest.experiment, run.manifest.position or 0)))


def _check_apart(fitted: Iterable[Run], held: Iterable[Run]) -> None:
    """Refuse a run that is on both sides, a copy of it too."""
    seen = {_identity(run): run for run in fitted}
    for run in held:
        if (twin := seen.get(_identity(run))) is not None:
            what = f"this held-out run is among the fitted ones, as {str(twin.folder)!r}"
            raise UserError(what, str(run.folder), "fit other runs: python -m harness calibrate")


def _check_versions(fitted: Sequence[Run], held: Iterable[Run]) -> None:
    """Refuse a held-out run of other versions than the fitted ones: it would examine the packages too."""
    known = fitted[0].manifest.versions
    for run in held:
        for package, version in run.manifest.versions.items():
            if known.get(package, version) != version:
                what = f"this run used {package} {version}, and the fitted ones {known[package]}"
                raise UserError(what, str(run.folder), "fit and hold out runs of the same versions")


def _identity(run: Run) -> tuple[object, ...]:
    manifest = run.manifest
    return manifest.started_at, manifest.experiment, manifest.seed, tuple(step.wall_s for step in run.steps)


def _by_arm(
    plan: Plan, held: Iterable[Run], scenarios: Mapping[str, Scenario], folder: Path
) -> dict[str, tuple[Run, ...]]:
    """Sort the runs by arm; refuse arms that are missing or unknown, and runs with other settings than planned."""
    by_arm: dict[str, list[Run]] = {arm: [] for arm in plan.arms}
    unplanned = [arm for arm in plan.arms if arm not in scenarios]
    if unplanned:
        what = f"the plan has the arm {unplanned[0]!r}, and the scenario {plan.held_out!r} does not"
        raise UserError(what, None, f"it has {', '.join(scenarios)}")
    for run in held:
        arm = run.manifest.arm or ""
        if arm not in scenarios:
            what = f"this run is of the arm {arm!r}, which the scenario {plan.held_out!r} does not have"
            raise UserError(what, str(run.folder), f"it has {', '.join(scenarios)}")
        _check_settings(run, scenarios[arm])
        if arm in by_arm:
            by_arm[arm].append(run)
    missing = [arm for arm, runs in by_arm.items() if not runs]
    if missing:
        what = f"no run of {', '.join(missing)}, which the plan wants predicted"
        raise UserError(what, str(folder), f"measure them: python -m harness run {plan.held_out}")
    return {arm: tuple(runs) for arm, runs in by_arm.items()}


def _check_settings(run: Run, planned: Scenario) -> None:
    recorded = check_data(run.settings, f"the recorded scenario of {run.folder.name}")
    theirs, mine = (_plain(scenario) for scenario in (recorded, planned))
    for key in {**mine, **theirs}:
        if mine.get(key) != theirs.get(key):
            what = f"this run has `{key}` {theirs.get(key)!r}, and the scenario says {mine.get(key)!r}"
            raise UserError(what, str(run.folder), "examine runs of the scenario as it is, or put the scenario back")


def _plain(scenario: Scenario) -> dict[str, Any]:
    return _flat(scenario.model_dump(mode="json", exclude=set(_NOT_COMPARED)))


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def _check_promises(plan: Plan, fitted: Sequence[Run], scenarios: Mapping[str, Scenario]) -> None:
    """Hold the tiers to their words: nothing fitted has a lag or replay, nor the transports that are to be new."""
    for run in fitted:
        if "strategy" in plan.tiers and (run.setting("max_lag") or run.setting("replay.capacity")):
            what = "this fitted run has a lag or replay, and the tier `strategy` promises synchronous ones alone"
            raise UserError(what, str(run.folder), "fit synchronous runs")
    if "transport" in plan.tiers:
        known = {run.setting("transport.type") for run in fitted}
        for arm in plan.tiers["transport"].arms:
            if scenarios[arm].transport.type in known:
                what = f"a fitted run has the transport of {arm!r}, and the tier `transport` promises that none has"
                raise UserError(what, None, "leave its runs out of the fit")


def _check_pairs(plan: Plan, by_arm: Mapping[str, Sequence[Run]], folder: Path) -> None:
    """Refuse a change that was never measured in the experiment, and with the seed, of a run that it starts from."""
    change = plan.whatif
    if change is None:
        return
    start = _repeats(by_arm[change.start])
    for arm in change.changes:
        if not start & _repeats(by_arm[arm]):
            what = f"no run of {arm!r} has experiment and seed in common with one of {change.start!r}"
            raise UserError(what, str(folder), f"measure them together: python -m harness run {plan.held_out}")


def _repeats(runs: Iterable[Run]) -> set[tuple[str, int]]:
    return {(run.manifest.experiment, run.manifest.seed) for run in runs}
