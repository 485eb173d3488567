"""What is examined, how wrong a prediction may be, and the measured runs: refused where they are not as planned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from harness.core.errors import UserError
from harness.results import Run, find_runs
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.settings.base import Fraction, Section

PLAN = Path(__file__).with_name("plan.yaml")


class TierPlan(Section):
    """Arms that are hard to predict for the same reason.

    Attributes:
        what: that reason.
        arms: of the held-out scenario.
        bound: on the median over the arms of the absolute error of step time.
        without: by arm, the model preset whose runs the fit may not see.
    """

    what: str
    arms: tuple[str, ...]
    bound: Fraction
    without: dict[str, str] = Field(default_factory=dict)


class Bounds(Section):
    """Bounds that hold for every tier, and for the ranking of all arms."""

    stage: Fraction
    coverage: tuple[Fraction, Fraction]
    kendall_tau: Fraction


class ChangePlan(Section):
    """Which recorded arm is changed, and into which measured arms by which settings."""

    start: Annotated[str, Field(alias="from")]
    changes: dict[str, tuple[str, ...]]


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

    chosen: str
    fit: str
    held_out: str
    transport_costs: str
    tiers: dict[str, TierPlan]
    bounds: Bounds
    whatif: ChangePlan

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm once, in the order of the tiers."""
        return tuple(dict.fromkeys(arm for tier in self.tiers.values() for arm in tier.arms))


def load_plan() -> Plan:
    """Read the plan that was written before anything was measured."""
    return Plan.model_validate_json(json.dumps(yaml.safe_load(PLAN.read_text(encoding="utf-8")), default=str))


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


def read_measured(plan: Plan, folder: Path) -> Measured:
    """Read and check the runs of an examination, in a folder for each scenario of the plan.

    Raises:
        UserError: a run is damaged, did not complete, was simulated, is of another scenario or is on both sides; or an
            arm was not measured.
    """
    fitted, held, swept = (_completed(folder, name) for name in (plan.fit, plan.held_out, plan.transport_costs))
    seen = {_identity(run): run for run in fitted}
    for run in held:
        if (twin := seen.get(_identity(run))) is not None:  # a copy too
            what = f"this held-out run is among the fitted ones, as {str(twin.folder)!r}"
            raise UserError(what, str(run.folder), "fit other runs")
    held_out = {arm: tuple(run for run in held if run.manifest.arm == arm) for arm in plan.arms}
    if missing := [arm for arm, runs in held_out.items() if not runs]:
        what = f"no run of {', '.join(missing)}, which the plan wants predicted"
        raise UserError(what, str(folder), f"measure them: python -m harness run tests/holdout/{plan.held_out}.yaml")
    variants = expand(load_scenario(PLAN.with_name(f"{plan.held_out}.yaml")))
    scenarios = {str(variant.arm): variant.scenario for variant in variants if not variant.block}
    return Measured(fitted, swept, held_out, {arm: scenarios[arm] for arm in held_out})


def _completed(folder: Path, scenario: str) -> tuple[Run, ...]:
    """Read the runs of one scenario: all of them whole and measured."""
    runs, damaged = find_runs(folder / scenario)
    if damaged:
        raise damaged[0].error
    for run in runs:
        found = (run.manifest.scenario, run.status, run.manifest.simulated)
        if found != (scenario, "completed", None):
            what = "this run is of the scenario {!r}, {}, simulated with {!r}".format(*found)
            raise UserError(what, str(run.folder), f"leave only whole, measured runs of {scenario!r} there")
    return tuple(sorted(runs, key=lambda run: (run.manifest.experiment, run.manifest.position or 0)))


def _identity(run: Run) -> tuple[object, ...]:
    manifest = run.manifest
    return manifest.started_at, manifest.experiment, manifest.seed, tuple(step.wall_s for step in run.steps)
