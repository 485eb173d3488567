"""What validation rewards show over seeds: final rewards, their differences, and the time to the reward target.

A run that diverged counts with what is left of its reward. A run that was cut before its end has no final reward, and
says nothing of what it would have been; so a difference is given only between variants that ended with the same seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from harness.compare.experiments import CONFIDENCE, FEWEST_SEEDS, Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.numbers import Format, number, plural
from harness.compare.stats import t_interval


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
            None where enough evaluations came before.
        steps, seconds: the first and the last training step, and seconds of the loop, at which a seed was seen there;
            None where none was.
    """

    target: float
    reached: int
    seeds: int
    within: int | None
    steps: tuple[float, float] | None
    seconds: tuple[float, float] | None

    def text(self) -> str:
        """Return the time as every output has it: ``2 of 3 seeds, at step 4 to 8 (6.00 to 8.00 s)``."""
        counted = f"{self.reached} of {self.seeds} seeds" if self.seeds > 1 else ""
        if self.steps is None or self.seconds is None:
            return counted or "never"
        at = f"at step {_range(self.steps, '{:g}'.format)} ({_range(self.seconds, number)} s)"
        note = f", to within one evaluation interval ({plural(self.within, 'step')})" if self.within else ""
        return f"{counted}, {at}{note}" if counted else at + note


def target_times(variant: Variant) -> TargetTimes | None:
    """Return when the reward target was reached; None where the runs do not share one."""
    targets = {run.reward_target for run in variant.runs}
    target = targets.pop()
    if targets or target is None:
        return None
    seconds = [run.seconds_to_target for run in variant.runs if run.seconds_to_target is not None]
    steps = [run.learning.target_step for run in variant.runs if run.learning and run.learning.target_step is not None]
    within = max((run.learning.target_within or 0 for run in variant.runs if run.learning), default=0) or None
    ends = [(min(values), max(values)) if values else None for values in (steps, seconds)]
    return TargetTimes(target, len(seconds), len(variant.runs), within, *ends)


def _range(ends: tuple[float, float], form: Format) -> str:
    first, last = map(form, ends)
    return first if first == last else f"{first} to {last}"
