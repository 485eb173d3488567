"""Simulated parts: they sleep for what a stage costs, on whatever clock the event loop has, and pass metadata on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.trace import Stage, Tracer
from harness.types import (
    Metric,
    Purpose,
    RolloutGroup,
    ScoredBatch,
    UpdateResult,
    WeightTicket,
    WorkItem,
)

Cost = Callable[[int], float]
"""Seconds a stage takes at a given training step (or policy version)."""


def constant(seconds: float) -> Cost:
    """The cost model of a stage that always takes the same time."""
    return lambda step: seconds


@dataclass
class SimulatedGenerator:
    """A Generator that only takes time. ``evaluate`` and ``load`` default to free."""

    tracer: Tracer
    generate_cost: Cost
    evaluate_cost: Cost = field(default_factory=lambda: constant(0.0))
    transfer_cost: Cost = field(default_factory=lambda: constant(0.0))
    load_cost: Cost = field(default_factory=lambda: constant(0.0))
    lane: str = "generator"
    response_length: int = 8
    version: int = -1

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Take the time of a transfer and a load."""
        with self.tracer.span(self.lane, Stage.WEIGHT_TRANSFER, ticket.version, ticket.version):
            await asyncio.sleep(self.transfer_cost(ticket.version))
        with self.tracer.span(self.lane, Stage.WEIGHT_LOAD, ticket.version, ticket.version):
            await asyncio.sleep(self.load_cost(ticket.version))
        self.version = ticket.version

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Take the time of generating and return groups without data."""
        evaluating = item.purpose is Purpose.EVALUATE
        stage = Stage.EVALUATE if evaluating else Stage.GENERATE
        with self.tracer.span(self.lane, stage, item.step, self.version):
            await asyncio.sleep((self.evaluate_cost if evaluating else self.generate_cost)(item.step))
        lengths = (self.response_length,) * item.group_size
        return tuple(
            RolloutGroup(prompt_id, item.step, self.version, self.version, lengths) for prompt_id in item.prompt_ids
        )


@dataclass
class SimulatedScorer:
    """A Scorer that only takes time; every reward is ``reward``."""

    tracer: Tracer
    score_cost: Cost
    lane: str = "scorer"
    reward: float = 0.5

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Take the time of scoring and fill in the rewards."""
        evaluating = item.purpose is Purpose.EVALUATE
        with self.tracer.span(
            self.lane, Stage.EVALUATE if evaluating else Stage.SCORE, item.step, groups[0].min_version
        ):
            await asyncio.sleep(self.score_cost(item.step))
        scored = tuple(
            RolloutGroup(
                g.prompt_id, g.step, g.min_version, g.max_version, g.lengths, None, (self.reward,) * item.group_size
            )
            for g in groups
        )
        lengths = [length for group in groups for length in group.lengths]
        metrics = {
            "validation/reward" if evaluating else "reward/total": Metric(self.reward, count=len(lengths)),
            "validation/response_length" if evaluating else "response_length": Metric(
                sum(lengths) / len(lengths), count=len(lengths)
            ),
        }
        return ScoredBatch(item, scored, metrics)


@dataclass
class SimulatedLearner:
    """A Learner that only takes time: ``epochs_per_batch`` passes of ``update_cost`` each; it saves nothing."""

    tracer: Tracer
    update_cost: Cost
    publish_cost: Cost = field(default_factory=lambda: constant(0.0))
    epochs_per_batch: int = 1
    weight_bytes: int = 0
    lane: str = "learner"

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Take the time of k passes over the batch."""
        with self.tracer.span(self.lane, Stage.UPDATE, step, step):
            await asyncio.sleep(self.epochs_per_batch * self.update_cost(step))
        return UpdateResult(step + 1, self.epochs_per_batch, {})

    async def publish_weights(self, version: int) -> WeightTicket:
        """Take the time of a publish."""
        with self.tracer.span(self.lane, Stage.WEIGHT_PUBLISH, version, version):
            await asyncio.sleep(self.publish_cost(version))
        return WeightTicket(version, self.weight_bytes, 1)

    async def checkpoint(self, version: int) -> None:
        """Do nothing: there is no policy to save."""
