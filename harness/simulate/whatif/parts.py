"""The replayed parts: they stand behind the loop's protocols and sleep for what was recorded.

A call is three things in a row: its way to the part, the work piece by piece, the answer's way back. ``Timing`` says
how long each takes in this replay; the work is done in a ``Place``, alone or beside others on shared cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import (
    Metric,
    Metrics,
    Purpose,
    RolloutGroup,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
    WorkItem,
)
from harness.simulate.contention import OwnDevice, Piece, Place
from harness.simulate.whatif.recorded import Call, Work

Lengths = Callable[[WorkItem], Mapping[int, tuple[int | None, tuple[int, ...]]]]
"""Tokens of each prompt and of its responses, by prompt id, for a work item."""

Rewards = Callable[[WorkItem, RolloutGroup], tuple[float, ...]]
"""Rewards of a group's rollouts."""


class Timing(Protocol):
    """How long the calls of a replay take."""

    def sync(self, lane: str, work: Work, version: int) -> Call:
        """Return a call to publish, load or checkpoint a version."""

    def generate(self, lane: str, item: WorkItem) -> Call:
        """Return a call to sample rollouts, for training or for an evaluation."""

    def score(self, lane: str, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Call:
        """Return a call to score them."""

    def update(self, lane: str, step: int, groups: tuple[RolloutGroup, ...]) -> Call:
        """Return a call to train on them."""


@dataclass
class Stand:
    """Where the parts of one replay stand.

    Args:
        tracer: takes the spans, when the answer of their call is there.
        timing: of the calls.
        place: where the work is done: each part has a device of its own, or they share cores.
        cores: that a stage of a lane would like to have.
        way_cores: that the way of a call would like to have.
        thread: on which all parts take turns; None: each lane has one of its own, and another to load weights on.
    """

    tracer: RecordingTracer
    timing: Timing
    place: Place = field(default_factory=OwnDevice)
    cores: Callable[[str], float] = lambda lane: 1.0
    way_cores: float = 0.0
    thread: str | None = None

    async def carry_out(self, call: Call, lane: str, key: int, version: int, hold: float = 0.0) -> None:
        """Take the time of a call; ``hold`` seconds pass first."""
        if hold > 0:
            await asyncio.sleep(hold)
        called_s = _now()
        thread = f"{lane}:{'load' if call.work is Work.LOAD else 'work'}"
        await self._pass(call.before_s, thread)
        pieces = [Piece(piece.seconds, self.cores(lane) if piece.stage else 0) for piece in call.pieces]
        stage = next((piece.stage for piece in call.pieces if piece.stage), Stage.WAIT_FOR_CALL)
        with self.tracer.underway(lane, stage, key, version):
            times = await self.place.run(self.thread or thread, pieces)
        await self._pass(call.after_s, thread)
        begun_s, ended_s = (times[0][0], times[-1][1]) if times else (_now(), _now())
        shown = [(piece.stage, *time) for piece, time in zip(call.pieces, times, strict=True) if piece.stage]
        shown += [(Stage.WAIT_FOR_CALL, called_s, begun_s), (Stage.WAIT_FOR_CALL, ended_s, _now())]
        for stage, start_s, end_s in shown:
            span = Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), key, version)
            if span.stage is not Stage.WAIT_FOR_CALL or span.end_ns > span.start_ns:
                self.tracer.finished.append(span)

    async def _pass(self, seconds: float, thread: str) -> None:
        """Take the time of one way of a call."""
        if seconds > 0:
            await self.place.run(f"{thread}, way", [Piece(seconds, self.way_cores, brief=True)])


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class ReplayedGenerator:
    """A Generator that takes recorded times and returns groups of recorded lengths."""

    stand: Stand
    lengths: Lengths
    lane: str = "generator"
    version: int = -1

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """Take the time of a transfer and a load."""
        call = self.stand.timing.sync(self.lane, Work.LOAD, weight_handle.version)
        await self.stand.carry_out(call, self.lane, weight_handle.version, weight_handle.version)
        self.version = weight_handle.version
        return {}

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Take the time of generating; weights may come in the middle of it."""
        oldest = self.version
        await self.stand.carry_out(self.stand.timing.generate(self.lane, item), self.lane, item.step, oldest)
        lengths = self.lengths(item)
        return tuple(
            RolloutGroup(
                prompt_id, item.step, oldest, self.version, lengths[prompt_id][1], prompt_length=lengths[prompt_id][0]
            )
            for prompt_id in item.prompt_ids
        )


@dataclass
class ReplayedScorer:
    """A Scorer that takes recorded times and gives recorded rewards."""

    stand: Stand
    rewards: Rewards
    lane: str = "scorer"

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Take the time of scoring and fill in the rewards."""
        call = self.stand.timing.score(self.lane, item, groups)
        await self.stand.carry_out(call, self.lane, item.step, groups[0].min_version)
        scored = tuple(replace(group, rewards=self.rewards(item, group)) for group in groups)
        return ScoredBatch(item, scored, _reward_metrics(item, scored))


def _reward_metrics(item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Metrics:
    rewards = [reward for group in groups for reward in group.rewards or ()]
    name = "validation/reward" if item.purpose is Purpose.EVALUATE else "reward/total"
    return {name: Metric(sum(rewards) / len(rewards), count=len(rewards))} if rewards else {}


@dataclass
class ReplayedLearner:
    """A Learner that takes recorded times.

    Attributes:
        optimizer_steps: in each training step.
        held_until: when the driver, which keeps its books after each step, makes the next call.
    """

    stand: Stand
    optimizer_steps: int = 1
    lane: str = "learner"
    held_until: float = 0.0

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Take the time of a training step."""
        hold = self.held_until - asyncio.get_running_loop().time()
        await self.stand.carry_out(self.stand.timing.update(self.lane, step, groups), self.lane, step, step, hold)
        return UpdateResult(step + 1, self.optimizer_steps, {})

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Take the time of a publish."""
        call = self.stand.timing.sync(self.lane, Work.PUBLISH, version)
        await self.stand.carry_out(call, self.lane, version, version)
        return WeightHandle(version, 0, 1)

    async def checkpoint(self, version: int) -> None:
        """Take the time of saving the policy; where nothing was saved it takes none."""
        call = self.stand.timing.sync(self.lane, Work.CHECKPOINT, version)
        await self.stand.carry_out(call, self.lane, version, version)
