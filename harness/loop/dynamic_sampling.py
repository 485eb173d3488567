"""Dynamic sampling: a group whose rewards are all equal is sampled again before its shard may enter a batch.

Such a group has no advantage and so no gradient; DAPO (arXiv:2503.14476, section 3.2) leaves it out and samples other
prompts until the batch is full of groups that have one. Here the place of the group in the batch is sampled again, with
another prompt, up to a number of attempts; what the last one gives is kept, so that a batch keeps its size.

A place sampled again is an order like any other: it starts with the newest weights, and its group has the versions of
its own tokens. Under ``wait`` and ``in_flight`` batch ``step`` is consumed at policy version ``step`` however long that
takes, so its other groups grow no older meanwhile. Under ``drop`` they do, and a shard that has become too old is
dropped whole. Pure bookkeeping: nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.core.types import RolloutGroup, ScoredBatch, WorkItem, combine_metrics
from harness.loop.observer import Count, RolloutCounts, count
from harness.loop.plan import LoopPlan


@dataclass(slots=True)
class OpenShard:
    """A shard of a batch that is not complete.

    Attributes:
        item: its first order.
        kept: its groups that stay, by place in the batch.
        discarded: the others; their data is given up at once.
        answers: what else the Scorers said of each of its orders.
    """

    item: WorkItem
    kept: dict[int, RolloutGroup] = field(default_factory=dict)
    discarded: list[RolloutGroup] = field(default_factory=list)
    answers: list[ScoredBatch] = field(default_factory=list)

    def copy(self) -> OpenShard:
        return OpenShard(self.item, dict(self.kept), list(self.discarded), list(self.answers))

    def complete(self) -> ScoredBatch:
        """Return the shard as if it had been scored at once; its metrics are of everything that was sampled for it."""
        return ScoredBatch(
            self.item,
            tuple(self.kept[place] for place in sorted(self.kept)),
            combine_metrics([answer.metrics for answer in self.answers]),
            failed_groups=sum(answer.failed_groups for answer in self.answers),
            failure=next((answer.failure for answer in self.answers if answer.failure is not None), None),
            discarded=tuple(self.discarded),
        )


class DynamicSampler:
    """Holds shards back until each of their groups has spread, or was sampled often enough.

    Args:
        plan: makes the orders.
        counts: what is thrown away is counted here.
        shards, orders: that a killed run held back, and that it was to sample again.

    Attributes:
        orders: to sample again, and taken by no Generator.
    """

    def __init__(
        self,
        plan: LoopPlan,
        counts: RolloutCounts,
        shards: Sequence[OpenShard] = (),
        orders: Sequence[WorkItem] = (),
    ) -> None:
        self._plan, self._counts = plan, counts
        self._open = {(shard.item.step, shard.item.shard): shard.copy() for shard in shards}
        self.orders = list(orders)

    def take_in(self, scored: ScoredBatch) -> ScoredBatch | None:
        """Take in one scored order; return its shard if that is complete, else there is another order for it."""
        if not self._plan.dynamic_sampling.attempts:
            return scored
        item = scored.item
        shard = self._open.setdefault((item.step, item.shard), OpenShard(item))
        shard.answers.append(replace(scored, groups=()))
        shard.kept |= _by_place(scored)
        flat = {place: shard.kept[place] for place in sorted(shard.kept) if not shard.kept[place].has_spread}
        if not flat or item.attempt >= self._plan.dynamic_sampling.attempts:
            return self._open.pop((item.step, item.shard)).complete()
        for place, group in flat.items():
            del shard.kept[place]
            shard.discarded.append(replace(group, data=None))
        self._counts.discarded += count(flat.values())
        self.orders.append(self._plan.order_again(item, {place: group.prompt_id for place, group in flat.items()}))
        return None

    def next_order(self) -> WorkItem:
        """Hand out an order of the oldest batch, which the Learner waits for."""
        oldest = min(self.orders, key=lambda item: item.step)
        self.orders.remove(oldest)
        return oldest

    @property
    def open_shards(self) -> tuple[OpenShard, ...]:
        """Copies of what is held back."""
        return tuple(shard.copy() for shard in self._open.values())

    @property
    def waiting(self) -> Count:
        """What waits here for others of its shard."""
        return count(group for shard in self._open.values() for group in shard.kept.values())


def _by_place(scored: ScoredBatch) -> dict[int, RolloutGroup]:
    """Return the groups by their place in the batch: they come in the order of the prompts, failed ones left out."""
    found, groups = dict[int, RolloutGroup](), list(reversed(scored.groups))
    for place, prompt_id in zip(scored.item.places, scored.item.prompt_ids, strict=True):
        if groups and groups[-1].prompt_id == prompt_id:
            found[place] = groups.pop()
    return found
