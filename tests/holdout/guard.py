"""Whether an examination became worse than the one that is kept."""

from __future__ import annotations

from tests.holdout.document import Counted, Document, TierScore
from tests.holdout.judging import percent

RELATIVE, ABSOLUTE = 0.05, 0.01
"""A figure may be worse by 5% of itself, or by one percentage point, whichever is more."""


def became_worse(now: Document, kept: Document) -> list[str]:
    """Return what is worse than it was, a sentence each: errors, coverage and ranking of every tier that is kept."""
    found = []
    tiers = {tier.name: tier for tier in now.tiers}
    for before in kept.tiers:
        if before.name not in tiers:
            found.append(f"{before.name}: the tier is gone")
            continue
        found += _tier_worse(tiers[before.name], before, kept.coverage_bounds)
    if now.ranking.tau < kept.ranking.tau - allowed(kept.ranking.tau):
        found.append(f"Kendall's tau is {now.ranking.tau:.3f}, and was {kept.ranking.tau:.3f}")
    return found


def allowed(before: float) -> float:
    """Return by how much a figure may be worse than before."""
    return max(RELATIVE * abs(before), ABSOLUTE)


def _tier_worse(now: TierScore, before: TierScore, bounds: tuple[float, float]) -> list[str]:
    found = []
    if now.error > before.error + allowed(before.error):
        found.append(f"{now.name}: step time is off by {percent(now.error)}, and was by {percent(before.error)}")
    for stage, error in before.stages.items():
        if now.stages.get(stage, 0.0) > error + allowed(error):
            found.append(f"{now.name}: {stage} is off by {percent(now.stages[stage])}, and was by {percent(error)}")
    covered = (("step time", now.coverage, before.coverage), ("stages", now.stage_coverage, before.stage_coverage))
    for what, counted, was in covered:
        if _outside_by(counted, bounds) > _outside_by(was, bounds) + allowed(was.share):
            shares = f"{percent(counted.share)}, and were {percent(was.share)}"
            found.append(f"{now.name}: measured values inside the intervals of {what} are {shares}")
    return found


def _outside_by(counted: Counted, bounds: tuple[float, float]) -> float:
    """By how much the share inside is below the lower or above the upper bound."""
    return max(bounds[0] - counted.share, counted.share - bounds[1], 0.0)
