"""What weight syncs took, lag and replay did: what happens between Learner and Generators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.compare.endpoint import WEIGHT_SYNC_SECONDS
from harness.compare.environment import on_gpu
from harness.compare.experiment import Experiment, Member
from harness.compare.judging import Judgement
from harness.compare.numbers import count, listed, number, over_runs, percent, plural
from harness.compare.syncs import (
    SyncPoint,
    Syncs,
    arm_syncs,
    pooled,
    sync_points,
    syncs_of,
)

OBJECT_STORES = {
    "object_store": "Ray's object store given torch tensors, its default",
    "object_store_numpy": "Ray's object store given numpy arrays",
}
SAMPLING_RULES = {
    "newest": "the newest first",
    "uniform": "all alike",
    "reward_weighted": "likelier with a higher mean reward",
    "signal_weighted": "likelier with a wider spread of rewards",
}
LEFT = (
    ("evicted_full", "made room for newer ones"),
    ("evicted_age", "became too old"),
    ("evicted_uses", "were used up"),
)
_MS, _MB = 1e3, 1e-6


def lag_bound(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say how often and how long the lag bound held sampling back, or that it never did."""
    for arm, members in experiment.arms.items():
        batches, seconds = experiment.range(arm, "held_back_batches"), experiment.range(arm, "held_back_s")
        bound, loop = experiment.mean(arm, "bound_batches"), experiment.mean(arm, "loop_s")
        if batches is None or seconds is None or bound is None or not loop:
            continue
        limit = f"the lag bound of {members[0].figures['max_lag']}"
        if batches.high == 0:
            yield f"{arm}: {limit} never held sampling back."
        else:
            yield (
                f"{arm}: {limit} held sampling back before {over_runs(batches, count)} of {count(bound)} batches, for "
                f"{over_runs(seconds, number)} s ({percent(seconds.value / loop)} of the loop)."
            )


def dropped(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say which share of the rollouts was dropped as too old, and whether those were the long ones."""
    for arm, members in experiment.arms.items():
        share = experiment.range(arm, "dropped_share")
        if members[0].settings.get("lag_control") != "drop" or share is None:
            continue
        if share.high == 0:
            yield f"{arm}: no rollout became too old and was dropped."
            continue
        text = f"{arm}: {over_runs(share, percent)} of the generated rollouts were dropped as too old"
        lengths = [experiment.range(arm, f"{which}_length") for which in ("dropped", "trained")]
        known = [over_runs(length, number) for length in lengths if length is not None]
        yield text + (f" (mean length {known[0]} tokens, of those trained on {known[1]})." if len(known) == 2 else ".")


def replay(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what the replay buffer held and drew, how old and how often used, and how groups left."""
    for arm, members in experiment.arms.items():
        size, drawn, age = (experiment.range(arm, name) for name in ("mean/replay/size", "replay_drawn", AGE))
        if size is None or drawn is None or age is None:
            continue
        sampling = members[0].run.setting("replay.sampling")
        rule = f", {SAMPLING_RULES[sampling]} ({sampling})" if sampling in SAMPLING_RULES else ""
        text = f"{arm}: the replay buffer held {over_runs(size, number)} of at most "
        text += f"{members[0].figures['replay_capacity']} groups, and a step drew {over_runs(drawn, number)}{rule}"
        text += f"; {over_runs(age, number)} versions old on average{_at_most(experiment, arm, 'age_max')}"
        if uses := experiment.range(arm, "replay_uses"):
            text += f", each used {over_runs(uses, number)} times{_at_most(experiment, arm, 'uses_max')}"
        left = {words: sum(experiment.values(arm, f"mean/replay/{name}")) for name, words in LEFT}
        if total := round(sum(left.values())):
            parts = listed([f"{count(groups)} {words}" for words, groups in left.items() if groups])
            unused = count(sum(experiment.values(arm, "mean/replay/evicted_unused")))
            where = f" in {len(members)} runs" if len(members) > 1 else ""
            text += f". Of {plural(total, 'group')} that left{where}, {parts}; {unused} had never been drawn"
        yield f"{text}."


AGE = "mean/replay/age_mean"


def _at_most(experiment: Experiment, arm: str, name: str) -> str:
    highest = experiment.range(arm, f"mean/replay/{name}")
    return "" if highest is None else f" ({count(highest.high)} at most)"


# ---- weight syncs


def syncs(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Set each arm's sync against those over an object store, where both moved the same bytes.

    Not where that is the verdict.
    """
    told = [{item.base, item.other} for item in judged if item.primary.name == WEIGHT_SYNC_SECONDS.name]
    moved = {arm: own for arm, members in experiment.arms.items() if (own := arm_syncs(members))}
    for base, theirs in moved.items():
        for other, mine in moved.items():
            if base != other and {base, other} not in told and _worth_comparing(theirs[0], mine[0]):
                before, after = (_MS * pooled(own).mean() for own in (theirs, mine))
                yield (
                    f"A weight sync of {number(mine[0].num_bytes * _MB)} MB takes {_named(other, mine[0])} "
                    f"{after / before:.2f} times as long as {_named(base, theirs[0])}, "
                    f"{OBJECT_STORES[theirs[0].transport]}: {number(after)} against {number(before)} ms on average."
                )


def _worth_comparing(theirs: Syncs, mine: Syncs) -> bool:
    same_weights = (theirs.num_bytes, theirs.num_tensors) == (mine.num_bytes, mine.num_tensors)
    stores = list(OBJECT_STORES)
    if not same_weights or theirs.transport not in stores or not (len(theirs.whole_s) and len(mine.whole_s)):
        return False
    return mine.transport not in stores or stores.index(theirs.transport) < stores.index(mine.transport)


def _named(arm: str, sync: Syncs) -> str:
    return arm if arm == sync.transport else f"{arm} ({sync.transport})"


def polling(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say what NIXL's progress thread costs beside the syncs themselves."""
    every = {arm: [syncs_of(member.table) for member in members] for arm, members in experiment.arms.items()}
    pauses = {
        arm: each.polling_pause_us
        for arm, own in every.items()
        for each in own
        if each is not None and each.polling_pause_us is not None
    }
    busy = [arm for arm, pause in pauses.items() if pause == 0]
    if busy:
        yield (
            f"{', '.join(busy)}: NIXL's progress threads poll without a pause, which keeps about a core busy for each "
            "process that sends or receives, syncing or not (transport.progress_thread_delay_us is 0)."
        )
    elif pauses:
        longest = max(pauses.values())
        yield f"NIXL's progress threads pause {longest} us between polls; its own default of 0 keeps cores busy."


def shared_gpu(experiment: Experiment, judged: Sequence[Judgement]) -> Iterator[str]:
    """Say whose parts worked side by side on one GPU, and what that cost where it was measured."""
    names = [arm for arm, members in experiment.arms.items() if any(map(_shares_gpu, members))]
    if names:
        yield (
            f"{', '.join(names)}: Generator and Learner share one GPU in one process, each on a CUDA stream of its "
            "own, so that each slows the other. On one H100, with weights of 1.5B parameters, a decode step took 8 ms "
            "alone and 12 to 18 ms beside training."
        )


def _shares_gpu(member: Member) -> bool:
    """Whether the parts of a run had threads of their own in one process, and computed on its GPU."""
    in_process = member.run.setting("transport.type") == "in_process"
    return in_process and member.run.setting("placement.colocated") is False and on_gpu(member)


# ---- transport sweeps


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
    sizes = [point.num_bytes for point in alike]
    largest = [point for point in alike if point.num_bytes == max(sizes)]
    best, *slower = sorted(largest, key=lambda point: point.median_s)
    shares = ", ".join(f"{point.transport} {100 * point.share_of_copy:.0f}%" for point in slower)
    counts = f"{plural(receivers, 'receiver')} and {plural(tensors, 'tensor')}"
    sentences = [
        f"At {best.megabytes:g} MB with {counts} {best.transport} is the fastest: {number(1e3 * best.median_s)} ms "
        f"from publish to the receiver's own tensors (median), {100 * best.share_of_copy:.0f}% of the bandwidth of a "
        f"plain copy in memory{f' ({shares})' if shares else ''}{_elsewhere(points, best)}."
    ]
    by_name = {point.transport: point for point in largest}
    for store, words in OBJECT_STORES.items():
        others = [point for name, point in by_name.items() if name != store]
        if store in by_name and others:
            ratios = ", ".join(f"{point.transport} {point.median_s / by_name[store].median_s:.2f}" for point in others)
            sentences.append(f"Times at {best.megabytes:g} MB over those of {words} ({store}): {ratios}.")
    winners: dict[str, list[str]] = {}
    for size in sorted({*sizes}):
        fastest = min((point for point in alike if point.num_bytes == size), key=lambda point: point.median_s)
        winners.setdefault(fastest.transport, []).append(f"{fastest.megabytes:g}")
    if len(winners) > 1:
        told = "; ".join(f"{name} at {listed(own)} MB" for name, own in winners.items())
        sentences.append(f"The fastest with {counts} by size: {told}.")
    return sentences


def _elsewhere(points: Sequence[SyncPoint], best: SyncPoint) -> str:
    """Name the fastest transports of weights of that size with other receivers or tensors, where they are others."""
    alike = [point for point in points if point.num_bytes == best.num_bytes]
    kinds = dict.fromkeys((point.receivers, point.tensors) for point in alike)
    winners = {
        kind: min((p for p in alike if (p.receivers, p.tensors) == kind), key=lambda p: p.median_s).transport
        for kind in kinds
    }
    others = [
        f"{name} with {plural(receivers, 'receiver')} and {plural(tensors, 'tensor')}"
        for (receivers, tensors), name in winners.items()
        if name != best.transport
    ]
    return f"; but {listed(others)}" if others else ""
