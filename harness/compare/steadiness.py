"""What is said of a step's time beside its mean: whether it is stable, and whether few steps carry much of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from statistics import fmean

import numpy as np

from harness.compare.experiment import Experiment, Member
from harness.compare.numbers import listed, number, percent, some
from harness.core.trace import Stage

MARK = "*"
"""Stands behind a step time that was not stable."""
SLOW, CARRIED = 1.5, 0.25
"""A step is slow from so many times the median on; so large a share of the time in slow steps is worth a word."""
FEWEST_STEPS = 4


def step_ratio(experiment: Experiment, base: str, other: str, figure: str = "step_s") -> float | None:
    """Return how many times the seconds per step (or another ``figure``) an arm takes of another.

    It is exp of the difference of the mean logarithms over the runs: over those of the (seed, block) that both have, or
    over all where they share none. Runs that did not get to their end are left out where there are others.
    """
    times = []
    for members in (experiment.arms[base], experiment.arms[other]):
        runs = [member for member in members if member.is_completed] or members
        of_runs = {(each.manifest.seed, each.manifest.block): each.figures.get(figure) for each in runs}
        times.append({key: log(seconds) for key, seconds in of_runs.items() if seconds})
    shared = times[0].keys() & times[1].keys()
    logs = [[value for key, value in own.items() if key in shared or not shared] for own in times]
    return exp(fmean(logs[1]) - fmean(logs[0])) if all(logs) else None


def uneven_sentence(experiment: Experiment, arm: str) -> str:
    """Name the slow steps of an arm that carry much of its time, by the run where they carry most; empty where they
    carry little, or there was an evaluation in each."""
    uneven: list[tuple[float, Member, list[int], float, float]] = []
    for member in experiment.arms[arm]:
        measured = member.table.is_measured
        walls, steps = member.table.wall_s[measured], member.table.steps["step"][measured]
        middle = float(np.median(walls)) if len(walls) >= FEWEST_STEPS else 0.0
        slow = walls >= SLOW * middle
        evaluate_s = member.stages_s.get(Stage.EVALUATE, np.zeros(len(measured)))[measured]
        if middle > 0 and (evaluate_s[slow] == 0).any() and walls[slow].sum() >= CARRIED * walls.sum():
            share, mean_s = float(walls[slow].sum() / walls.sum()), float(walls[slow].mean())
            uneven.append((share, member, steps[slow].astype(int).tolist(), mean_s, middle))
    if not uneven:
        return ""
    share, member, slow_steps, slow_s, middle = max(uneven, key=lambda each: each[0])
    runs, several = len(experiment.arms[arm]), len(slow_steps) > 1
    block = "" if member.manifest.block is None else f", block {member.manifest.block}"
    name = arm if runs == 1 else f"{arm} (seed {member.manifest.seed}{block})"
    took = f"step{'s' * several} {listed(some([str(step) for step in slow_steps]))} took {number(slow_s)} s"
    took += " on average" * several
    text = (
        f"{name}: {took}, against the median of single steps, {number(middle)} s: {percent(share)} of the measured time"
    )
    return text + (f"; {len(uneven)} of {runs} runs are as uneven" if runs > 1 else "") + "."


def _drifts(member: Member) -> bool:
    return member.figures["is_steady"] is False and member.figures.get("step_s") is not None


def mark(experiment: Experiment, arm: str) -> str:
    """Return what stands behind a step time of this arm: ``MARK`` where that of a run was not stable."""
    return MARK if any(map(_drifts, experiment.arms[arm])) else ""


def steadiness_notes(experiment: Experiment, arms: Sequence[str]) -> list[str]:
    """Say in which arms the step time of some runs was still drifting after warm-up; empty where in none."""
    unsteady = _counted(experiment, arms, _drifts)
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
    """Say in which arms most runs start on a slower level that could not be left out, or are too short to tell, which
    forbids a verdict. A majority, since on a busy machine single runs are seen to do so by chance."""
    reasons = []
    for arm, members in arms.items():
        runs = [member.figures for member in members if member.manifest.simulated is None]
        late, short = sum(run["slow_start"] for run in runs), sum(run["is_steady"] is None for run in runs)
        if 2 * late > len(runs):
            reasons.append(f"{late} of {len(runs)} runs of {arm} were still warming up when they were measured")
        elif 2 * short > len(runs):
            reasons.append(f"{short} of {len(runs)} runs of {arm} have too few steps to tell where warm-up ends")
    return reasons
