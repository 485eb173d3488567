"""From scored shards to the batch of a training step. Pure bookkeeping: nothing here waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.core.types import RolloutGroup, ScoredBatch

Batch = tuple[ScoredBatch, ...]


class BatchAssembler(Protocol):
    """Collects what was scored until a training step can be made of it."""

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        """Take in one shard while the Learner is at ``version``; return its groups where it is dropped."""

    def expire(self, version: int) -> list[RolloutGroup]:
        """The Learner is at ``version`` now: return the groups dropped because of it."""

    def ready(self, step: int) -> bool:
        """Whether the batch of this training step is complete."""

    def take(self, step: int) -> Batch:
        """Hand the batch over, its shards in order."""

    def parts(self, step: int) -> Mapping[int, ScoredBatch]:
        """The shards of this training step that are there, by number, the first to come first."""

    @property
    def waiting(self) -> Batch:
        """The shards that wait here; given to ``add`` in this order, they make the same batches of another one."""


class InOrder:
    """Batch ``step`` is what was ordered for it: nothing is dropped, and the order of arrival does not matter.

    Args:
        shards: parts of a batch.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._parts: dict[int, dict[int, ScoredBatch]] = {}  # step -> shard -> scored

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        self._parts.setdefault(scored.item.step, {})[scored.item.shard] = scored
        return []

    def expire(self, version: int) -> list[RolloutGroup]:
        return []

    def ready(self, step: int) -> bool:
        return len(self._parts.get(step, ())) == self._shards

    def take(self, step: int) -> Batch:
        parts = self._parts.pop(step)
        return tuple(parts[index] for index in sorted(parts))

    def parts(self, step: int) -> Mapping[int, ScoredBatch]:
        return self._parts.get(step, {})

    @property
    def waiting(self) -> Batch:
        return tuple(part for parts in self._parts.values() for part in parts.values())


class FirstComeDropStale:
    """A batch is the first ``shards`` shards that are not too old; a shard that has become too old is dropped.

    A shard whose groups all failed counts like any other, and is never too old.

    Args:
        shards: parts of a batch.
        max_lag: versions that a shard's oldest token may be behind the Learner.
    """

    def __init__(self, shards: int, max_lag: int) -> None:
        self._shards, self._max_lag = shards, max_lag
        self._queue: list[ScoredBatch] = []

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        if self._is_stale(scored, version):
            return list(scored.groups)
        self._queue.append(scored)
        return []

    def expire(self, version: int) -> list[RolloutGroup]:
        queue, self._queue = self._queue, []
        return [group for part in queue for group in self.add(part, version)]

    def _is_stale(self, part: ScoredBatch, version: int) -> bool:
        return any(version - group.min_version > self._max_lag for group in part.groups)

    def ready(self, step: int) -> bool:
        return len(self._queue) >= self._shards

    def take(self, step: int) -> Batch:
        batch, self._queue = tuple(self._queue[: self._shards]), self._queue[self._shards :]
        return batch

    def parts(self, step: int) -> Mapping[int, ScoredBatch]:
        return dict(enumerate(self._queue[: self._shards]))

    @property
    def waiting(self) -> Batch:
        return tuple(self._queue)
