"""Which span made the next one possible: from rollouts to an update, and from an update to what samples with it.

Two kinds of chains, each becoming one arrow through its spans:

    rollouts    generate(step) -> score(step) -> update(step)
    weights     update(step) -> weight_publish(version) -> weight_transfer, weight_load(version) of one Generator
                -> the first span that samples with it

Spans carry step and version, no number of their own, so that a link is drawn only where these and the order of time
leave no doubt. Each span of a chain begins after the one before it; what does not is left out of the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice

from harness.core.trace import Span, Stage
from harness.report.trace.chrome import Arrow

Chain = list[int]
"""Places of spans in the list of all spans, in the order of their begin."""

_ARRIVAL = (Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD)
MOST_ARRIVALS = 64
"""Of a version on one lane, in a chain; a run has one or two, and rows that were repeated any number."""
_SAMPLING = (Stage.GENERATE, Stage.EVALUATE)


def arrows(spans: Sequence[Span], batches_stay_whole: bool) -> dict[int, list[Arrow]]:
    """Return the arrows at each span that has any, by the span's place in ``spans``; they are numbered from 1.

    Args:
        batches_stay_whole: whether the batch ordered for a step is what the step's update trains on. Where stale
            rollouts are dropped it is not, and no arrow leads from score to update.
    """
    found: dict[int, list[Arrow]] = {}
    chains = [("rollouts", chain) for chain in rollout_chains(spans, batches_stay_whole)]
    chains += [("weights", chain) for chain in weight_chains(spans)]
    for number, (name, chain) in enumerate(chains, start=1):
        for place in chain:
            phase = "s" if place == chain[0] else "f" if place == chain[-1] else "t"
            found.setdefault(place, []).append(Arrow(name, number, phase))
    return found


def rollout_chains(spans: Sequence[Span], batches_stay_whole: bool) -> list[Chain]:
    """Return a chain for each generated batch or shard of one.

    Shards of one step are scored in the order in which their generation ends. Where a part died there may be more
    attempts than scores: the last ones count.
    """
    generated, scored = _by_step(spans, Stage.GENERATE), _by_step(spans, Stage.SCORE)
    updates = _by_step(spans, Stage.UPDATE) if batches_stay_whole else {}
    chains = []
    for step, scores in sorted(scored.items()):
        attempts = sorted(generated.get(step, ()), key=lambda place: spans[place].end_ns)
        attempts, scores = attempts[-len(scores) :], scores[-len(attempts) :]
        for attempt, score in zip(attempts, scores, strict=False):
            chains.append([attempt, score, *updates.get(step, ())[:1]])
    return _forward(spans, chains)


def weight_chains(spans: Sequence[Span]) -> list[Chain]:
    """Return a chain for each policy version and each Generator that took it; to its publish where nobody did."""
    updates = {spans[places[0]].step + 1: places[0] for places in _by_step(spans, Stage.UPDATE).values()}
    takers: dict[int, dict[str, Chain]] = {}
    for (lane, version), places in _arrivals(spans).items():
        takers.setdefault(version, {})[lane] = places
    first_uses = _first_uses(spans)
    chains: list[Chain] = []
    for place in _in_order(spans, (Stage.WEIGHT_PUBLISH,)):
        version = spans[place].version
        start = [updates[version], place] if version in updates else [place]
        taken = sorted(takers.get(version, {}).items())
        ends = [[*places, *first_uses.get((lane, version), ())] for lane, places in taken]
        chains += [start + end for end in ends] or [start]
    return _forward(spans, chains)


def _arrivals(spans: Sequence[Span]) -> dict[tuple[str, int], Chain]:
    """Return the spans in which weights arrive, by lane and version."""
    places = _in_order(spans, _ARRIVAL)

    def owner(place: int) -> tuple[str, int]:
        return spans[place].lane, spans[place].version

    return {key: list(islice(group, MOST_ARRIVALS)) for key, group in groupby(sorted(places, key=owner), owner)}


def _first_uses(spans: Sequence[Span]) -> dict[tuple[str, int], Chain]:
    """Return the first span that samples with a version, by lane and version."""
    first: dict[tuple[str, int], Chain] = {}
    for place in _in_order(spans, _SAMPLING):
        first.setdefault((spans[place].lane, spans[place].version), [place])
    return first


def _by_step(spans: Sequence[Span], stage: Stage) -> dict[int, Chain]:
    found: dict[int, Chain] = {}
    for place in _in_order(spans, (stage,)):
        found.setdefault(spans[place].step, []).append(place)
    return found


def _in_order(spans: Sequence[Span], stages: Sequence[Stage]) -> Chain:
    """Return the places of the spans of these stages, by begin."""
    return sorted((place for place, span in enumerate(spans) if span.stage in stages), key=lambda p: spans[p].start_ns)


def _forward(spans: Sequence[Span], chains: Sequence[Chain]) -> list[Chain]:
    """Leave out what does not begin after the span before it, and chains of a single span."""
    kept = []
    for chain in chains:
        forward = chain[:1]
        for place in chain[1:]:
            if spans[place].start_ns > spans[forward[-1]].start_ns:
                forward.append(place)
        if len(forward) > 1:
            kept.append(forward)
    return kept
