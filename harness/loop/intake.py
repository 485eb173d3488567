"""From scored shards to the batch of a training step. Pure bookkeeping: nothing here waits."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from harness.types import RolloutGroup, ScoredBatch

Batch = tuple[ScoredBatch, ...]


class Intake(Protocol):
    """Collects what was scored until a training step can be made of it."""

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        """Take in one shard while the Learner is at ``version``; return the groups dropped because of it."""

    def expire(self, version: int) -> list[RolloutGroup]:
        """The Learner is at ``version`` now: return the groups dropped because of it."""

    def ready(self, step: int) -> bool:
        """Whether the batch of this training step is complete."""

    def take(self, step: int) -> Batch:
        """Hand the batch over, its shards in order."""

    @property
    def waiting(self) -> int:
        """Rollouts that wait here."""


class InOrder:
    """Batch ``step`` is what was ordered for it: nothing is dropped, and the order of arrival does not matter.

    Args:
        shards: parts of a batch.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._parts: dict[int, dict[int, ScoredBatch]] = {}  # step -> shard -> scored

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        """See ``Intake``."""
        self._parts.setdefault(scored.item.step, {})[scored.item.shard] = scored
        return []

    def expire(self, version: int) -> list[RolloutGroup]:
        """See ``Intake``."""
        return []

    def ready(self, step: int) -> bool:
        """See ``Intake``."""
        return len(self._parts.get(step, ())) == self._shards

    def take(self, step: int) -> Batch:
        """See ``Intake``."""
        parts = self._parts.pop(step)
        return tuple(parts[index] for index in sorted(parts))

    @property
    def waiting(self) -> int:
        """See ``Intake``."""
        return sum(_rollouts(part) for parts in self._parts.values() for part in parts.values())


class FirstComeDropStale:
    """A batch is the first ``shards`` shards that are not too old; a shard that has become too old is dropped.

    Args:
        shards: parts of a batch.
        max_lag: versions that a shard's oldest token may be behind the Learner.
    """

    def __init__(self, shards: int, max_lag: int) -> None:
        self._shards, self._max_lag = shards, max_lag
        self._queue: deque[ScoredBatch] = deque()

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        """See ``Intake``. A shard whose groups all failed is part of a batch like any other, and never too old."""
        self._queue.append(scored)
        return self.expire(version)

    def expire(self, version: int) -> list[RolloutGroup]:
        """See ``Intake``."""
        stale = [part for part in self._queue if self._is_stale(part, version)]
        self._queue = deque(part for part in self._queue if not self._is_stale(part, version))
        return [group for part in stale for group in part.groups]

    def _is_stale(self, part: ScoredBatch, version: int) -> bool:
        return any(version - group.min_version > self._max_lag for group in part.groups)

    def ready(self, step: int) -> bool:
        """See ``Intake``."""
        return len(self._queue) >= self._shards

    def take(self, step: int) -> Batch:
        """See ``Intake``."""
        return tuple(self._queue.popleft() for _ in range(self._shards))

    @property
    def waiting(self) -> int:
        """See ``Intake``."""
        return sum(_rollouts(part) for part in self._queue)


def _rollouts(part: ScoredBatch) -> int:
    return sum(len(group.lengths) for group in part.groups)
