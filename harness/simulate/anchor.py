"""A machine profile at the speed that a recorded run had: so that seconds of another arm are those of today's machine.

From one occasion to the next the machine, and what the fit misses, change the seconds of all arms alike; ratios carry
over. Each stage of the recorded run is priced by the profile: the factor of a cost is the median, over the measured
training steps, of the seconds that its spans took over those predicted. A span beside which another part worked counts
for what it would have taken alone, at the profile's contention (``calibrate.contention``). Costs that the run does not
have take the factor of their stage under other circumstances, else that of all stages together.

The logarithm of a factor has two parts: the occasion's, of spread o (``OCCASION_LOG_SD``), which the next run shares,
and the run's own, of spread r (the cost's ``run_log_sd``), which it does not. So a cost takes the share of it that is
expected to be the occasion's, o^2 / (o^2 + r^2), and its spread becomes that of the next run around this,
sqrt(r^2 + o^2 r^2 / (o^2 + r^2)); where the run did not have the cost, with the spread of the factors on top.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median, pstdev

from harness.core.errors import UserError
from harness.results import Run
from harness.simulate.calibrate.observations import check_runs, observe, recorded_lengths
from harness.simulate.calibrate.stages import times
from harness.simulate.machine import Correction, MachineProfile, StageCost, rounded
from harness.simulate.recorded_run import run_label

OCCASION_LOG_SD = 0.2
"""Spread of the speeds of one machine, and of what a fit misses, from one occasion to the next. Assumed: forecasts
without an anchor were off by 20 to 45% (``docs/simulator.md``)."""
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


def anchored(machine: MachineProfile, run: Run) -> Anchor:
    """Bring a profile to the speed of a recorded run.

    Raises:
        UserError: the run is none that a profile could be fitted to, or the profile knows none of its stages.
    """
    check_runs([run])
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
    costs = [
        _scaled(cost, own[place], 0.0, model) if place in own else _scaled(cost, stages.get(cost.stage, overall), apart)
        for place, cost in enumerate(machine.stages)
    ]
    known = {(each.task, each.model, each.purpose) for each in machine.lengths}
    more = [each for each in recorded_lengths([run]) if (each.task, each.model, each.purpose) not in known]
    name = f"{machine.name} at the speed of {run_label(run)}"
    profile = machine.model_copy(update={"name": name, "stages": tuple(costs), "lengths": (*machine.lengths, *more)})
    return Anchor(profile, run, long, overall)


def _factor(steps: Iterable[list[float]]) -> float:
    return median(measured / predicted for measured, predicted in steps)


def _scaled(cost: StageCost, factor: float, apart: float, model: str | None = None) -> StageCost:
    """Return a cost at another speed; what it is for the run's own model is known from the run."""
    occasion, own = OCCASION_LOG_SD**2, cost.run_log_sd**2
    share = occasion / (occasion + own)
    factor **= share
    models = dict(cost.models)
    if model is not None:
        models[model] = Correction(factor=models[model].factor if model in models else 1.0)
    return times(cost, factor, run_log_sd=rounded(math.sqrt(own + share * own + apart**2)), models=models)
