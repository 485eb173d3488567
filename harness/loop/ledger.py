"""What became of the rollouts: nothing is lost and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.core.types import RolloutGroup


@dataclass(frozen=True, slots=True)
class Count:
    """Rollouts and their response tokens."""

    rollouts: int = 0
    tokens: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.rollouts + other.rollouts, self.tokens + other.tokens)

    def __sub__(self, other: Count) -> Count:
        return Count(self.rollouts - other.rollouts, self.tokens - other.tokens)

    @property
    def mean_length(self) -> float | None:
        """Tokens of a rollout on average; None without rollouts."""
        return self.tokens / self.rollouts if self.rollouts else None


def count(groups: Iterable[RolloutGroup]) -> Count:
    """Return how many rollouts and tokens these groups hold."""
    rollouts = tokens = 0
    for group in groups:
        rollouts += len(group.lengths)
        tokens += sum(group.lengths)
    return Count(rollouts, tokens)


@dataclass(slots=True)
class RolloutCounts:
    """Running totals of one run. ``generated == failed + dropped + trained + unused`` once the run is over.

    Attributes:
        generated: sampled for training.
        failed: their reward function failed or ran out of time.
        dropped: too old when they could be trained on (``lag_control: drop``).
        trained: trained on at least once.
        trained_again: later uses of a replayed rollout, one count for each use.
        unused: none of these: left over at the end, or evicted from the replay buffer without ever being taken.
    """

    generated: Count = field(default_factory=Count)
    failed: Count = field(default_factory=Count)
    dropped: Count = field(default_factory=Count)
    trained: Count = field(default_factory=Count)
    trained_again: Count = field(default_factory=Count)

    @property
    def unused(self) -> Count:
        """What was generated and is in no other column."""
        return self.generated - self.failed - self.dropped - self.trained
