"""What a transport sweep shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.compare.experiment import Experiment
from harness.compare.judging import Judgement
from harness.compare.numbers import listed, number, plural
from harness.compare.syncs import SyncPoint, sync_points

OBJECT_STORES = {
    "object_store": "Ray's object store given torch tensors, its default",
    "object_store_numpy": "Ray's object store given numpy arrays",
}


def sweep_points(experiment: Experiment) -> list[SyncPoint]:
    """Return the timed syncs of an experiment, pooled over its runs; none where it was no transport sweep."""
    return sync_points([row for member in experiment.members for row in member.run.syncs])


def sweep(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what a transport sweep shows beside its answer: the object stores, the fastest by size, and how it ran."""
    if points := sweep_points(experiment):
        yield from sweep_sentences(points)[1:]
        yield "Transports took turns within each repeat, sizes came one after the other: no error bars."


def sweep_sentences(points: Sequence[SyncPoint]) -> list[str]:
    """Say what a sweep shows for the fewest receivers and tensors: the fastest at its largest size first."""
    receivers, tensors = min(point.receivers for point in points), min(point.tensors for point in points)
    alike = [point for point in points if (point.receivers, point.tensors) == (receivers, tensors)]
    largest = [point for point in alike if point.num_bytes == max(each.num_bytes for each in alike)]
    best, *slower = sorted(largest, key=lambda point: point.median_s)
    lowest: dict[tuple[int, int, int], SyncPoint] = {}  # of each case: receivers, tensors, bytes
    for point in sorted(points, key=lambda point: point.median_s):
        lowest.setdefault((point.receivers, point.tensors, point.num_bytes), point)
    shares = ", ".join(f"{point.transport} {100 * point.share_of_copy:.0f}%" for point in slower)
    counts = f"{plural(receivers, 'receiver')} and {plural(tensors, 'tensor')}"
    sentences = [
        f"At {best.megabytes:g} MB with {counts} {best.transport} has the lowest median: {number(1e3 * best.median_s)} "
        f"ms from publish to the receiver's own tensors, {100 * best.share_of_copy:.0f}% of the bandwidth of a plain "
        f"copy in memory{f' ({shares})' if shares else ''}."
    ]
    elsewhere: dict[str, list[str]] = {}
    winners: dict[str, list[str]] = {}
    for _, point in sorted(lowest.items(), key=lambda item: item[0]):
        if point.num_bytes == best.num_bytes and point.transport != best.transport:
            case = f"with {plural(point.receivers, 'receiver')} and {plural(point.tensors, 'tensor')}"
            elsewhere.setdefault(point.transport, []).append(case)
        if point in alike:
            winners.setdefault(point.transport, []).append(f"{point.megabytes:g}")
    if elsewhere:
        told = "; ".join(f"{transport} {listed(where)}" for transport, where in elsewhere.items())
        sentences[0] += f" Elsewhere it is {told}."
    by_name = {point.transport: point for point in largest}
    for store, words in OBJECT_STORES.items():
        others = [point for name, point in by_name.items() if name != store]
        if store in by_name and others:
            ratios = ", ".join(f"{point.transport} {point.median_s / by_name[store].median_s:.2f}" for point in others)
            sentences.append(f"Times at {best.megabytes:g} MB over those of {words} ({store}): {ratios}.")
    if len(winners) > 1:
        told = "; ".join(f"{name} at {listed(own)} MB" for name, own in winners.items())
        sentences.append(f"The lowest median with {counts} by size: {told}.")
    return sentences
