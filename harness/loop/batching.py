"""From scored shards to the batch of a training step. Pure bookkeeping: nothing here waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Protocol

from harness.core.types import RolloutGroup, ScoredBatch

Batch = tuple[ScoredBatch, ...]


class BatchAssembler(Protocol):
    """Collects what was scored until a training step can be made of it."""

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        """Take in one shard while the Learner is at ``version``; return the groups dropped because of it."""

    def expire(self, version: int) -> list[RolloutGroup]:
        """The Learner is at ``version`` now: return the groups dropped because of it."""

    def ready(self, step: int) -> bool:
        """Whether the batch of this training step is complete."""

    def take(self, step: int) -> Batch:
        """Hand the batch over, its shards in order."""

    def parts(self, step: int) -> Mapping[int, ScoredBatch]:
        """The shards of this training step that are there, by number, the first to come first."""

    @property
    def waiting(self) -> int:
        """Rollouts that wait here."""

    @property
    def held(self) -> Batch:
        """The shards that wait here; given to ``add`` in this order, they make the same batches of another one."""


class InOrder:
    """Batch ``step`` is what was ordered for it: nothing is dropped, and the order of arrival does not matter.

    Args:
        shards: parts of a batch.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._parts: dict[int, dict[int, ScoredBatch]] = {}  # step -> shard -> scored
        self._waiting = 0

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        """See ``BatchAssembler``."""
        parts, shard = self._parts.setdefault(scored.item.step, {}), scored.item.shard
        if shard in parts:
            self._waiting -= _rollouts(parts[shard])
        parts[shard] = scored
        self._waiting += _rollouts(scored)
        return []

    def expire(self, version: int) -> list[RolloutGroup]:
        """See ``BatchAssembler``."""
        return []

    def ready(self, step: int) -> bool:
        """See ``BatchAssembler``."""
        return len(self._parts.get(step, ())) == self._shards

    def take(self, step: int) -> Batch:
        """See ``BatchAssembler``."""
        parts = self._parts.pop(step)
        self._waiting -= sum(map(_rollouts, parts.values()))
        return tuple(parts[index] for index in sorted(parts))

    def parts(self, step: int) -> Mapping[int, ScoredBatch]:
        """See ``BatchAssembler``."""
        return self._parts.get(step, {})

    @property
    def waiting(self) -> int:
        """See ``BatchAssembler``."""
        return self._waiting

    @property
    def held(self) -> Batch:
        """See ``BatchAssembler``."""
        return tuple(part for parts in self._parts.values() for part in parts.values())


class FirstComeDropStale:
    """A batch is the first ``shards`` shards that are not too old; a shard that has become too old is dropped.

    Args:
        shards: parts of a batch.
        max_lag: versions that a shard's oldest token may be behind the Learner.
    """

    def __init__(self, shards: int, max_lag: int) -> None:
        self._shards, self._max_lag = shards, max_lag
        self._queue: deque[ScoredBatch] = deque()
        self._expired_at = -1  # the version at which everything in the queue was found to be young enough
        self._waiting = 0

    def add(self, scored: ScoredBatch, version: int) -> list[RolloutGroup]:
        """See ``BatchAssembler``. A shard whose groups all failed counts like any other, and is never too old."""
        if version == self._expired_at and self._is_stale(scored, version):
            return list(scored.groups)
        self._queue.append(scored)
        self._waiting += _rollouts(scored)
        return [] if version == self._expired_at else self.expire(version)

    def expire(self, version: int) -> list[RolloutGroup]:
        """See ``BatchAssembler``."""
        self._expired_at = version
        stale = [part for part in self._queue if self._is_stale(part, version)]
        if stale:
            self._queue = deque(part for part in self._queue if not self._is_stale(part, version))
            self._waiting -= sum(map(_rollouts, stale))
        return [group for part in stale for group in part.groups]

    def _is_stale(self, part: ScoredBatch, version: int) -> bool:
        return any(version - group.min_version > self._max_lag for group in part.groups)

    def ready(self, step: int) -> bool:
        """See ``BatchAssembler``."""
        return len(self._queue) >= self._shards

    def take(self, step: int) -> Batch:
        """See ``BatchAssembler``."""
        batch = tuple(self._queue.popleft() for _ in range(self._shards))
        self._waiting -= sum(map(_rollouts, batch))
        return batch

    def parts(self, step: int) -> Mapping[int, ScoredBatch]:
        """See ``BatchAssembler``. Until the Learner's version changes, they stay in this order."""
        return dict(enumerate(islice(self._queue, self._shards)))

    @property
    def waiting(self) -> int:
        """See ``BatchAssembler``."""
        return self._waiting

    @property
    def held(self) -> Batch:
        """See ``BatchAssembler``."""
        return tuple(self._queue)


def _rollouts(part: ScoredBatch) -> int:
    return sum([len(group.lengths) for group in part.groups])
