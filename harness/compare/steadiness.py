"""What is said of a step's time beside its mean: whether it is stable, and whether few steps carry much of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from statistics import fmean

import numpy as np

from harness.compare.experiment import Experiment, Member
from harness.compare.numbers import listed, number, percent, some
from harness.core.trace import Stage

MARK = "*"
"""Stands behind a step time that was not stable."""
APART = 0.05
"""How far mean and median of single steps may lie apart without a word."""
SLOWEST, CARRIED = 0.10, 0.25
"""The slowest tenth of the steps takes about a tenth of the time where all are alike; a quarter is worth a word."""
SLOW = 1.5
"""A step is called slow from so many times the median on."""
FEWEST_STEPS = 4
"""Of fewer steps neither a median nor a slowest tenth says anything."""


def step_ratio(experiment: Experiment, base: str, other: str, figure: str = "step_s") -> float | None:
    """Return how many times the seconds per step an arm takes of another, from each run's own measured window.

    It is exp of the difference of the mean logarithms over the runs: over those of the (seed, block) that both have, or
    over all where they share none. Runs that did not get to their end are left out where there are others.

    Args:
        figure: another one of a run's time to take in place of its seconds per step.
    """
    before, after = (_by_block(experiment.arms[arm], figure) for arm in (base, other))
    shared = before.keys() & after.keys()
    mine = [log(seconds) for key, seconds in after.items() if key in shared or not shared]
    theirs = [log(seconds) for key, seconds in before.items() if key in shared or not shared]
    return exp(fmean(mine) - fmean(theirs)) if mine and theirs else None


def _by_block(members: Sequence[Member], figure: str) -> dict[tuple[int, int | None], float]:
    runs = [member for member in members if member.is_completed] or members
    times = {(member.manifest.seed, member.manifest.block): member.figures.get(figure) for member in runs}
    return {key: seconds for key, seconds in times.items() if seconds}


@dataclass(frozen=True, slots=True)
class UnevenSteps:
    """Where few of a run's measured steps carry much of the time, or mean and median of them lie apart.

    Attributes:
        slow: the numbers of the steps that took ``SLOW`` times the median and more.
        slow_s: their mean seconds; 0.0 without any.
        slow_share: their part of the measured window.
        evaluated: whether there was an evaluation in each of them.
        mean_s, median_s: of all measured steps.
    """

    slow: tuple[int, ...]
    slow_s: float
    slow_share: float
    evaluated: bool
    mean_s: float
    median_s: float


def uneven_steps(member: Member) -> UnevenSteps | None:
    """Return how uneven the measured steps of a run are; None where they are alike, or few."""
    measured, run = member.table.is_measured, member.figures
    walls, mean_s, middle = member.table.wall_s[measured], run.get("step_s"), run.get("median_step_s")
    if len(walls) < FEWEST_STEPS or not mean_s or middle is None:
        return None
    tenth = ceil(SLOWEST * len(walls))
    carried = float(np.sort(walls)[-tenth:].sum() / walls.sum()) - tenth / len(walls)
    apart = max(mean_s, middle) > (1 + APART) * min(mean_s, middle)
    if not apart and carried <= CARRIED - SLOWEST:
        return None
    slow = walls >= SLOW * middle
    evaluate_s = member.stages_s.get(Stage.EVALUATE, np.zeros(len(measured)))[measured]
    return UnevenSteps(
        slow=tuple(member.table.steps["step"][measured][slow].astype(int).tolist()),
        slow_s=float(walls[slow].mean()) if slow.any() else 0.0,
        slow_share=float(walls[slow].sum() / walls.sum()),
        evaluated=bool((evaluate_s[slow] > 0).all()),
        mean_s=mean_s,
        median_s=middle,
    )


def uneven_sentence(experiment: Experiment, arm: str) -> str:
    """Say of an arm which steps carry much of its time, by its most uneven run; empty where none is uneven, or where
    evaluations explain it."""
    uneven = [(member, steps) for member in experiment.arms[arm] if (steps := uneven_steps(member)) is not None]
    if not any(not steps.evaluated and steps.slow_share >= CARRIED for _, steps in uneven):
        return ""
    member, worst = max(uneven, key=lambda pair: abs(log(pair[1].mean_s / pair[1].median_s)))
    runs = len(experiment.arms[arm])
    block = "" if member.manifest.block is None else f", block {member.manifest.block}"
    name = arm if runs == 1 else f"{arm} (seed {member.manifest.seed}{block})"
    against = f"the median of single steps, {number(worst.median_s)} s"
    if worst.slow:
        several = len(worst.slow) > 1
        took = f"step{'s' * several} {listed(some([str(step) for step in worst.slow]))} took {number(worst.slow_s)} s"
        took += " on average" * several
        text = f"{name}: {took}, against {against}: {percent(worst.slow_share)} of the measured time"
    else:
        text = f"{name}: a step takes {number(worst.mean_s)} s on average, {against}"
    return text + (f"; {len(uneven)} of {runs} runs are as uneven" if runs > 1 else "") + "."


def mark(experiment: Experiment, arm: str) -> str:
    """Return what stands behind a step time of this arm: ``MARK`` where that of a run was not stable."""
    return MARK if any(member.figures["is_steady"] is False for member in experiment.arms[arm]) else ""


def steadiness_notes(experiment: Experiment, arms: Sequence[str]) -> list[str]:
    """Say in which arms the step time of some runs was still drifting after warm-up; empty where in none."""
    unsteady = _counted(experiment, arms, lambda member: member.figures["is_steady"] is False)
    if not unsteady:
        return []
    slow = _counted(experiment, arms, lambda member: member.figures["slow_start"])
    start = f"; in {listed(slow)} the start is slower and lasts too long to be left out" if slow else ""
    return [f"The step time was still drifting after warm-up in {listed(unsteady)}{start}."]


def _counted(experiment: Experiment, arms: Sequence[str], is_so: Callable[[Member], bool]) -> list[str]:
    """Name the arms of which it is so, with the number of such runs where there are several."""
    counts = {arm: (sum(map(is_so, experiment.arms[arm])), len(experiment.arms[arm])) for arm in arms}
    return [arm + (f" ({so} of {runs} runs)" if runs > 1 else "") for arm, (so, runs) in counts.items() if so]


def warm_up_reasons(arms: Mapping[str, Sequence[Member]]) -> list[str]:
    """Say why the warm-up of two arms forbids a verdict other than ``inconclusive``; empty where it does not.

    It does where most runs of one of them start on a slower level that could not be left out, or are too short to tell.
    A majority, since on a machine with weather of its own single runs are seen to do so by chance.
    """
    reasons = []
    for arm, members in arms.items():
        runs = [member.figures for member in members if member.manifest.simulated is None]
        late, short = sum(run["slow_start"] for run in runs), sum(run["is_steady"] is None for run in runs)
        if 2 * late > len(runs):
            reasons.append(f"{late} of {len(runs)} runs of {arm} were still warming up when they were measured")
        elif 2 * short > len(runs):
            reasons.append(f"{short} of {len(runs)} runs of {arm} have too few steps to tell where warm-up ends")
    return reasons
