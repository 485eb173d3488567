"""A machine profile at the speed that a recorded run had: so that seconds of another arm are those of today's machine.

From one occasion to the next the machine, and what the fit misses, change the seconds of all arms alike; ratios carry
over. Each stage of the recorded run is priced by the profile: the factor of a cost is the median, over the measured
training steps, of the seconds that its spans took over those predicted. A span beside which another part worked counts
for what it would have taken alone, at the profile's contention (``calibrate.contention``). Costs that the run does not
have take the factor of their stage under other circumstances, else that of all stages together.

The logarithm of a factor has two parts: the occasion's, of spread o (the profile's ``occasion_log_sd``), which the
next run shares, and the run's own, of spread r (the cost's ``run_log_sd``), which it does not. So a cost takes the
share of it that is expected to be the occasion's, o^2 / (o^2 + r^2), and its spread becomes that of the next run around
this, sqrt(r^2 + o^2 r^2 / (o^2 + r^2)); where the run did not have the cost, with the spread of the factors on top.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import median, pstdev
from typing import Any

from harness.core.errors import UserError
from harness.probes.provenance import machine_facts
from harness.results import Run, find_run_folders, load_run
from harness.results.rows import WARMUP_FLOOR
from harness.run.earlier_runs import made_here
from harness.scenario.schema import Scenario
from harness.simulate.calibrate.observations import check_runs, observe, recorded_lengths
from harness.simulate.calibrate.stages import times
from harness.simulate.machine import OCCASION_LOG_SD, Correction, MachineProfile, StageCost, rounded
from harness.simulate.points import variants_of
from harness.simulate.recorded_run import run_label

FEWEST_STEPS = 3
"""Training steps beyond warm-up that tell a machine's speed; a fit asks for more."""
FEWEST_PILOT_STEPS = FEWEST_STEPS + WARMUP_FLOOR
TRIED = 10
"""Runs that are looked at for one to start from; what is older is of other occasions."""
LONG_S = 0.001
"""Seconds of a stage in a step from which on its factor tells how much factors differ: shorter ones are noise."""


@dataclass(frozen=True)
class Anchor:
    """A profile at the speed of a run.

    Attributes:
        factors: of each stage of the run that is not short: seconds that it took over those of the profile.
        overall: of all of them together.
    """

    profile: MachineProfile
    run: Run
    factors: dict[str, float]
    overall: float

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"run": run_label(self.run), "overall": self.overall, "stages": self.factors}

    def sentence(self, now: datetime | None = None) -> str:
        """Say what seconds rest on, and how old it is."""
        since = (now or datetime.now(UTC)) - datetime.fromisoformat(self.run.manifest.started_at)
        hours = max(0.0, since.total_seconds() / 3600)
        age = f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.0f} days"
        stages = ", ".join(f"{stage} {factor:.2f}" for stage, factor in self.factors.items())
        return (
            f"Seconds are those of the machine in the run {run_label(self.run)}, {age} ago: its stages took "
            f"{self.overall:.2f} of what the profile says ({stages})."
        )


def pilot(machine: MachineProfile, scenario: Scenario, arm: str | None, steps: int, out: Path, quiet: bool) -> Run:
    """Make a few steps of a scenario's first run, or of an arm's, to start a forecast from; it stays in ``out``.

    Raises:
        UserError: too few steps, the profile is of another machine, or the run cannot be made.
        RunStopped: the run had to stop; its folder says why.
    """
    from harness.run.experiment import run_scenario

    if steps < FEWEST_PILOT_STEPS:
        what = f"--pilot is {steps}, and a run of fewer than {FEWEST_PILOT_STEPS} steps tells no speed"
        raise UserError(what, "--pilot", f"--pilot {FEWEST_PILOT_STEPS}")
    if not machine.is_of(machine_facts()["fingerprint"]):
        what = f"the profile {machine.name} is of another machine than this one, whose speed a pilot would tell"
        raise UserError(what, "--pilot", "take a profile of this machine: python -m harness calibrate --name NAME")
    first = variants_of(scenario, arm)[0].scenario
    evaluation = first.evaluation.model_copy(update={"every": steps, "prompts": 1, "examples": 0})
    fewer = {"steps": steps, "blocks": 1, "stop_at_half_width": None, "save_policy": False, "evaluation": evaluation}
    folders = list[Path]()
    run_scenario(first.model_copy(update=fewer), out, quiet, show=folders.append)
    (folder,) = find_run_folders(folders[-1])
    return load_run(folder)


def anchored(machine: MachineProfile, run: Run) -> Anchor:
    """Bring a profile to the speed of a recorded run.

    Raises:
        UserError: the run is none that a profile could be fitted to, or the profile knows none of its stages.
    """
    check_runs([run], fewest_steps=FEWEST_STEPS)
    slowdown = machine.contention.slowdown if machine.contention else 0.0
    lost = slowdown / (1 + slowdown)
    steps: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    observations = observe(run)
    for item in observations:
        cost = machine.cost_of(item.stage, item.where)
        predicted = cost.seconds_of(item.units, item.model) if cost else 0.0
        if cost is not None and predicted > 0:
            both = steps[machine.stages.index(cost)][item.step]
            both[0] += item.seconds * (1 - min(1.0, item.others) * lost)
            both[1] += predicted
    if not steps:
        what = f"the profile {machine.name} knows no stage of the run {run_label(run)}"
        raise UserError(what, "--from", "name a run of this machine, or another profile")
    own = {place: _factor(by_step.values()) for place, by_step in steps.items()}
    by_stage: dict[str, list[list[float]]] = defaultdict(list)
    whole: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for place, by_step in steps.items():
        by_stage[machine.stages[place].stage] += by_step.values()
        for step, (measured, predicted) in by_step.items():
            whole[step] = [whole[step][0] + measured, whole[step][1] + predicted]
    stages, overall = {stage: _factor(each) for stage, each in by_stage.items()}, _factor(whole.values())
    long = {stage: stages[stage] for stage, each in by_stage.items() if median(s for s, _ in each) >= LONG_S}
    apart = pstdev(map(math.log, long.values())) if len(long) > 1 else 0.0
    model = observations[0].model
    spread = machine.occasion_log_sd or OCCASION_LOG_SD
    costs = [
        _scaled(cost, own[place], spread, 0.0, model)
        if place in own
        else _scaled(cost, stages.get(cost.stage, overall), spread, apart)
        for place, cost in enumerate(machine.stages)
    ]
    known = {(each.task, each.model, each.purpose) for each in machine.lengths}
    more = [each for each in recorded_lengths([run]) if (each.task, each.model, each.purpose) not in known]
    name = f"{machine.name} at the speed of {run_label(run)}"
    told = {"stages": tuple(costs), "lengths": (*machine.lengths, *more), "occasion_log_sd": 0.0}
    return Anchor(machine.model_copy(update={"name": name, **told}), run, long, overall)


def newest_anchor(machine: MachineProfile, results: Path) -> Anchor | None:
    """Return a profile of this machine at the speed of the newest run in a results folder that tells it, if any does.

    Runs of other machines and versions, and those that a profile could not be fitted to, are passed over.
    """
    if not machine.is_of(machine_facts()["fingerprint"]):
        return None
    for folder, _ in islice(made_here(results), TRIED):
        with suppress(UserError):
            return anchored(machine, load_run(folder))
    return None


def _factor(steps: Iterable[list[float]]) -> float:
    return median(measured / predicted for measured, predicted in steps)


def _scaled(cost: StageCost, factor: float, spread: float, apart: float, model: str | None = None) -> StageCost:
    """Return a cost at another speed; what it is for the run's own model is known from the run."""
    occasion, own = spread**2, cost.run_log_sd**2
    share = occasion / (occasion + own)
    factor **= share
    models = dict(cost.models)
    if model is not None:
        models[model] = Correction(factor=models[model].factor if model in models else 1.0)
    return times(cost, factor, run_log_sd=rounded(math.sqrt(own + share * own + apart**2)), models=models)
