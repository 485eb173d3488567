"""Simulated parts: they sleep for what a stage costs, on whatever clock the event loop has, and pass metadata on.

They hold the loop to its side of the protocols: generating without weights, or loading weights that the Learner was
allowed to forget, is an ``AssertionError``. ``MortalGenerator`` and ``MortalScorer`` are shells around parts that die.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from harness.core.errors import PartReplaced
from harness.core.protocols import Generator, Scorer
from harness.core.seeds import derive_seed
from harness.core.trace import Stage, Tracer
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

P = TypeVar("P", Generator, Scorer)
T = TypeVar("T")

Cost = Callable[[int], float]
"""Seconds a stage takes at a given training step (or policy version)."""

Lengths = Callable[[WorkItem, int], tuple[int, ...]]
"""Response tokens of each of a group's rollouts, for a work item and one of its prompt ids."""

Fails = Callable[[WorkItem, int], bool]
"""Whether the reward function fails on the group of this prompt id."""

Dies = Callable[[int], float | None]
"""Seconds into a part's n-th call (counted from 1) after which it dies; None: it survives that call."""


def constant(seconds: float) -> Cost:
    """The cost model of a stage that always takes the same time."""
    return lambda step: seconds


def equal_lengths(tokens: int) -> Lengths:
    """Responses that all have the same length."""
    return lambda item, prompt_id: (tokens,) * item.group_size


def varying_lengths(shortest: int, longest: int) -> Lengths:
    """Responses whose lengths are drawn uniformly, bounds included, from the item's seed and the prompt."""

    def lengths(item: WorkItem, prompt_id: int) -> tuple[int, ...]:
        rng = random.Random(derive_seed(item.seed, prompt_id))
        return tuple(rng.randint(shortest, longest) for _ in range(item.group_size))

    return lengths


@dataclass
class SimulatedGenerator:
    """A Generator that only takes time. ``evaluate``, ``transfer`` and ``load`` default to free.

    Weights may be loaded while it generates: then each token counts as sampled by the version held at its moment.
    """

    tracer: Tracer
    generate_cost: Cost
    evaluate_cost: Cost = field(default_factory=lambda: constant(0.0))
    transfer_cost: Cost = field(default_factory=lambda: constant(0.0))
    load_cost: Cost = field(default_factory=lambda: constant(0.0))
    lane: str = "generator"
    lengths: Lengths = field(default_factory=lambda: equal_lengths(8))
    version: int = -1
    _held: list[tuple[float, int]] = field(default_factory=list, repr=False)  # (since, version), for version shares

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """Take the time of a transfer and a load; nothing is measured.

        Raises:
            AssertionError: the Learner was told that nobody needs this version any more.
        """
        with self.tracer.span(self.lane, Stage.WEIGHT_TRANSFER, weight_handle.version, weight_handle.version):
            _check_readable(weight_handle)
            await asyncio.sleep(self.transfer_cost(weight_handle.version))
            _check_readable(weight_handle)
        with self.tracer.span(self.lane, Stage.WEIGHT_LOAD, weight_handle.version, weight_handle.version):
            await asyncio.sleep(self.load_cost(weight_handle.version))
        self.version = weight_handle.version
        self._held.append((_now(), self.version))
        return {}

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Take the time of generating and return groups without data.

        Raises:
            AssertionError: no weights were loaded.
        """
        assert self.version >= 0, f"{self.lane} generates for step {item.step} without weights"
        evaluating = item.purpose is Purpose.EVALUATE
        self._held = [(_now(), self.version)]
        with self.tracer.span(self.lane, Stage.EVALUATE if evaluating else Stage.GENERATE, item.step, self.version):
            await asyncio.sleep((self.evaluate_cost if evaluating else self.generate_cost)(item.step))
        oldest, mean = self._held[0][1], self._mean_version()
        return tuple(
            RolloutGroup(prompt_id, item.step, oldest, self.version, self.lengths(item, prompt_id), mean_version=mean)
            for prompt_id in item.prompt_ids
        )

    def _mean_version(self) -> float | None:
        """Mean of the versions held since generating began, each weighted by its time; None if there was only one."""
        (start, oldest), end = self._held[0], _now()
        if self.version == oldest:
            return None
        until = [since for since, _ in self._held[1:]] + [end]
        area = sum((stop - since) * version for (since, version), stop in zip(self._held, until, strict=True))
        return area / (end - start) if end > start else float(oldest)


@dataclass
class SimulatedScorer:
    """A Scorer that only takes time; every reward is ``reward``, and a group on which ``fails`` holds has none."""

    tracer: Tracer
    score_cost: Cost
    lane: str = "scorer"
    reward: float = 0.5
    fails: Fails = lambda item, prompt_id: False

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Take the time of scoring and fill in the rewards."""
        evaluating = item.purpose is Purpose.EVALUATE
        stage = Stage.EVALUATE if evaluating else Stage.SCORE
        with self.tracer.span(self.lane, stage, item.step, groups[0].min_version):
            await asyncio.sleep(self.score_cost(item.step))
        failed = [group.prompt_id for group in groups if self.fails(item, group.prompt_id)]
        scored = tuple(self._rewarded(group) for group in groups if group.prompt_id not in failed)
        failure = f"the reward of prompt {failed[0]} failed" if failed else None
        metrics = self._metrics(scored, evaluating) if scored else {}
        return ScoredBatch(item, scored, metrics, failed_groups=len(failed), failure=failure)

    def _rewarded(self, group: RolloutGroup) -> RolloutGroup:
        """Fill in the rewards, several times as fast as ``dataclasses.replace``."""
        return RolloutGroup(
            group.prompt_id,
            group.step,
            group.min_version,
            group.max_version,
            group.lengths,
            group.data,
            (self.reward,) * len(group.lengths),
            group.mean_version,
            group.prompt_length,
        )

    def _metrics(self, groups: tuple[RolloutGroup, ...], evaluating: bool) -> Metrics:
        rollouts = sum(len(group.lengths) for group in groups)
        mean_length = sum(group.num_tokens for group in groups) / rollouts
        return {
            "validation/reward" if evaluating else "reward/total": Metric(self.reward, count=rollouts),
            "validation/response_length" if evaluating else "response_length": Metric(mean_length, count=rollouts),
        }


@dataclass
class SimulatedLearner:
    """A Learner that only takes time: ``epochs_per_batch`` passes of ``update_cost`` each; it saves nothing.

    Attributes:
        readable: versions that a Generator may load. A publish forgets, when it begins, all that are not still needed.
    """

    tracer: Tracer
    update_cost: Cost
    publish_cost: Cost = field(default_factory=lambda: constant(0.0))
    epochs_per_batch: int = 1
    weight_bytes: int = 0
    lane: str = "learner"
    readable: set[int] = field(default_factory=set)

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Take the time of k passes over the batch."""
        with self.tracer.span(self.lane, Stage.UPDATE, step, step):
            await asyncio.sleep(self.epochs_per_batch * self.update_cost(step))
        return UpdateResult(step + 1, self.epochs_per_batch, {})

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Take the time of a publish.

        Raises:
            AssertionError: a version that is still needed was given up before.
        """
        assert still_needed <= self.readable, f"versions {set(still_needed - self.readable)} are gone already"
        self.readable &= still_needed
        with self.tracer.span(self.lane, Stage.WEIGHT_PUBLISH, version, version):
            await asyncio.sleep(self.publish_cost(version))
        self.readable.add(version)
        return WeightHandle(version, self.weight_bytes, 1, payload=self.readable)

    async def checkpoint(self, version: int) -> None:
        """Do nothing: there is no policy to save."""


class _Mortal(Generic[P]):
    """Passes calls on to a part until one of them kills it: all its calls under way fail, and a new part stands there.

    A call that would be done before its death takes the part with it at its end: the result is lost.

    Args:
        make: returns a new part; a new Generator holds no weights.
        dies: in which calls the part on this lane dies.

    Attributes:
        part: the one that is alive.
        incarnation: its number; the first one is 0.
        calls: made so far, over all incarnations.
    """

    def __init__(self, make: Callable[[], P], dies: Dies) -> None:
        self._make: Callable[[], P] = make
        self._dies = dies
        self.part: P = make()
        self.lane: str = self.part.lane
        self.incarnation = self.calls = 0
        self._under_way: set[asyncio.Task[Any]] = set()

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        self.calls += 1
        call, incarnation, seconds = self.calls, self.incarnation, self._dies(self.calls)
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        try:
            await asyncio.wait({task}, timeout=seconds)
            if task.done() and not task.cancelled() and (seconds is None or task.exception()):
                result = task.result()
                if incarnation == self.incarnation:
                    return result
            if incarnation == self.incarnation:
                self._replace()
                await asyncio.wait({task})
            raise PartReplaced(f"{self.lane} died in call {call}", incarnation + 1)
        finally:
            task.cancel()
            self._under_way.discard(task)

    def _replace(self) -> None:
        for task in self._under_way:
            task.cancel()
        self.part = self._make()
        self.incarnation += 1


class MortalGenerator(_Mortal[Generator]):
    """A Generator that dies in some of its calls."""

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """See ``Generator``."""
        return await self._call(self.part.load_weights(weight_handle))

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """See ``Generator``."""
        return await self._call(self.part.generate(item))


class MortalScorer(_Mortal[Scorer]):
    """A Scorer that dies in some of its calls."""

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """See ``Scorer``."""
        return await self._call(self.part.score(item, groups))


def _check_readable(weight_handle: WeightHandle) -> None:
    assert weight_handle.payload is None or weight_handle.version in weight_handle.payload, (
        f"version {weight_handle.version} is gone: the Learner was told that only {weight_handle.payload} are needed"
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
