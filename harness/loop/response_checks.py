"""Whether a part answered what it was asked.

An answer to another order, one that came before, or one that leaves something out without counting it, would train on
rollouts twice or lose them in silence. So the run stops.
"""

from __future__ import annotations

from harness.core.errors import RunStopped
from harness.core.types import Purpose, RolloutGroup, ScoredBatch, WeightHandle, WorkItem


def check_generated(lane: str, item: WorkItem, groups: tuple[RolloutGroup, ...], held: int) -> None:
    """Check that there is one whole group for each prompt of the order, sampled with the weights that were loaded.

    Args:
        lane: the Generator's.
        item: the order.
        groups: the answer.
        held: version that the Generator was to hold when it started. While it generates a batch it may load newer ones.

    Raises:
        RunStopped: it is not so.
    """
    answered = [(group.step, group.prompt_id, len(group.lengths)) for group in groups]
    ordered = [(item.step, prompt_id, item.group_size) for prompt_id in item.prompt_ids]
    if answered != ordered or any(group.attempt != item.attempt for group in groups):
        raise RunStopped(
            f"wrong answer: {lane} was to {_named(item)} and answered groups of (step, prompt, rollouts) {answered}"
        )
    for group in groups:
        newest = held if item.purpose is Purpose.EVALUATE else group.max_version
        if not held <= group.min_version <= group.max_version <= newest:
            raise RunStopped(
                f"wrong answer: {lane} was to {_named(item)} with version {held}, and sampled with the versions "
                f"{group.min_version} to {group.max_version}: the weights that it loaded are not those that it holds"
            )


def check_scored(lane: str, item: WorkItem, groups: tuple[RolloutGroup, ...], scored: ScoredBatch) -> None:
    """Check that this is the order's, and that each of its groups has rewards or is counted as failed.

    Raises:
        RunStopped: it is not so.
    """
    if scored.item != item:
        raise RunStopped(
            f"wrong answer: {lane} was to score what came of the order to {_named(item)} and answered for the one to "
            f"{_named(scored.item)}"
        )
    if len(scored.groups) + scored.failed_groups != len(groups):
        raise RunStopped(
            f"wrong answer: {lane} was to score the {len(groups)} groups of the order to {_named(item)} and answered "
            f"{len(scored.groups)} with rewards and {scored.failed_groups} failed"
        )


def check_published(lane: str, version: int, weight_handle: WeightHandle) -> None:
    """Check that the weight_handle is of the version that was to be published.

    Raises:
        RunStopped: it is of another one.
    """
    if weight_handle.version != version:
        raise RunStopped(
            f"wrong answer: {lane} was asked to publish version {version} and published {weight_handle.version}"
        )


def _named(item: WorkItem) -> str:
    if item.purpose is Purpose.EVALUATE:
        return f"evaluate version {item.step}"
    again = f" again, attempt {item.attempt}" if item.attempt else ""
    return f"generate shard {item.shard} of batch {item.step}{again}"
