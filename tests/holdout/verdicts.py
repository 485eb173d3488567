"""What misses its bound, and what became worse than in the examination that is kept."""

from __future__ import annotations

from harness.compare.stats.intervals import wilson_interval
from tests.holdout.summary import Counted, Document, TierScore

RELATIVE, ABSOLUTE = 0.05, 0.01
"""A figure may become worse by 5% of itself, or by one percentage point, whichever is more."""


def percent(value: float | None, digits: int = 1) -> str:
    """Show a share as per cent; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def falls_short(document: Document) -> list[str]:
    """Return the tiers, stages and figures that miss their bounds, by name; empty where all hold."""
    tiers, bounds = document.tiers, document.coverage_bounds
    missed = [f"{tier.name}: step time" for tier in tiers if tier.error > tier.bound]
    for tier in tiers:
        missed += [f"{tier.name}: {stage}" for stage, error in tier.stages.items() if error > document.stage_bound]
    for tier in tiers:
        for what, counted in (("step time", tier.coverage), ("stages", tier.stage_coverage)):
            if outside_by(counted, bounds):
                low, high = wilson_interval(counted.inside, counted.of)
                few = " (so few values cannot tell)" if low <= bounds[1] and high >= bounds[0] else ""
                missed.append(f"{tier.name}: coverage of {what}{few}")
    if document.ranking.tau < document.ranking.bound:
        missed.append("ranking")
    return missed


def outside_by(counted: Counted, bounds: tuple[float, float]) -> float:
    """Return by how much the share of measured values inside their intervals is out of its bounds; 0 within them."""
    return max(bounds[0] - counted.share, counted.share - bounds[1], 0.0)


def ranking_verdict(document: Document) -> str:
    """Return whether the order of the arms is right."""
    found = document.ranking
    verdict = "holds" if found.tau >= found.bound else "FALLS SHORT OF"
    noise = "" if found.repeats is None else f" One repeat against the others: {found.repeats:.2f}."
    return f"Ranking by step time {verdict} its bound: Kendall's tau {found.tau:.2f}, at least {found.bound}.{noise}"


def became_worse(now: Document, kept: Document) -> list[str]:
    """Return what is worse than it was, a sentence each: errors, coverage and ranking of every tier that is kept."""
    found = []
    tiers = {tier.name: tier for tier in now.tiers}
    for before in kept.tiers:
        if before.name in tiers:
            found += _tier_worse(tiers[before.name], before, kept.coverage_bounds)
        else:
            found.append(f"{before.name}: the tier is gone")
    if now.ranking.tau < kept.ranking.tau - _allowed(kept.ranking.tau):
        found.append(f"Kendall's tau is {now.ranking.tau:.3f}, and was {kept.ranking.tau:.3f}")
    return found


def _allowed(before: float) -> float:
    return max(RELATIVE * abs(before), ABSOLUTE)


def _tier_worse(now: TierScore, before: TierScore, bounds: tuple[float, float]) -> list[str]:
    errors = [("step time", now.error, before.error)]
    errors += [(stage, now.stages.get(stage, 0.0), error) for stage, error in before.stages.items()]
    found = [
        f"{now.name}: {what} is off by {percent(error)}, and was by {percent(was)}"
        for what, error, was in errors
        if error > was + _allowed(was)
    ]
    covered = (("step time", now.coverage, before.coverage), ("stages", now.stage_coverage, before.stage_coverage))
    for what, counted, was in covered:
        if outside_by(counted, bounds) > outside_by(was, bounds) + _allowed(was.share):
            shares = f"{percent(counted.share)}, and were {percent(was.share)}"
            found.append(f"{now.name}: measured values inside the intervals of {what} are {shares}")
    return found
