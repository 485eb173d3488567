"""``run``, ``bench`` and ``sweep`` with ``--dry-run``: what would run, for how long, and what is missing here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.compare.numbers import count, number, plural
from harness.core.errors import UserError
from harness.core.progress import duration
from harness.core.terminal_text import plain
from harness.results.anonymous import safe_name
from harness.run.needs import Need, needs_of
from harness.scenario.axes import Variant, changes_of, expand
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import placement_of
from harness.simulate.machine import MachineProfile, profile_of_machine
from harness.simulate.simulated_run import simulate_run

FEW_STEPS = 24
"""Of a longer run only so many steps are simulated; the others take as long on average."""
ROUGHLY = ("engine", "precision", "task", "threads", "transport")
"""Circumstances in which a scenario may differ from all that the profile knows."""
MOST_SIMULATED = 40
"""Kinds of run that are simulated; the others are taken to last as long as these on average."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One kind of run: an arm at a point of the sweep.

    Attributes:
        changes: dotted keys that it sets, beside the scenario's own values.
        runs: in how many blocks and seeds.
        steps: training steps of each run.
        rollouts: of each run, those of validation among them.
        seconds: that the loop of one run would take; None where no profile tells.
    """

    name: str
    changes: Mapping[str, Any]
    runs: int
    steps: int
    rollouts: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command would do.

    Attributes:
        blocks: of the scenario.
        seconds: of all runs together; None where no profile tells, or not of every kind of run.
        startup_s: the part of it in which runs start; None where the profile does not tell, and it is not counted.
        why_unknown: why there are none.
        machine: name of the profile.
        missing: what this machine lacks, each with what brings it.
        results: folder in which the results would be.
    """

    scenario: str
    blocks: int
    arms: tuple[Arm, ...]
    seconds: float | None
    startup_s: float | None
    why_unknown: str
    machine: str | None
    missing: tuple[Need, ...]
    results: str

    @property
    def runs(self) -> int:
        """All runs."""
        return sum(arm.runs for arm in self.arms)


Check = Callable[[Sequence[Variant]], None]
"""Refuses runs that cannot work here, as a real command does before it starts them."""


def dry_run(scenario: Scenario, out: Path, quiet: bool, as_json: bool = False, check: Check | None = None) -> int:
    """Print what a scenario would run; nothing is started and nothing written.

    Args:
        scenario: as loaded.
        out: the results folder.
        quiet: print one line.
        as_json: print it for programs.
        check: what else is looked at, where no package is missing.

    Returns:
        the exit code: 0, or 2 where something is missing here.
    """
    plan = plan_of(scenario, out, check=check)
    if as_json:
        print(json.dumps(asdict(plan) | {"runs": plan.runs}, indent=2))
    else:
        lines = list(_lines(plan))
        print("\n".join(map(plain, lines[:1] if quiet else lines)))
    return 2 if plan.missing else 0


def plan_of(scenario: Scenario, out: Path, profile: MachineProfile | None = None, check: Check | None = None) -> Plan:
    """Work out what a scenario would run.

    Args:
        profile: of the machine; None looks for the one that was measured here.
        check: see ``dry_run``.
    """
    variants = expand(scenario)
    kinds: dict[str, list[Variant]] = {}
    for variant in variants:
        kinds.setdefault(variant.label, []).append(variant)
    needs = (need for members in kinds.values() for need in needs_of(members[0].scenario))
    missing = {need.missing: need for need in needs if need.missing}
    if check is not None and not missing:
        try:
            check(variants)
        except UserError as error:
            missing[error.what] = Need(error.where or "", error.what, error.fix or "")
    profile = profile or profile_of_machine()
    arms, reasons = list[Arm](), list[str]()
    for name, members in kinds.items():
        seconds = None
        if scenario.transport_sweep is None and profile is not None and len(arms) < MOST_SIMULATED and not reasons:
            try:
                seconds = loop_seconds(members[0].scenario, profile)
            except UserError as error:
                reasons.append(error.what)
        first = members[0]
        changes = changes_of(scenario, first)
        arms.append(Arm(name, changes, len(members), first.scenario.steps, first.scenario.num_rollouts, seconds))
    known = [arm.seconds * arm.runs for arm in arms if arm.seconds is not None]
    covered = sum(arm.runs for arm in arms if arm.seconds is not None)
    whole = sum(known) * len(variants) / covered if known and not reasons else None
    starts = [] if profile is None else [profile.startup_s.get(placement_of(each.scenario)) for each in variants]
    startup_s = sum(start for start in starts if start is not None) if starts and None not in starts else None
    if scenario.transport_sweep is not None:
        why = "a sweep of transports is not simulated"
    elif profile is None:
        why = "no machine profile was measured here: python -m harness calibrate --name NAME makes one"
    else:
        why = reasons[0] if reasons else ""
    return Plan(
        scenario=scenario.name,
        blocks=scenario.blocks,
        arms=tuple(arms),
        seconds=None if whole is None else whole + (startup_s or 0.0),
        startup_s=startup_s,
        why_unknown=why,
        machine=None if profile is None else profile.name,
        missing=tuple(missing.values()),
        results=str(out / safe_name(scenario.name)),
    )


def loop_seconds(scenario: Scenario, profile: MachineProfile) -> float:
    """Return about how long the loop of one run takes, its start-up apart.

    Costs under other circumstances are taken where the profile has none under the scenario's: rough is enough here.

    Raises:
        UserError: the profile does not know a stage of it at all.
    """
    steps = min(scenario.steps, FEW_STEPS)
    run = simulate_run(scenario.model_copy(update={"steps": steps}), profile, allow=ROUGHLY)
    return run.seconds * scenario.steps / steps


def _lines(plan: Plan) -> Sequence[str]:
    rollouts = sum(arm.rollouts * arm.runs for arm in plan.arms)
    lines = [
        f"{plan.scenario}: would make {plural(plan.runs, 'run')} with {count(rollouts)} rollouts, {_how_long(plan)}; "
        + (f"{len(plan.missing)} missing" if plan.missing else "nothing is missing")
    ]
    for arm in plan.arms[:MOST_SIMULATED]:
        set_to = ", ".join(f"{key}={value}" for key, value in arm.changes.items()) or "the scenario as it is"
        pace = "" if arm.seconds is None else f", {number(arm.seconds / arm.steps)} s a step"
        times = f" x {arm.runs}" if arm.runs > 1 else ""
        lines.append(f"  {arm.name}{times}: {set_to}; {plural(arm.steps, 'step')}{pace}")
    more = len(plan.arms) - MOST_SIMULATED
    lines += [f"  and {more} more"] if more > 0 else []
    lines += [f"  blocks: {plan.blocks}, in each of which every arm runs once"] if plan.blocks > 1 else []
    lines += [f"  seconds: not known: {plan.why_unknown}"] if plan.seconds is None else []
    lines += [f"  results: {plan.results}"]
    lines += [f"  missing: {need.missing}; {need.fix}" for need in plan.missing]
    return lines


def _how_long(plan: Plan) -> str:
    if plan.seconds is None:
        return "nobody knows for how long"
    starts = "beside start-up" if plan.startup_s is None else f"with {duration(plan.startup_s)} of start-up"
    return f"about {duration(plan.seconds)} {starts} (by the machine profile {plan.machine})"
