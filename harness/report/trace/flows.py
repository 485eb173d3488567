"""Arrows: which span made the next one possible.

    rollouts    generate(step) -> score(step) -> update(step), for each batch or shard of one
    weights     update(step) -> weight_publish(version) -> weight_load(version) of a Generator -> the first span that
                samples with it; to the publish alone where nobody took the version

With one version of lag or more, what an update waited for lies a step or more to its left, on another track: the arrows
lead there with a click, where a reader would have to compare the steps and versions of slices.

Spans carry step and version, no number of their own, so that a link is drawn only where these and the order of time
leave no doubt. Each span of an arrow begins after the one before it; what does not is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from harness.core.trace import Span, Stage
from harness.report.trace.chrome import Arrow

_BY_STEP = (Stage.GENERATE, Stage.SCORE, Stage.UPDATE)
_SAMPLING = (Stage.GENERATE, Stage.EVALUATE)


def arrows(spans: Sequence[Span], batches_stay_whole: bool) -> dict[int, list[Arrow]]:
    """Return the arrows at each span that has any, by the span's place in ``spans``; they are numbered from 1.

    Args:
        batches_stay_whole: whether the batch ordered for a step is what the step's update trains on. Where stale
            rollouts are dropped it is not, and no arrow leads from score to update.
    """
    at: dict[int, list[Arrow]] = defaultdict(list)
    for number, (name, chain) in enumerate(chains(spans, batches_stay_whole), start=1):
        for place in chain:
            phase = "s" if place == chain[0] else "f" if place == chain[-1] else "t"
            at[place].append((name, number, phase))
    return at


def chains(spans: Sequence[Span], batches_stay_whole: bool) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each arrow, and the places in ``spans`` that it goes through.

    Shards of one step are scored in the order in which their generation ends. Where a part died there may be more
    attempts than scores: the last ones count.
    """
    places: dict[tuple[Stage, int], list[int]] = defaultdict(list)
    loads: dict[int, dict[str, int]] = defaultdict(dict)
    first_uses: dict[tuple[str, int], int] = {}
    for place in sorted(range(len(spans)), key=lambda place: spans[place].start_ns):
        lane, stage, _, _, step, version = spans[place]
        if stage in _BY_STEP:
            places[stage, step].append(place)
        elif stage is Stage.WEIGHT_PUBLISH:
            places[stage, version].append(place)
        elif stage is Stage.WEIGHT_LOAD:
            loads[version].setdefault(lane, place)
        if stage in _SAMPLING:
            first_uses.setdefault((lane, version), place)

    linked: list[tuple[str, list[int]]] = []
    for (stage, number), found in places.items():
        if stage is Stage.SCORE:
            attempts = sorted(places.get((Stage.GENERATE, number), ()), key=lambda place: spans[place].end_ns)
            update = places.get((Stage.UPDATE, number), [])[:1] if batches_stay_whole else []
            pairs = zip(attempts[-len(found) :], found[-len(attempts) :], strict=False)
            linked += [("rollouts", [*pair, *update]) for pair in pairs]
        elif stage is Stage.WEIGHT_PUBLISH:
            start = [*places.get((Stage.UPDATE, number - 1), [])[:1], found[0]]
            taken = [[load, first_uses.get((lane, number), load)] for lane, load in loads.get(number, {}).items()]
            linked += [("weights", [*start, *end]) for end in taken or [[]]]
    for name, chain in linked:
        forward = chain[:1]
        for place in chain[1:]:
            if spans[place].start_ns > spans[forward[-1]].start_ns:
                forward.append(place)
        if len(forward) > 1:
            yield name, forward
