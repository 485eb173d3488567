"""``run``, ``bench`` and ``sweep`` with ``--dry-run``: what would run, for how long, and what is missing here.

How long is taken from the newest finished run of each arm on this machine: of the same settings beside seed, blocks and
steps, on the same processor, cores and memory, with the same versions of the packages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.compare.numbers import count, number, plural
from harness.core.errors import UserError
from harness.core.progress import duration
from harness.core.terminal_text import plain
from harness.results.anonymous import safe_name
from harness.results.frames import table_of
from harness.results.reader import load_run, read_settings
from harness.results.writer import SCENARIO
from harness.run.earlier_runs import as_recorded, differing, made_here
from harness.run.needs import Need, needs_of
from harness.scenario.axes import Variant, changes_of, expand
from harness.scenario.schema import Scenario
from harness.settings.transport import TransportSweepSettings

MOST_SHOWN = 40
MAY_DIFFER = {"seed", "blocks", "steps"}
Check = Callable[[Sequence[Variant]], None]


@dataclass(frozen=True, slots=True)
class Arm:
    """One kind of run: an arm at a point of the sweep.

    Attributes:
        changes: dotted keys that it sets, beside the scenario's own values.
        runs: in how many blocks and seeds.
        steps: training steps of each run.
        rollouts: of each run, those of validation among them.
        step_s: seconds of a step, evaluations included; None where no such run was finished here.
        startup_s: seconds before the loop of that run began.
        by: folder of that run.
    """

    name: str
    changes: Mapping[str, Any]
    runs: int
    steps: int
    rollouts: int
    step_s: float | None = None
    startup_s: float | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command would do.

    Attributes:
        seconds: of all runs together with their start; None where they are not known of every arm.
        finished: runs that there are.
        syncs: what a transport sweep makes in place of rollouts.
    """

    scenario: str
    blocks: int
    runs: int
    arms: tuple[Arm, ...]
    seconds: float | None
    missing: tuple[Need, ...]
    results: str
    finished: int = 0
    syncs: str | None = None


def check_here(variants: Sequence[Variant]) -> None:
    """Refuse runs that cannot work here, as a real command does before it starts them."""
    from harness.run.interleaving import points_of  # with packages that may be missing
    from harness.run.preflight import check_before_start

    check_before_start(points_of(variants))


def dry_run(
    scenario: Scenario,
    out: Path,
    quiet: bool,
    as_json: bool = False,
    check: Check | None = check_here,
    finished: Collection[str] = (),
    program_s: float = 0.0,
) -> int:
    """Print what a scenario would run; nothing is started and nothing written.

    Args:
        scenario: as loaded.
        out: the results folder.
        quiet: print one line.
        as_json: print it for programs.
        check: what else is looked at, where no package is missing.
        finished: names of runs that there are, which are not made again.
        program_s: seconds before the first run starts, as this program took them.

    Returns:
        the exit code: 0, or 2 where something is missing here.
    """
    plan = plan_of(scenario, out, check, finished)
    if plan.seconds is not None and plan.runs:
        plan = replace(plan, seconds=plan.seconds + program_s)
    if as_json:
        print(json.dumps(asdict(plan), indent=2))
    else:
        lines = _lines(plan)
        print("\n".join(map(plain, lines[:1] if quiet else lines)))
    return 2 if plan.missing else 0


def plan_of(scenario: Scenario, out: Path, check: Check | None = None, finished: Collection[str] = ()) -> Plan:
    """Work out what a scenario would run; see ``dry_run``."""
    every, kinds = expand(scenario), dict[str, list[Variant]]()
    variants = [each for each in every if (each.name not in finished if each.name else not finished)]
    for variant in variants:
        kinds.setdefault(variant.label, []).append(variant)
    needs = (need for members in kinds.values() for need in needs_of(members[0].scenario))
    missing = {need.missing: need for need in needs if need.missing}
    if check is not None and not missing:
        try:
            check(variants)
        except UserError as error:
            missing[error.what] = Need(error.where or "", error.what, error.fix or "")
    home = out / safe_name(scenario.name)
    earlier, settings_of = list(made_here(home)), cache(read_settings)  # which each arm looks at
    arms = list[Arm]()
    for name, (first, *others) in kinds.items():
        measures = scenario.transport_sweep is not None
        steps, rollouts = (0, 0) if measures else (first.scenario.steps, first.scenario.num_rollouts)
        arm = Arm(name, changes_of(scenario, first), 1 + len(others), steps, rollouts)
        wanted = as_recorded(first.scenario)
        for folder, run in earlier if not measures else ():
            with suppress(UserError):
                if differing(settings_of(folder / SCENARIO), wanted) <= MAY_DIFFER:
                    table = table_of(load_run(folder))
                    if len(table):
                        step_s = fmean(table.wall_s[table.is_measured].tolist())
                        arm = replace(arm, step_s=step_s, startup_s=run.startup_s, by=str(folder))
                        break
        arms.append(arm)
    seconds = [
        arm.runs * (arm.startup_s + arm.steps * arm.step_s) for arm in arms if arm.step_s and arm.startup_s is not None
    ]
    whole = sum(seconds) if len(seconds) == len(arms) else None
    return Plan(
        scenario.name,
        scenario.blocks,
        len(variants),
        tuple(arms),
        whole,
        tuple(missing.values()),
        str(home),
        len(every) - len(variants),
        None if scenario.transport_sweep is None else weight_syncs(scenario.transport_sweep),
    )


def weight_syncs(sweep: TransportSweepSettings) -> str:
    """Say what a transport sweep makes in place of rollouts."""
    kinds = len(sweep.transports) * len(sweep.megabytes) * len(sweep.tensors) * len(sweep.receivers)
    return f"{count(kinds)} kinds of weight sync, {sweep.repeats} of each"


def _lines(plan: Plan) -> list[str]:
    made = plan.syncs or f"{count(sum(arm.rollouts * arm.runs for arm in plan.arms))} rollouts"
    unknown = "the first block" if plan.blocks > 1 else "a run here"
    how_long = f"seconds known after {unknown}"
    if plan.seconds is not None:
        how_long = f"about {duration(plan.seconds)}, start included"
    would = f"would make {plural(plan.runs, 'run')} with {made}, {how_long}"
    if plan.finished:
        runs = plural(plan.finished, "run") + (" is" if plan.finished == 1 else " are")
        would = f"{runs} finished; {would if plan.runs else 'nothing is left to run'}"
    lines = [f"{plan.scenario}: {would}; " + (f"{len(plan.missing)} missing" if plan.missing else "nothing is missing")]
    for arm in plan.arms[:MOST_SHOWN]:
        set_to = ", ".join(f"{key}={value}" for key, value in arm.changes.items()) or "the scenario as it is"
        pace = ""
        if arm.step_s is not None and arm.startup_s is not None:
            pace = f", {number(arm.step_s)} s a step and {number(arm.startup_s)} s to start as in {arm.by}"
        times = f" x {arm.runs}" if arm.runs > 1 else ""
        steps = "" if plan.syncs else f"; {plural(arm.steps, 'step')}{pace}"
        lines.append(f"  {arm.name}{times}: {set_to}{steps}")
    more = len(plan.arms) - MOST_SHOWN
    lines += [f"  and {more} more"] if more > 0 else []
    lines += [f"  blocks: {plan.blocks}, in each of which every arm runs once"] if plan.blocks > 1 else []
    lines += [f"  results: {plan.results}"]
    return lines + [f"  missing: {need.missing}; {need.fix}" for need in plan.missing]
