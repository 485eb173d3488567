"""The orders for training, what became of each until it is scored, and whether a part answered what it was asked.

An answer to another order, one that came before, or one that leaves something out without counting it, would train on
rollouts twice or lose them in silence. So the run stops. Pure bookkeeping: nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from harness.core.errors import RunStopped
from harness.core.types import Purpose, RolloutGroup, ScoredBatch, WeightHandle, WorkItem
from harness.loop.plan import LoopPlan

Unscored = tuple[WorkItem, tuple[RolloutGroup, ...]]
"""An order and what was sampled for it."""


class Orders:
    """Hands out the orders of the stream; those that a killed run had issued and not sampled come first.

    Any number of Generators iterate over the same orders.

    Args:
        plan: makes the stream.
        shards: parts of a batch.
        issued, pending, unscored: where a killed run was; see ``LoopState``.

    Attributes:
        issued: orders of the stream handed out so far, each counted once.
    """

    def __init__(
        self,
        plan: LoopPlan,
        shards: int,
        issued: int = 0,
        pending: Sequence[WorkItem] = (),
        unscored: Sequence[Unscored] = (),
    ) -> None:
        self.issued = issued
        self._stream = plan.train_orders(shards, issued)
        self._once_more = deque(pending)
        self._sampling: dict[tuple[int, int, int], WorkItem] = {}
        self._unscored = {_key(item): (item, groups) for item, groups in unscored}

    def __iter__(self) -> Iterator[WorkItem]:
        return self

    def __next__(self) -> WorkItem:
        if self._once_more:
            item = self._once_more.popleft()
        else:
            item = next(self._stream)
            self.issued += 1
        self.take(item)
        return item

    def take(self, item: WorkItem) -> None:
        """A Generator has this order now, of the stream or of dynamic sampling."""
        self._sampling[_key(item)] = item

    def sampled(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> None:
        """A Generator has sampled it."""
        del self._sampling[_key(item)]
        self._unscored[_key(item)] = item, groups

    def scored(self, item: WorkItem) -> None:
        """A Scorer has scored it: the loop has it elsewhere."""
        del self._unscored[_key(item)]

    @property
    def pending(self) -> tuple[WorkItem, ...]:
        """Orders issued and not sampled, those first that nobody has taken up again."""
        return (*self._once_more, *self._sampling.values())

    @property
    def unscored(self) -> tuple[Unscored, ...]:
        """Orders sampled and not scored, in the order in which they were sampled; a Scorer may have begun some."""
        return tuple(self._unscored.values())


def _key(item: WorkItem) -> tuple[int, int, int]:
    return item.step, item.shard, item.attempt


def check_generated(lane: str, item: WorkItem, groups: tuple[RolloutGroup, ...], loaded: int) -> None:
    """Check that there is one whole group for each prompt of the order, sampled with the weights that were loaded.

    ``loaded`` is the version that the Generator held when it started; meanwhile it may load newer ones.

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
        newest = loaded if item.purpose is Purpose.EVALUATE else group.max_version
        if not loaded <= group.min_version <= group.max_version <= newest:
            raise RunStopped(
                f"wrong answer: {lane} was to {_named(item)} with version {loaded}, and sampled with the versions "
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
    """Check that these weights are of the version that was to be published; raises RunStopped."""
    if weight_handle.version != version:
        raise RunStopped(
            f"wrong answer: {lane} was asked to publish version {version} and published {weight_handle.version}"
        )


def _named(item: WorkItem) -> str:
    if item.purpose is Purpose.EVALUATE:
        return f"evaluate version {item.step}"
    again = f" again, attempt {item.attempt}" if item.attempt else ""
    return f"generate shard {item.shard} of batch {item.step}{again}"
