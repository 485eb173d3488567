"""What validation rewards show over seeds: final rewards, their differences, and the time to the reward target.

A run that diverged counts with what is left of its reward. A run that was cut before its end has no final reward, and
says nothing of what it would have been; so a difference is given only between variants that ended with the same seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from harness.compare.experiments import CONFIDENCE, FEWEST_SEEDS, Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.learning import Evaluated
from harness.compare.numbers import Format, number, plural
from harness.compare.stats import t_interval
from harness.compare.stats.survival import LogRank, Median, Time, log_rank, median_time


def final_reward(run: RunFigures) -> float | None:
    """Return the last measured validation reward of a run that got to its end or diverged; None of one that was cut."""
    ended = run.is_completed or run.divergence is not None
    return run.last.reward if run.last and ended else None


@dataclass(frozen=True)
class FinalRewards:
    """A variant's final rewards by seed, of which there is at least one, and its runs without one."""

    variant: Variant
    by_seed: dict[int, float]
    cut: tuple[RunFigures, ...]

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return fmean(self.by_seed.values())

    @property
    def diverged(self) -> int:
        """How many of the seeds diverged."""
        return sum(run.divergence is not None for run in self.variant.runs if run.manifest.seed in self.by_seed)


def final_rewards(experiment: Experiment) -> list[FinalRewards]:
    """Return the final rewards of each variant that has any, in the order of the variants."""
    found = []
    for variant in experiment.variants:
        rewards = [(run, final_reward(run)) for run in variant.runs]
        by_seed = {run.manifest.seed: value for run, value in rewards if value is not None}
        if by_seed:
            found.append(FinalRewards(variant, by_seed, tuple(run for run, value in rewards if value is None)))
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference with the ends of its 95% interval, over ``seeds`` pairs of runs.

    Attributes:
        pairs: of variants for which the intervals hold together.
    """

    mean: float
    low: float
    high: float
    seeds: int
    pairs: int


def reward_difference(experiment: Experiment, base: Variant, other: Variant) -> Difference | None:
    """Return the final reward of ``other`` minus that of ``base``, paired by seed; the one source of such claims.

    The interval is Student's for paired samples, at Bonferroni's level for all pairs of variants: which two are set
    against each other is often read from the same rewards.

    Returns:
        None where the two did not end with the same seeds, or with fewer than ``FEWEST_SEEDS``.
    """
    finals = {item.variant.name: item.by_seed for item in final_rewards(experiment)}
    before, after = finals.get(base.name, {}), finals.get(other.name, {})
    if before.keys() != after.keys() or len(before) < FEWEST_SEEDS:
        return None
    pairs = max(1, math.comb(len(finals), 2))
    interval = t_interval([after[seed] - before[seed] for seed in before], 1 - (1 - CONFIDENCE) / pairs)
    assert interval is not None
    return Difference(interval.value, interval.low, interval.high, len(before), pairs)


@dataclass(frozen=True, slots=True)
class TargetTimes:
    """When a variant's seeds were first seen at the reward target.

    Attributes:
        reached, seeds: how many of how many.
        within: training steps to within which alone the times are known, by the coarsest of the runs that reached it;
            then there are no medians. None where enough evaluations came before.
        seconds, steps: Kaplan-Meier medians over the seeds, in seconds of the loop and in training steps. Without an
            interval below ``FEWEST_SEEDS`` seeds. Without a median where most seeds did not reach it: they all stop
            being looked at when their runs end, so that it would be that of the few that ran on for longest.
    """

    target: float
    reached: int
    seeds: int
    within: int | None
    seconds: Median
    steps: Median

    def text(self, seconds: bool = True, with_counts: bool = True) -> str:
        """Write the time as every output does: ``median 7.00, 95% interval from 6.00, 2 of 3 seeds``.

        Args:
            seconds: seconds, else training steps.
            with_counts: say how many seeds reached it.
        """
        form: Format = number if seconds else _whole_or_half
        found = self.seconds if seconds else self.steps
        if self.within is not None:
            text = f"known only to within one evaluation interval: {plural(self.within, 'step')}"
        elif self.seeds == 1:
            return "not reached" if found.at is None else form(found.at)
        else:
            text = "median not reached" if found.at is None else f"median {form(found.at)}"
        if found.low is not None:
            text += f", 95% interval from {form(found.low)}" + ("" if found.high is None else f" to {form(found.high)}")
        counted = with_counts and self.seeds > 1
        return text + (f", {self.reached} of {plural(self.seeds, 'seed')}" if counted else "")


def target_times(variant: Variant) -> TargetTimes | None:
    """Return when the reward target was reached; None where the runs do not share one.

    A run that did not reach it counts as not having reached it by its last evaluation, and one that diverged as not
    having reached it by the last evaluation of any seed: nothing leads back.
    """
    targets = {run.reward_target for run in variant.runs}
    target = targets.pop()
    if targets or target is None:
        return None
    seconds = _times(variant, lambda run: run.seconds_to_target, lambda last: last.elapsed_s)
    steps = _times(variant, lambda run: run.learning.target_step if run.learning else None, lambda last: last.step)
    within = max((run.learning.target_within or 0 for run in variant.runs if run.learning), default=0) or None
    medians = [Median(None, None, None) if within else _median(times) for times in (seconds, steps)]
    return TargetTimes(target, sum(time.seen for time in seconds), len(seconds), within, *medians)


def target_log_rank(base: Variant, other: Variant) -> LogRank | None:
    """Test whether two variants reach the target equally early, in seconds; None below ``FEWEST_SEEDS`` seeds each."""
    if min(len(base.runs), len(other.runs)) < FEWEST_SEEDS:
        return None
    first, second = (
        _times(variant, lambda run: run.seconds_to_target, lambda last: last.elapsed_s) for variant in (base, other)
    )
    return log_rank(first, second)


def _times(
    variant: Variant, reached: Callable[[RunFigures], float | None], looked: Callable[[Evaluated], float]
) -> list[Time]:
    last = {id(run): looked(run.last) if run.last else 0.0 for run in variant.runs}
    times = []
    for run in variant.runs:
        at = reached(run)
        until = max(last.values()) if run.divergence is not None else last[id(run)]
        times.append(Time(until, seen=False) if at is None else Time(at, seen=True))
    return times


def _median(times: list[Time]) -> Median:
    found = median_time(times, CONFIDENCE)
    if 2 * sum(time.seen for time in times) < len(times):
        found = Median(None, found.low, None)
    return found if len(times) >= FEWEST_SEEDS else Median(found.at, None, None)


def _whole_or_half(steps: float) -> str:
    return f"{steps:g}"
