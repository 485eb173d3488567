"""Differences between two variants, paired by seed, with a confidence interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.compare.experiments import Variant
from harness.compare.figures import RunFigures
from harness.compare.stats import t_interval

FEWEST_SEEDS = 3
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference with the ends of its 95% interval, over ``seeds`` pairs of runs."""

    mean: float
    low: float
    high: float
    seeds: int


def paired_difference(base: Variant, other: Variant, read: Callable[[RunFigures], float | None]) -> Difference | None:
    """Return ``other`` minus ``base`` over the seeds that both finished; None for fewer than ``FEWEST_SEEDS``.

    The interval is Student's for paired samples; see ``harness.compare.stats.t_interval``.
    """
    before, after = (
        {run.manifest.seed: read(run) for run in variant.runs if run.is_completed} for variant in (base, other)
    )
    pairs = [(before[seed], after[seed]) for seed in before if seed in after]
    differences = [mine - theirs for theirs, mine in pairs if theirs is not None and mine is not None]
    if len(differences) < FEWEST_SEEDS:
        return None
    found = t_interval(differences, CONFIDENCE)
    assert found is not None
    return Difference(found.point, found.low, found.high, len(differences))
