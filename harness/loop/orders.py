"""The orders for training, and what became of each until it is scored. Pure bookkeeping: nothing here waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from harness.core.types import RolloutGroup, WorkItem
from harness.loop.plan import LoopPlan

Unscored = tuple[WorkItem, tuple[RolloutGroup, ...]]
"""An order and what was sampled for it."""


class Orders:
    """Hands out the orders of the stream; those that a killed run had issued and not sampled come first.

    Args:
        plan: makes the stream.
        shards: parts of a batch.
        issued: orders of the stream that were handed out before.
        pending: of these, the ones to hand out once more.
        unscored: of these, the ones that are sampled and not scored, in the order in which they were sampled.

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
        """Any number of Generators iterate over the same orders."""
        return self

    def __next__(self) -> WorkItem:
        """Hand out an order of the stream."""
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
        """It was sampled."""
        del self._sampling[_key(item)]
        self._unscored[_key(item)] = item, groups

    def scored(self, item: WorkItem) -> None:
        """It was scored: the loop has it elsewhere."""
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
