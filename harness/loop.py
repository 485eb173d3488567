"""The one training loop: synchronous k-step, bounded-lag asynchronous, and (later) replay are settings of it.

Plain asyncio over the protocols: no threads, no wall clock, no Ray, no torch, so that the parts may be in-process
objects, Ray actors or simulated stages on a virtual clock. Batches and weights pass through as handles.

    lane        does                                        waits for            is unblocked by
    ----------  ------------------------------------------  -------------------  --------------------------------------
    Generator   take an order, load weights, generate       wait_for_weights     the Learner publishing version
                                                                                 >= step - max_lag
    Scorer      score what was generated                    wait_for_rollouts    a Generator finishing an order
    Learner     update on batch ``step``, publish step + 1  wait_for_batch       the last shard of the batch being
                                                                                 scored

Batch ``step`` is consumed at policy version ``step``, so a Generator that holds version v may start it exactly when
``step - v <= max_lag``. That admission rule implies both lag invariants of the design; both are checked all the same,
and a violation stops the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.errors import RunStopped
from harness.protocols import Generator, Learner, Scorer
from harness.seeds import derive_seed
from harness.trace import Stage, Tracer
from harness.types import Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightTicket, WorkItem


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """What to run.

    Attributes:
        steps: training steps.
        group_size: rollouts per prompt.
        max_lag: how many policy versions a rollout may be behind the Learner; 0 is synchronous.
        evaluate_every: evaluate each version divisible by this, and always the first and the last.
        batch_prompts: prompt ids of a training step.
        validation_prompts: prompt ids of every evaluation.
        seed: root of the sampling seeds.
    """

    steps: int
    group_size: int
    max_lag: int
    evaluate_every: int
    batch_prompts: Callable[[int], tuple[int, ...]]
    validation_prompts: tuple[int, ...]
    seed: int = 0

    def is_evaluated(self, version: int) -> bool:
        """Whether this policy version is evaluated."""
        return bool(self.validation_prompts) and (version % self.evaluate_every == 0 or version == self.steps)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One finished training step: what went in and what came out."""

    step: int
    scored: tuple[ScoredBatch, ...]
    result: UpdateResult

    @property
    def groups(self) -> tuple[RolloutGroup, ...]:
        """The groups trained on, in shard order."""
        return tuple(group for part in self.scored for group in part.groups)


class Observer(Protocol):
    """Hears of events as they happen; plain calls that must be quick."""

    def on_version(self, lane: str, version: int) -> None:
        """A lane now holds this policy version."""

    def on_step(self, facts: StepFacts) -> None:
        """A training step is complete: at lag 0 its weights are loaded and evaluated, otherwise published."""

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        """A policy version was evaluated."""


class SilentObserver:
    """The observer of a run nobody watches."""

    def on_version(self, lane: str, version: int) -> None: ...

    def on_step(self, facts: StepFacts) -> None: ...

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None: ...


class Pace(Protocol):
    """Holds a batch back until its turn has come: how several arms alternate."""

    async def admit(self, step: int) -> None:
        """Return when the batch of this training step may start."""


class FullSpeed:
    """The pace of a run that has the machine to itself."""

    async def admit(self, step: int) -> None:
        return None


class Bell:
    """Wakes everyone who waits for a condition, in the order in which they came."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Have every waiter look at its condition again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds; it is looked at now and after each ring."""
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


async def run_loop(
    generators: Sequence[Generator],
    scorers: Sequence[Scorer],
    learner: Learner,
    plan: LoopPlan,
    tracer: Tracer,
    observer: Observer | None = None,
    pace: Pace | None = None,
) -> None:
    """Run ``plan.steps`` training steps.

    Raises:
        RunStopped: a lag bound was broken.
        ValueError: there are more Generators than prompts in a batch.
        Exception: whatever a part raised; the other lanes are cancelled first.
    """
    lanes = _Lanes(generators, scorers, learner, plan, tracer, observer or SilentObserver(), pace or FullSpeed())
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in lanes.coroutines():
                tasks.create_task(coroutine)
    except BaseExceptionGroup as group:
        error = first_error(group)
        raise error from error.__cause__


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group of tasks: the others were cancelled because of it."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


class _Lanes:
    """The shared state of one run and a coroutine for each lane."""

    def __init__(
        self,
        generators: Sequence[Generator],
        scorers: Sequence[Scorer],
        learner: Learner,
        plan: LoopPlan,
        tracer: Tracer,
        observer: Observer,
        pace: Pace,
    ) -> None:
        self.generators, self.scorers, self.learner = generators, scorers, learner
        self.plan, self.tracer, self.observer, self.pace = plan, tracer, observer, pace
        self.bell = Bell()
        self.orders = self._train_orders()
        self.version = 0  # of the Learner
        self.newest: WeightTicket | None = None  # published last
        self.to_evaluate: deque[WeightTicket] = deque()
        self.unevaluated: set[int] = set()  # published versions whose evaluation is due and not scored yet
        self.holds = dict.fromkeys((generator.lane for generator in generators), -1)  # version in each Generator
        self.unscored: deque[tuple[WorkItem, tuple[RolloutGroup, ...]]] = deque()
        self.shards: dict[int, dict[int, ScoredBatch]] = {}  # step -> shard -> scored
        self.learner_done = False

    def coroutines(self) -> Iterator[asyncio._CoroutineLike[None]]:
        """One coroutine for each lane; the first Generator also evaluates."""
        yield self._learner_lane()
        for index, generator in enumerate(self.generators):
            yield self._generator_lane(generator, evaluates=index == 0)
        for scorer in self.scorers:
            yield self._scorer_lane(scorer)

    # ---- Generator

    def _train_orders(self) -> Iterator[WorkItem]:
        """Every batch in order, cut into one shard for each Generator."""
        for step in range(self.plan.steps):
            prompt_ids = self.plan.batch_prompts(step)
            shards = len(self.generators)
            if len(prompt_ids) < shards:
                raise ValueError(
                    f"{shards} Generators cannot share the {len(prompt_ids)} prompts of a batch: use fewer"
                )
            for shard in range(shards):
                seed = derive_seed(self.plan.seed, "train", step, shard)
                mine = prompt_ids[shard * len(prompt_ids) // shards : (shard + 1) * len(prompt_ids) // shards]
                yield WorkItem(Purpose.TRAIN, step, shard, mine, self.plan.group_size, seed)

    async def _generator_lane(self, generator: Generator, evaluates: bool) -> None:
        for item in self.orders:
            await self._freshen(generator, item.step, evaluates)
            await self.pace.admit(item.step)
            self._check_start(generator, item)
            groups = await generator.generate(item)
            self._hand_to_scorer(item, groups)
        if evaluates and self.plan.is_evaluated(self.plan.steps):
            await self._freshen(generator, self.plan.steps + self.plan.max_lag, evaluates)
        await self._wait(generator.lane, Stage.WAIT_FOR_WEIGHTS, lambda: self.learner_done, self.plan.steps)

    async def _freshen(self, generator: Generator, step: int, evaluates: bool) -> None:
        """Load the newest weights, waiting for them where the lag bound says so; evaluate what is due on the way."""
        needed = max(0, step - self.plan.max_lag)
        await self._wait(
            generator.lane,
            Stage.WAIT_FOR_WEIGHTS,
            lambda: self.newest is not None and self.newest.version >= needed,
            step,
        )
        while evaluates and self.to_evaluate:
            ticket = self.to_evaluate.popleft()
            await self._load(generator, ticket)
            await self._evaluate(generator, ticket.version)
        assert self.newest is not None
        await self._load(generator, self.newest)

    async def _load(self, generator: Generator, ticket: WeightTicket) -> None:
        if self.holds[generator.lane] >= ticket.version:
            return
        await generator.load_weights(ticket)
        self.holds[generator.lane] = ticket.version
        self.observer.on_version(generator.lane, ticket.version)
        self.bell.ring()

    async def _evaluate(self, generator: Generator, version: int) -> None:
        """Sample the validation prompts; every version with the same seed, so that versions can be compared.

        At lag 0 the step is complete only when the evaluation is scored, so the next batch waits for that.
        """
        seed = derive_seed(self.plan.seed, "evaluate")
        item = WorkItem(Purpose.EVALUATE, version, 0, self.plan.validation_prompts, 1, seed)
        self._hand_to_scorer(item, await generator.generate(item))
        if self.plan.max_lag == 0:
            await self._wait(generator.lane, Stage.WAIT_FOR_WEIGHTS, lambda: version not in self.unevaluated, version)

    def _hand_to_scorer(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> None:
        self.unscored.append((item, groups))
        self.bell.ring()

    def _check_start(self, generator: Generator, item: WorkItem) -> None:
        held, bound = self.holds[generator.lane], self.plan.max_lag
        if self.version - held > bound:
            raise RunStopped(
                f"lag bound broken: {generator.lane} starts the batch of step {item.step} at policy version {held} "
                f"while the Learner is at {self.version}: lag {self.version - held} is above max_lag {bound}"
            )

    # ---- Scorer

    async def _scorer_lane(self, scorer: Scorer) -> None:
        while True:
            await self._wait(
                scorer.lane, Stage.WAIT_FOR_ROLLOUTS, lambda: bool(self.unscored) or self.learner_done, self.version
            )
            if not self.unscored:
                return
            item, groups = self.unscored.popleft()
            scored = await scorer.score(item, groups)
            if item.purpose is Purpose.EVALUATE:
                self.unevaluated.discard(item.step)
                self.observer.on_evaluation(item.step, scored)
            else:
                self.shards.setdefault(item.step, {})[item.shard] = scored
            self.bell.ring()

    # ---- Learner

    async def _learner_lane(self) -> None:
        await self._publish()
        for step in range(self.plan.steps):
            scored = await self._next_batch(step)
            groups = tuple(group for part in scored for group in part.groups)
            self._check_consumption(step, groups)
            result = await self.learner.update(step, groups)
            self.version = step + 1
            await self._publish()
            if self.plan.max_lag == 0:
                await self._wait(self.learner.lane, Stage.WAIT_FOR_BATCH, self._weights_in_use, step)
            self.observer.on_step(StepFacts(step, scored, result))
        await self._wait(self.learner.lane, Stage.WAIT_FOR_BATCH, self._all_evaluated, self.plan.steps)
        await self.learner.checkpoint(self.version)
        self.learner_done = True
        self.bell.ring()

    async def _next_batch(self, step: int) -> tuple[ScoredBatch, ...]:
        """Wait until every shard of the batch is scored, and take it."""
        expected = len(self.generators)
        await self._wait(
            self.learner.lane, Stage.WAIT_FOR_BATCH, lambda: len(self.shards.get(step, ())) == expected, step
        )
        shards = self.shards.pop(step)
        return tuple(shards[index] for index in sorted(shards))

    async def _publish(self) -> None:
        ticket = await self.learner.publish_weights(self.version)
        self.newest = ticket
        if self.plan.is_evaluated(ticket.version):
            self.to_evaluate.append(ticket)
            self.unevaluated.add(ticket.version)
        self.observer.on_version(self.learner.lane, ticket.version)
        self.bell.ring()

    def _weights_in_use(self) -> bool:
        """Whether every Generator with work left holds the newest weights, and what is due was evaluated."""
        last = self.version == self.plan.steps
        return (last or min(self.holds.values()) >= self.version) and self._all_evaluated()

    def _all_evaluated(self) -> bool:
        return not self.unevaluated

    def _check_consumption(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        oldest = min(group.min_version for group in groups)
        if self.version - oldest > self.plan.max_lag:
            raise RunStopped(
                f"lag bound broken: training step {step} at policy version {self.version} would consume a rollout "
                f"whose oldest token is of version {oldest}: lag {self.version - oldest} is above max_lag "
                f"{self.plan.max_lag}"
            )

    # ---- all

    async def _wait(self, lane: str, stage: Stage, condition: Callable[[], bool], step: int) -> None:
        """Wait for ``condition`` under a wait span; no span where it holds already."""
        if not condition():
            with self.tracer.span(lane, stage, step, self.version):
                await self.bell.until(condition)
