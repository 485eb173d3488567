"""What is said of a step's time beside its mean: whether it keeps one level, and whether few steps carry much of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from statistics import fmean

from harness.compare.experiments import Variant
from harness.compare.figures import RunFigures
from harness.compare.numbers import listed, number, percent
from harness.core.trace import Stage

MARK = "*"
"""Stands behind a step time of runs that keep no one level."""
APART = 0.05
"""How far mean and median of single steps, or ratios of means and of medians, may lie apart without a word."""
SLOWEST, CARRIED = 0.10, 0.25
"""The slowest tenth of the steps takes about a tenth of the time where all are alike; a quarter is worth a word."""
SLOW = 1.5
"""A step is called slow from so many times the median on."""
MOST_NAMED = 6
"""Slow steps that are named by their numbers."""
FEWEST_LOOKED_AT = 4
"""Of fewer steps neither a median nor a slowest tenth says anything."""


def step_ratio(
    base: Variant, other: Variant, read: Callable[[RunFigures], float | None] = lambda run: run.step_s
) -> float | None:
    """Return how many times the seconds per step the other takes, from each run's own measured window.

    It is exp of the difference of the mean logarithms over the runs: over those of the (seed, block) that both have, or
    over all where they share none. Runs that did not get to their end are left out where there are others.

    Args:
        read: another figure of a run's time to take in place of its seconds per step.
    """
    before, after = _times_by_block(base, read), _times_by_block(other, read)
    shared = before.keys() & after.keys()
    mine = [log(seconds) for key, seconds in after.items() if key in shared or not shared]
    theirs = [log(seconds) for key, seconds in before.items() if key in shared or not shared]
    return exp(fmean(mine) - fmean(theirs)) if mine and theirs else None


def _times_by_block(
    variant: Variant, read: Callable[[RunFigures], float | None]
) -> dict[tuple[int, int | None], float]:
    runs = [run for run in variant.runs if run.is_completed] or variant.runs
    times = {(run.manifest.seed, run.manifest.block): read(run) for run in runs}
    return {key: seconds for key, seconds in times.items() if seconds}


def ratio_of_medians(base: Variant, other: Variant) -> float | None:
    """Return ``step_ratio`` of the medians of single steps, where it is visibly another; None where not."""
    of_means = step_ratio(base, other)
    of_medians = step_ratio(base, other, lambda run: run.median_step_s)
    if of_means is None or of_medians is None or abs(log(of_medians / of_means)) <= log(1 + APART):
        return None
    return of_medians


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


def uneven_steps(run: RunFigures) -> UnevenSteps | None:
    """Return how uneven the measured steps of a run are; None where they are alike, or few."""
    measured = run.series.measured() if run.series else None
    if measured is None or len(measured.steps) < FEWEST_LOOKED_AT or run.median_step_s is None or not run.step_s:
        return None
    walls, middle = measured.wall_s, run.median_step_s
    tenth = ceil(SLOWEST * len(walls))
    carried = sum(sorted(walls)[-tenth:]) / sum(walls) - tenth / len(walls)
    apart = max(run.step_s, middle) > (1 + APART) * min(run.step_s, middle)
    if not apart and carried <= CARRIED - SLOWEST:
        return None
    slow = [place for place, seconds in enumerate(walls) if seconds >= SLOW * middle]
    evaluate_s = measured.stages_s.get(Stage.EVALUATE, (0.0,) * len(walls))
    seconds = [walls[place] for place in slow]
    return UnevenSteps(
        slow=tuple(measured.steps[place] for place in slow),
        slow_s=fmean(seconds) if seconds else 0.0,
        slow_share=sum(seconds) / sum(walls),
        evaluated=all(evaluate_s[place] > 0 for place in slow),
        mean_s=run.step_s,
        median_s=middle,
    )


def uneven_sentence(variant: Variant, only_hidden: bool = False) -> str:
    """Say of a variant which steps carry much of its time, by its most uneven run; empty where none is uneven.

    Args:
        only_hidden: empty too unless in some run steps that no evaluation explains carry ``CARRIED`` of the time and
            more: that is a headline.
    """
    found = [(run, uneven) for run in variant.runs if (uneven := uneven_steps(run)) is not None]
    hides = any(not uneven.evaluated and uneven.slow_share >= CARRIED for _, uneven in found)
    if not found or (only_hidden and not hides):
        return ""
    run, worst = max(
        found, key=lambda pair: max(pair[1].mean_s, pair[1].median_s) / min(pair[1].mean_s, pair[1].median_s)
    )
    block = "" if run.manifest.block is None else f", block {run.manifest.block}"
    name = variant.name if len(variant.runs) == 1 else f"{variant.name} (seed {run.manifest.seed}{block})"
    against = f"the median of single steps, {number(worst.median_s)} s"
    if worst.slow:
        took = f"{_numbered(worst.slow)} took {number(worst.slow_s)} s{' on average' if len(worst.slow) > 1 else ''}"
        why = f", {'each ' if len(worst.slow) > 1 else ''}with an evaluation" if worst.evaluated else ""
        text = f"{name}: {took}{why}, against {against}: {percent(worst.slow_share)} of the measured window"
    else:
        text = f"{name}: a step takes {number(worst.mean_s)} s on average, {against}"
    more = f"; {len(found)} of {len(variant.runs)} runs are as uneven" if len(variant.runs) > 1 else ""
    return f"{text}{more}."


def _numbered(steps: Sequence[int]) -> str:
    named = [str(step) for step in steps[:MOST_NAMED]]
    more = len(steps) - len(named)
    which = f"{', '.join(named)} and {more} more" if more else listed(named)
    return f"{'step' if len(steps) == 1 else 'steps'} {which}"


def mark(variant: Variant) -> str:
    """Return what stands behind a step time of this variant: ``MARK`` where a run of it keeps no one level."""
    return MARK if any(run.is_steady is False for run in variant.runs) else ""


def steadiness_notes(variants: Sequence[Variant]) -> list[str]:
    """Say which variants have runs whose steps keep no one level after warm-up; empty where all do."""
    unsteady = _counted(variants, lambda run: run.is_steady is False)
    if not unsteady:
        return []
    slow = _counted(variants, lambda run: run.warm_up.slow_start)
    start = f"; in {listed(slow)} the first level is slower and lasts too long to be left out" if slow else ""
    return [f"Step times do not keep one level after warm-up in {listed(unsteady)}{start}."]


def _counted(variants: Sequence[Variant], is_so: Callable[[RunFigures], bool]) -> list[str]:
    """Name the variants of which it is so, with the number of such runs where there are several."""
    counts = [(variant, sum(map(is_so, variant.runs))) for variant in variants]
    return [
        variant.name + (f" ({count} of {len(variant.runs)} runs)" if len(variant.runs) > 1 else "")
        for variant, count in counts
        if count
    ]


def warm_up_reasons(base: Variant, other: Variant) -> list[str]:
    """Say why the warm-up of two variants forbids a verdict other than ``inconclusive``; empty where it does not.

    It does where most runs of one of them start on a slower level that could not be left out, or are too short to tell.
    A majority, since on a machine with weather of its own single runs are seen to do so by chance.
    """
    reasons = []
    for variant in (base, other):
        runs = [run for run in variant.runs if run.manifest.simulated is None]
        late, short = sum(run.warm_up.slow_start for run in runs), sum(run.is_steady is None for run in runs)
        if 2 * late > len(runs):
            reasons.append(
                f"{late} of {len(runs)} runs of {variant.name} were still warming up when they were measured"
            )
        elif 2 * short > len(runs):
            reasons.append(
                f"{short} of {len(runs)} runs of {variant.name} have too few steps to tell where warm-up ends"
            )
    return reasons
