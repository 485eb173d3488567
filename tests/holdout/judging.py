"""Whether a tier holds its bounds, in words: a table says what fell short of what."""

from __future__ import annotations

from harness.compare.stats import wilson_interval
from tests.holdout.document import Counted, Document, TierScore


def tier_findings(document: Document, tier: TierScore) -> list[str]:
    """Return what a tier keeps and what it does not, a sentence each."""
    return [
        _step_sentence(tier),
        *_stage_sentences(document, tier),
        _coverage_sentence(f"{tier.name}: step time", tier.coverage, document.coverage_bounds),
        _coverage_sentence(f"{tier.name}: stages", tier.stage_coverage, document.coverage_bounds),
        *(
            f"{tier.name}: the baseline `{name}` is nearer to the truth than the simulator "
            f"({percent(tier.baselines[name])} against {percent(tier.error)})."
            for name in tier.winners
        ),
    ]


def ranking_finding(document: Document) -> str:
    """Return whether the order of the arms is right."""
    found = document.ranking
    verdict = "holds" if found.tau >= found.bound else "FALLS SHORT OF"
    noise = "" if found.repeats is None else f" One repeat against the others: {found.repeats:.2f}."
    return f"Ranking by step time {verdict} its bound: Kendall's tau {found.tau:.2f}, at least {found.bound}.{noise}"


def falls_short(document: Document) -> list[str]:
    """Return the tiers, stages and figures that miss their bounds, by name; empty where all hold."""
    missed = [f"{tier.name}: step time" for tier in document.tiers if tier.error > tier.bound]
    missed += [
        f"{tier.name}: {stage}"
        for tier in document.tiers
        for stage, error in tier.stages.items()
        if error > document.stage_bound
    ]
    for tier in document.tiers:
        for what, counted in (("step time", tier.coverage), ("stages", tier.stage_coverage)):
            if outside(counted, document.coverage_bounds):
                missed.append(f"{tier.name}: coverage of {what}")
    if document.ranking.tau < document.ranking.bound:
        missed.append("ranking")
    return missed


def outside(counted: Counted, bounds: tuple[float, float]) -> bool:
    """Whether the share of measured values inside their intervals is out of its bounds."""
    return not bounds[0] <= counted.share <= bounds[1]


def _step_sentence(tier: TierScore) -> str:
    error, bound = percent(tier.error), percent(tier.bound, 0)
    verdict = "holds" if tier.error <= tier.bound else "FALLS SHORT OF"
    floor = "" if tier.floor is None else f"; a perfect predictor would show {percent(tier.floor)}"
    return f"{tier.name} {verdict} its bound: step time is off by {error} in the median, at most {bound}{floor}."


def _stage_sentences(document: Document, tier: TierScore) -> list[str]:
    """Name the stages over their bound; a stage that is too fast may hide one that is too slow."""
    over = {stage: error for stage, error in tier.stages.items() if error > document.stage_bound}
    if not over:
        worst = tier.worst_stage
        return [f"{tier.name}: every stage holds {percent(document.stage_bound, 0)}; {worst} is the worst."]
    listed = ", ".join(f"{stage} {percent(error)}" for stage, error in over.items())
    return [f"{tier.name} FALLS SHORT in stages, at most {percent(document.stage_bound, 0)} each: {listed}."]


def _coverage_sentence(what: str, counted: Counted, bounds: tuple[float, float]) -> str:
    shown = f"{counted.inside} of {counted.of} ({percent(counted.share, 0)})"
    wanted = f"{percent(bounds[0], 0)} to {percent(bounds[1], 0)}"
    if not outside(counted, bounds):
        return f"{what}: 90% intervals hold {shown} of the measured values, within {wanted}."
    low, high = wilson_interval(counted.inside, counted.of)
    few = ", though so few values cannot tell" if low <= bounds[1] and high >= bounds[0] else ""
    return f"{what}: 90% intervals FALL SHORT: they hold {shown} of the measured values, wanted are {wanted}{few}."


def percent(value: float | None, digits: int = 1) -> str:
    """Show a share as per cent; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.{digits}f}%"
