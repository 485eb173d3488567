"""What the loop tells its observer, who may hold it back, and what became of the rollouts.

Of those nothing is lost and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from harness.core.types import Metrics, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle
from harness.loop.replay import ReplayDraw, ReplayStats


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
        return self.tokens / self.rollouts if self.rollouts else None


def count(groups: Iterable[RolloutGroup]) -> Count:
    rollouts = tokens = 0
    for group in groups:
        rollouts += len(group.lengths)
        tokens += sum(group.lengths)
    return Count(rollouts, tokens)


@dataclass(slots=True)
class RolloutCounts:
    """Running totals of one run. ``generated == failed + discarded + dropped + trained + unused`` at its end.

    Attributes:
        generated: sampled for training.
        failed: their reward function failed or ran out of time.
        dropped: too old when they could be trained on (``lag_control: drop``).
        trained: trained on at least once.
        trained_again: later uses of a replayed rollout, one count for each use.
        discarded: of groups without spread, for which others were sampled (dynamic sampling).
        unused: none of these: left over at the end, or evicted from the replay buffer without ever being taken.
    """

    generated: Count = field(default_factory=Count)
    failed: Count = field(default_factory=Count)
    dropped: Count = field(default_factory=Count)
    trained: Count = field(default_factory=Count)
    trained_again: Count = field(default_factory=Count)
    discarded: Count = field(default_factory=Count)

    @property
    def unused(self) -> Count:
        return self.generated - self.failed - self.discarded - self.dropped - self.trained


@dataclass(frozen=True, slots=True)
class StepReport:
    """One finished training step: what went in and what came out.

    Attributes:
        scored: the fresh rollout batch, a part for each shard.
        taken: the groups trained on, with how often each was used by now and how old it was.
        result: what the update did.
        weight_handle: the weights that the step published.
        dropped: rollouts dropped since the previous step.
        in_queue: rollouts scored and waiting for the Learner when it took this batch.
        in_flight: rollouts being generated, or generated and not scored yet, at that moment.
        replay: the replay buffer after this step, and its size in groups; None without a buffer.
    """

    step: int
    scored: tuple[ScoredBatch, ...]
    taken: tuple[ReplayDraw, ...]
    result: UpdateResult
    weight_handle: WeightHandle
    dropped: Count = field(default_factory=Count)
    in_queue: int = 0
    in_flight: int = 0
    replay: tuple[ReplayStats, int] | None = None

    @property
    def fresh(self) -> tuple[RolloutGroup, ...]:
        return tuple(group for part in self.scored for group in part.groups)

    @property
    def groups(self) -> tuple[RolloutGroup, ...]:
        return tuple(item.group for item in self.taken)


class Observer:
    """Hears of events as they happen, in plain calls that must be quick; a subclass listens to those it wants."""

    def on_version(self, lane: str, version: int) -> None:
        """A lane now holds this policy version."""

    def on_sync(self, lane: str, version: int, measured: Metrics) -> None:
        """A lane has loaded this policy version, and something was measured of it; comes right after its version."""

    def on_step(self, report: StepReport) -> None:
        """A training step is complete: at lag 0 its weights are loaded and evaluated, otherwise published."""

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        """A policy version was evaluated."""

    def on_replaced(self, lane: str, reason: str) -> None:
        """A part died and a new one, without weights, stands in its place."""

    def on_finished(self, counts: RolloutCounts) -> None:
        """All steps are made."""

    def on_broken_off(self, counts: RolloutCounts) -> None:
        """A part failed before the last step, and all lanes have stopped."""


class Throttle(Protocol):
    """Holds a batch back until its turn has come: how several arms alternate."""

    async def acquire(self, step: int) -> None:
        """Return when the batch of this training step may start."""
