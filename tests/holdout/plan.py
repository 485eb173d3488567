"""What is examined, how wrong a prediction may be, and the measured runs: refused where they are not as planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.core.errors import UserError
from harness.core.experiment import NAMING
from harness.core.named_files import NamedFiles
from harness.results import Run, find_runs
from harness.scenario.axes import expand
from harness.scenario.load import check_data, load_checked
from harness.scenario.problems import Problem
from harness.scenario.schema import Scenario
from harness.settings.base import Fraction, NonEmptyText, Section

PLANS = NamedFiles("plan", "tests/holdout", "fit: calibration")
Names = Annotated[tuple[NonEmptyText, ...], Field(min_length=1)]
_NOT_COMPARED = {*NAMING, "seed", "endpoint", "blocks", "stop_at_half_width", "trackers", "arms", "sweep"}
"""Settings that may differ between the plan's scenario and a recorded run: names, and what repeats differ in."""


class TierPlan(Section):
    """Arms that are hard to predict for the same reason.

    Attributes:
        what: that reason.
        arms: of the held-out scenario.
        bound: on the median over the arms of the absolute error of step time.
        without: by arm, the model preset whose runs the fit may not see.
    """

    what: NonEmptyText
    arms: Names
    bound: Fraction
    without: dict[str, NonEmptyText] = Field(default_factory=dict)


class Bounds(Section):
    """Bounds that hold for every tier, and for the ranking of all arms."""

    stage: Fraction
    coverage: tuple[Fraction, Fraction]
    kendall_tau: Fraction


class ChangePlan(Section):
    """Which recorded arm is changed, and into which measured arms by which settings."""

    start: Annotated[NonEmptyText, Field(alias="from")]
    changes: dict[str, Names]


class Plan(Section):
    """The examination.

    Attributes:
        chosen: the date.
        fit: scenario whose runs are fitted.
        held_out: scenario whose runs are predicted.
        transport_costs: scenario whose weight syncs, without any training, tell the costs of transports that no fitted
            run has.
        tiers: by name.
        whatif: changes of a recorded run whose effect was measured.
    """

    name: NonEmptyText
    chosen: NonEmptyText
    fit: NonEmptyText
    held_out: NonEmptyText
    transport_costs: NonEmptyText
    tiers: Annotated[dict[str, TierPlan], Field(min_length=1)]
    bounds: Bounds
    whatif: ChangePlan

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm once, in the order of the tiers."""
        return tuple(dict.fromkeys(arm for tier in self.tiers.values() for arm in tier.arms))


def load_plan(path: Path) -> Plan:
    """Load a plan and check it.

    Raises:
        UserError: the file is missing or not YAML, or says something wrong; one error names every problem.
    """
    return load_checked(PLANS, path, Plan, _broken_rules)


def _broken_rules(plan: Plan) -> list[Problem]:
    """Find what a plan fits and predicts at once, and arms that it names and does not examine."""
    problems = []
    if plan.fit == plan.held_out:
        problems.append(Problem(f"`fit` and `held_out` are both {plan.fit!r}", "hold out another scenario"))
    named = [(f"tiers.{name}.without", arm, tier.arms) for name, tier in plan.tiers.items() for arm in tier.without]
    named += [("whatif", arm, plan.arms) for arm in (plan.whatif.start, *plan.whatif.changes)]
    for key, arm, known in named:
        if arm not in known:
            problems.append(Problem(f"`{key}` names {arm!r}, which is no arm there", f"it has {', '.join(known)}"))
    return problems


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


def read_measured(plan: Plan, scenario: Scenario, *, fit: Path, held: Path, syncs: Path) -> Measured:
    """Read and check the runs of an examination.

    Args:
        scenario: of the held-out arms, as it is now.
        fit, held, syncs: folders with their runs.

    Raises:
        UserError: a run is damaged, did not complete, was simulated, is on both sides, or is not what the plan says; or
            an arm was not measured.
    """
    fitted, held_out = _completed(fit, plan.fit, "--fit"), _completed(held, plan.held_out, "--held")
    _check_apart(fitted, held_out)
    scenarios: dict[str, Scenario] = {}
    for variant in expand(scenario):
        scenarios.setdefault(variant.arm or "", variant.scenario)  # of the first block
    for run in held_out:
        _check_settings(run, scenarios)
    by_arm = {arm: tuple(run for run in held_out if run.manifest.arm == arm) for arm in plan.arms}
    missing = [arm for arm, runs in by_arm.items() if not runs]
    if missing:
        what = f"no run of {', '.join(missing)}, which the plan wants predicted"
        raise UserError(what, str(held), f"measure them: python -m harness run tests/holdout/{plan.held_out}.yaml")
    _check_promises(plan, fitted, scenarios)
    swept = _completed(syncs, plan.transport_costs, "--syncs")
    return Measured(fitted, swept, by_arm, {arm: scenarios[arm] for arm in by_arm})


def _completed(folder: Path, scenario: str, option: str) -> tuple[Run, ...]:
    """Read the runs of one scenario: all of them whole, measured, and of the name that the plan says."""
    runs, damaged = find_runs(folder)
    if damaged:
        raise damaged[0].error
    for run in runs:
        manifest, what = run.manifest, None
        if manifest.simulated is not None:
            what = f"this run was simulated, with the machine profile {manifest.simulated!r}"
        elif manifest.scenario != scenario:
            what = f"this run is of the scenario {manifest.scenario!r}, and the plan says {scenario!r}"
        elif run.status != "completed":
            what = f"this run is not complete ({run.status}), and an average over it would say nothing"
        if what:
            raise UserError(what, str(run.folder), f"name whole, measured runs of {scenario!r} with {option}")
    return tuple(sorted(runs, key=lambda run: (run.manifest.experiment, run.manifest.position or 0)))


def _check_apart(fitted: Sequence[Run], held: Iterable[Run]) -> None:
    """Refuse a run that is on both sides, a copy of it too, and one of other versions: those would be examined too."""
    seen = {_identity(run): run for run in fitted}
    known = fitted[0].manifest.versions
    for run in held:
        if (twin := seen.get(_identity(run))) is not None:
            what = f"this held-out run is among the fitted ones, as {str(twin.folder)!r}"
            raise UserError(what, str(run.folder), "fit other runs")
        for package, version in run.manifest.versions.items():
            if known.get(package, version) != version:
                what = f"this run used {package} {version}, and the fitted ones {known[package]}"
                raise UserError(what, str(run.folder), "fit and hold out runs of the same versions")


def _identity(run: Run) -> tuple[object, ...]:
    manifest = run.manifest
    return manifest.started_at, manifest.experiment, manifest.seed, tuple(step.wall_s for step in run.steps)


def _check_settings(run: Run, scenarios: dict[str, Scenario]) -> None:
    """Refuse a run of an arm that the scenario does not have, or of other settings than that arm's."""
    arm = run.manifest.arm or ""
    if arm not in scenarios:
        what = f"this run is of the arm {arm!r}, which the scenario does not have"
        raise UserError(what, str(run.folder), f"it has {', '.join(scenarios)}")
    recorded = check_data(run.settings, f"the recorded scenario of {run.folder.name}")
    theirs, planned = (one.model_dump(mode="json", exclude=_NOT_COMPARED) for one in (recorded, scenarios[arm]))
    for settings in (theirs, planned):
        importance = settings["loss"]["importance"]
        if importance["mode"] == "off":  # whose bounds mean nothing; older runs say some
            settings["loss"]["importance"] = {"mode": "off"}
    for key in planned:
        if theirs[key] != planned[key]:
            what = f"this run has `{key}` {theirs[key]!r}, and the scenario says {planned[key]!r}"
            raise UserError(what, str(run.folder), "examine runs of the scenario as it is, or put the scenario back")


def _check_promises(plan: Plan, fitted: Sequence[Run], scenarios: dict[str, Scenario]) -> None:
    """Hold the tiers to their words: nothing fitted has a lag or replay, nor the transports that are to be new."""
    for run in fitted:
        if "strategy" in plan.tiers and (run.setting("max_lag") or run.setting("replay.capacity")):
            what = "this fitted run has a lag or replay, and the tier `strategy` promises synchronous ones alone"
            raise UserError(what, str(run.folder), "fit synchronous runs")
    known = {run.setting("transport.type") for run in fitted}
    for arm in plan.tiers["transport"].arms if "transport" in plan.tiers else ():
        if scenarios[arm].transport.type in known:
            what = f"a fitted run has the transport of {arm!r}, and the tier `transport` promises that none has"
            raise UserError(what, None, "leave its runs out of the fit")
