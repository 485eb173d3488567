"""What each lane does, waits for, and is unblocked by.

    lane        does                                        waits for            is unblocked by
    ----------  ------------------------------------------  -------------------  --------------------------------------
    Generator   take an order, load weights, generate       wait_for_weights     the Learner publishing version
                                                                                 >= batch - max_lag; at lag 0 also a
                                                                                 Scorer finishing an evaluation
                                                            wait_for_room        the Learner taking a batch, and
                                                                                 whoever drops a shard or finds it
                                                                                 failed (``lag_control: drop`` only)
                                                            (both)               a Scorer finding groups that are to be
                                                                                 sampled again (dynamic sampling)
    Scorer      score what was generated                    wait_for_rollouts    a Generator finishing an order
    Learner     take the batch of step ``step``, update,    wait_for_batch       the last shard of the batch being
                publish version ``step + 1``                                     scored; at lag 0 also the last
                                                                                 Generator loading its weights

With ``overlapped_publish`` the Learner takes the next batch while version ``step`` is still being published; it
changes its weights only when they were copied, and begins to publish them only when that version is there
(``wait_for_weights``).

With ``stream`` the Learner takes the shards of batch ``step`` one by one, as each is scored, and its optimizer step
comes with the last one.

Each wait has a condition of its own, which is notified by whoever is named on the right, and at the end by the Learner:
so an order costs the same among many Generators as among few.

Under ``wait`` and ``in_flight``, batch ``step`` is consumed at policy version ``step``, so a Generator that holds
version v may start it exactly when ``step - v <= max_lag``. That admission rule implies both lag invariants of the
design. Under ``drop`` a Generator always starts with the newest weights, and a batch that has become too old is
dropped. Either way both invariants are checked all the same, and a violation stops the run.

With dynamic sampling a shard is complete when no group of it is to be sampled again. Any Generator does that, before it
starts anything new, with the newest weights: an order of batch ``step`` like any other, under the same rules.

A Generator or Scorer that died was replaced by its own shell, which says so with ``PartReplaced``; the lane then
repeats its work on the new one, under the same seed.

After every ``checkpoint_every`` training steps the Learner hands over a ``LoopState``, from which another call goes on;
``harness.loop.state`` says what that promises. Evaluations of older versions have to be told by then: for these the
Learner waits, and the Generator that evaluates makes them even while it waits for weights or room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from harness.core.errors import PartReplaced, RunStopped
from harness.core.protocols import Generator, Learner, Scorer
from harness.core.trace import Stage, Tracer
from harness.core.types import Purpose, RolloutGroup, WeightHandle, WorkItem
from harness.loop.batching import Batch, BatchAssembler, FirstComeDropStale, InOrder
from harness.loop.condition import Condition
from harness.loop.dynamic_sampling import DynamicSampler
from harness.loop.observer import Count, Observer, StepReport, Throttle, count
from harness.loop.orders import Orders, check_generated, check_published, check_scored
from harness.loop.plan import LoopPlan
from harness.loop.replay import ReplayBuffer, ReplayDraw
from harness.loop.state import Checkpoints, LoopState
from harness.loop.versions import NONE, Evaluations, LoadedVersions


async def run_loop(
    generators: Sequence[Generator],
    scorers: Sequence[Scorer],
    learner: Learner,
    plan: LoopPlan,
    tracer: Tracer,
    observer: Observer | None = None,
    throttle: Throttle | None = None,
    *,
    resume: LoopState | None = None,
    checkpoints: Checkpoints | None = None,
) -> None:
    """Run ``plan.steps`` training steps, or those that are left of them.

    Args:
        generators, scorers, learner: the parts.
        plan: what to do.
        tracer: records the lanes' waits.
        observer: hears of events.
        throttle: may hold batches back.
        resume: where to go on: the Learner has the policy of its version, the Generators hold no weights yet.
        checkpoints: gets the state every ``plan.checkpoint_every`` steps.

    Raises:
        RunStopped: a lag bound was broken, no group of a batch could be scored more often in a row than
            ``plan.max_failed_batches``, or a part answered something else than it was asked.
        ValueError: there are more Generators than prompts in a batch.
        UserError: ``resume`` is of another run.
        Exception: whatever a part raised; the other lanes are cancelled first.
    """
    if resume is not None:
        resume.check(plan, len(generators))
    lanes = _Lanes(generators, scorers, learner, plan, tracer, observer or Observer(), throttle, checkpoints, resume)
    try:
        async with lanes.tasks:
            for coroutine in lanes.coroutines():
                lanes.tasks.create_task(coroutine)
    except BaseExceptionGroup as group:
        error = first_error(group)
        lanes.observer.on_broken_off(lanes.counts)
        raise error from error.__cause__
    lanes.observer.on_finished(lanes.counts)


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group of tasks: the others were cancelled because of it."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


def new_assembler(plan: LoopPlan, shards: int) -> BatchAssembler:
    """Return what makes batches of scored shards."""
    return FirstComeDropStale(shards, plan.max_lag) if plan.lag_control == "drop" else InOrder(shards)


T = TypeVar("T")
_WAITS = Stage.WAIT_FOR_BATCH, Stage.WAIT_FOR_ROLLOUTS, Stage.WAIT_FOR_WEIGHTS, Stage.WAIT_FOR_ROOM


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
        throttle: Throttle | None,
        checkpoints: Checkpoints | None,
        resume: LoopState | None,
    ) -> None:
        self.generators, self.scorers, self.learner = generators, scorers, learner
        self.plan, self.tracer, self.observer = plan, tracer, observer
        self.throttle, self.checkpoints = throttle, checkpoints
        shards = len(generators)
        self.fresh = LoopState(seed=plan.seed, shards=shards, group_size=plan.group_size, lag_control=plan.lag_control)
        state = resume or self.fresh
        self.tasks = asyncio.TaskGroup()
        self.conditions = {wait: Condition() for wait in _WAITS}
        self.version = state.version  # of the Learner
        self.newest: WeightHandle | None = None  # published last
        self.loaded = LoadedVersions(generator.lane for generator in generators)
        self.evaluations = Evaluations(state.evaluated)
        self.evaluates_first = False  # a checkpoint waits for evaluations
        again = [item for item in state.pending if item.attempt]
        stream = [item for item in state.pending if not item.attempt]
        self.orders = Orders(plan, shards, state.issued, stream, state.unscored)
        self.unscored = deque(state.unscored)
        self.counts, self.dropped = replace(state.counts), state.dropped  # dropped since the previous step
        self.under_way = state.under_way  # groups ordered, and neither taken, dropped nor failed
        self.in_flight = state.in_flight  # rollouts whose generation has begun, and not scored
        self.room = plan.room * len(plan.batch_prompts(0))  # groups
        self.failed_batches = state.failed_batches  # taken last, one after another, without any group that had a reward
        self.sampler = DynamicSampler(plan, self.counts, state.open_shards, again)
        self.assembler = new_assembler(plan, shards)
        for part in state.waiting:
            self._drop(self.assembler.add(part, self.version))
        self.buffer = ReplayBuffer(plan.replay, plan.seed, state.replay) if plan.replay.capacity else None
        self.replaced_before = state.replaced  # deaths of parts before this call
        self.incarnations: dict[str, set[int]] = {}  # lane -> parts known to have stood there after the first
        self.learner_done = False

    def state(self) -> LoopState:
        """Return what another call goes on from; the Learner is between two steps, and its version is published."""
        return replace(
            self.fresh,
            version=self.version,
            evaluated=self.evaluations.told,
            issued=self.orders.issued,
            pending=(*self.orders.pending, *self.sampler.orders),
            unscored=self.orders.unscored,
            waiting=self.assembler.waiting,
            open_shards=self.sampler.open_shards,
            replay=None if self.buffer is None else self.buffer.state,
            counts=replace(self.counts),
            dropped=self.dropped,
            replaced=self.replaced_before + sum(map(len, self.incarnations.values())),
            failed_batches=self.failed_batches,
        )

    def coroutines(self) -> Iterator[asyncio._CoroutineLike[None]]:
        """One coroutine for each lane; the first Generator also evaluates."""
        yield self._learner_lane()
        for index, generator in enumerate(self.generators):
            yield self._generator_lane(generator, evaluates=index == 0)
        for scorer in self.scorers:
            yield self._scorer_lane(scorer)

    # ---- Generator

    async def _generator_lane(self, generator: Generator, evaluates: bool) -> None:
        for item in self.orders:
            await self._wait_and_sample_again(generator, Stage.WAIT_FOR_ROOM, self._has_room, item.step)
            if self.version == self.plan.steps:
                self._admit_one()
                break
            self.under_way += len(item.prompt_ids)
            self._admit_one()
            there = partial(self._is_published, self._needed(item))
            await self._wait_and_sample_again(generator, Stage.WAIT_FOR_WEIGHTS, there, item.step)
            self._hand_to_scorer(item, await self._sample(generator, item, evaluates))
        last = self.plan.steps
        if evaluates and self.plan.is_evaluated(last):
            there = partial(self._is_published, last)
            await self._wait_and_sample_again(generator, Stage.WAIT_FOR_WEIGHTS, there, last)
            await self._freshen(generator, last, last, evaluates)
        await self._wait_and_sample_again(generator, Stage.WAIT_FOR_WEIGHTS, lambda: self.learner_done, last)

    async def _wait_and_sample_again(
        self, generator: Generator, stage: Stage, condition: Callable[[], bool], step: int
    ) -> None:
        """Wait for ``condition``; what is to be sampled again goes first, since it belongs to an older batch.

        And so does an evaluation for which a checkpoint waits.
        """

        def comes_first() -> bool:
            return self._samples_again() or self._evaluates_first(generator)

        while comes_first() or not condition():
            if self._evaluates_first(generator):
                await self._evaluate_next(generator)
            elif self._samples_again():
                item = self.sampler.next_order()
                self.orders.take(item)
                self._admit_one()  # who was woken for room may be here instead
                self._hand_to_scorer(item, await self._sample(generator, item, evaluates=False))
            else:
                await self._wait(generator.lane, stage, lambda: comes_first() or condition(), step)

    def _samples_again(self) -> bool:
        """Whether groups are to be sampled again. What is still to be when the last step is made, nobody needs."""
        return bool(self.sampler.orders) and self.version < self.plan.steps

    def _evaluates_first(self, generator: Generator) -> bool:
        """Whether a checkpoint waits for an evaluation that this Generator has not begun."""
        is_asked = self.evaluates_first and generator is self.generators[0]
        return is_asked and any(handle.version < self.version for handle in self.evaluations.due)

    def _needed(self, item: WorkItem) -> int:
        """The oldest version with which an order may be started."""
        return 0 if self.plan.lag_control == "drop" else max(0, item.step - self.plan.max_lag)

    def _has_room(self) -> bool:
        """Whether another batch may be ordered. Without ``drop`` the lag bound alone keeps their number small."""
        if self.plan.lag_control != "drop" or self.version == self.plan.steps:
            return True
        return self.under_way < self.room

    async def _sample(self, generator: Generator, item: WorkItem, evaluates: bool) -> tuple[RolloutGroup, ...]:
        """Generate one order, again on a new part where the first one dies."""
        needed = self._needed(item)
        await self._freshen(generator, item.step, needed, evaluates)
        if self.throttle is not None:
            await self.throttle.acquire(item.step)
        self.in_flight += len(item.prompt_ids) * item.group_size
        while True:
            lag = self._lag(generator)
            if lag > self.plan.max_lag:
                raise RunStopped(
                    f"lag bound broken: {generator.lane} starts the batch of step {item.step} at policy version "
                    f"{self.version - lag} while the Learner is at {self.version}: lag {lag} is above max_lag "
                    f"{self.plan.max_lag}"
                )
            loaded = self.loaded[generator.lane]
            try:
                groups = await self._generate(generator, item)
            except PartReplaced as error:
                self._replaced(generator.lane, error)
                await self._freshen(generator, item.step, needed, evaluates)
            else:
                check_generated(generator.lane, item, groups, loaded)
                return groups

    async def _generate(self, generator: Generator, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Generate one order; under ``in_flight``, take each newer version while it is being generated."""
        if self.plan.lag_control != "in_flight":
            return await generator.generate(item)
        work, published = asyncio.ensure_future(generator.generate(item)), self.conditions[Stage.WAIT_FOR_WEIGHTS]

        def may_go_on() -> bool:
            return work.done() or self._newest().version > self.loaded[generator.lane]

        try:
            while not work.done():
                await published.until(may_go_on, or_done=work)
                if not work.done():
                    await self._load(generator, self._newest())
            return await work
        finally:
            work.cancel()

    async def _freshen(self, generator: Generator, step: int, needed: int, evaluates: bool) -> None:
        """Load the newest weights, waiting until version ``needed`` is there; evaluate what is due on the way.

        Under ``drop`` the Learner goes on while they are loaded, maybe beyond the bound: then load again.
        """
        await self._wait_until_published(generator.lane, needed, step)
        while evaluates and await self._evaluate_next(generator):
            pass
        await self._load(generator, self._newest())
        while self._lag(generator) > self.plan.max_lag:
            await self._wait_until_published(generator.lane, self.version - self.plan.max_lag, step)
            await self._load(generator, self._newest())

    def _is_published(self, version: int) -> bool:
        return self.newest is not None and self.newest.version >= version

    def _newest(self) -> WeightHandle:
        assert self.newest is not None, "the Learner publishes version 0 before anyone asks"
        return self.newest

    async def _load(self, generator: Generator, weight_handle: WeightHandle) -> None:
        if self.loaded[generator.lane] == weight_handle.version:
            return
        with self.loaded.in_use(weight_handle.version):
            measured = await self._answer(generator.lane, lambda: generator.load_weights(weight_handle))
        self.loaded.set(generator.lane, weight_handle.version)
        self.observer.on_version(generator.lane, weight_handle.version)
        if measured:
            self.observer.on_sync(generator.lane, weight_handle.version, measured)
        self._notify(Stage.WAIT_FOR_BATCH)

    async def _evaluate_next(self, generator: Generator) -> bool:
        """Sample the oldest evaluation that nobody has begun, with exactly its weights; return False if there is none.

        At lag 0 the step is complete only when the evaluation is scored, so the next batch waits for that.
        """
        if not self.evaluations.due:
            return False
        weight_handle = self.evaluations.due.popleft()
        version, item = weight_handle.version, self.plan.evaluation_order(weight_handle.version)

        async def load_and_generate() -> tuple[RolloutGroup, ...]:
            await self._load(generator, weight_handle)
            return await generator.generate(item)

        with self.loaded.in_use(version):
            groups = await self._answer(generator.lane, load_and_generate)
            check_generated(generator.lane, item, groups, version)
            self._hand_to_scorer(item, groups)
            if self.plan.is_synchronous:
                is_reported = lambda: version not in self.evaluations.unreported  # noqa: E731
                await self._wait(generator.lane, Stage.WAIT_FOR_WEIGHTS, is_reported, version)
        return True

    def _hand_to_scorer(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> None:
        if item.purpose is Purpose.TRAIN:
            self.counts.generated += count(groups)
            self.orders.sampled(item, groups)
        self.unscored.append((item, groups))
        self.conditions[Stage.WAIT_FOR_ROLLOUTS].notify_one()

    def _lag(self, generator: Generator) -> int:
        return self.version - self.loaded[generator.lane]

    # ---- Scorer

    async def _scorer_lane(self, scorer: Scorer) -> None:
        has_work = lambda: bool(self.unscored) or self.learner_done  # noqa: E731
        while True:
            await self._wait(scorer.lane, Stage.WAIT_FOR_ROLLOUTS, has_work, self.version)
            if self.learner_done:
                return
            await self._score(scorer, *self.unscored.popleft())
            self._notify(Stage.WAIT_FOR_BATCH)

    async def _score(self, scorer: Scorer, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> None:
        scored = await self._answer(scorer.lane, lambda: scorer.score(item, groups))
        check_scored(scorer.lane, item, groups, scored)
        if item.purpose is Purpose.EVALUATE:
            for version, evaluation in self.evaluations.scored(scored):
                self.observer.on_evaluation(version, evaluation)
            self._notify(Stage.WAIT_FOR_WEIGHTS)
            return
        self.orders.scored(item)
        self.in_flight -= len(item.prompt_ids) * item.group_size
        if scored.failed_groups:
            self.under_way -= scored.failed_groups
            self.counts.failed += count(groups) - count(scored.groups)
        shard = self.sampler.take_in(scored)
        if shard is None:
            self._notify(Stage.WAIT_FOR_WEIGHTS, Stage.WAIT_FOR_ROOM)
            return
        self._drop(self.assembler.add(shard, self.version))
        self._admit_one()

    # ---- Learner

    async def _learner_lane(self) -> None:
        await self._publish()
        for step in range(self.version, self.plan.steps):
            taken_in = await self._take_in_shards(step)
            ready = partial(self.assembler.ready, step)
            await self._wait(self.learner.lane, Stage.WAIT_FOR_BATCH, ready, step)
            await self._train_step(step, taken_in)
            if self.plan.is_policy_saved(self.version):
                await self._wait_until_published(self.learner.lane, self.version, self.version)
                await self.learner.save_policy(self.version, last=False)
            if self.plan.is_checkpointed(self.version):
                await self._save(step)
        await self._wait_until_published(self.learner.lane, self.plan.steps, self.plan.steps)
        evaluated = lambda: not self.evaluations.unreported  # noqa: E731
        await self._wait(self.learner.lane, Stage.WAIT_FOR_BATCH, evaluated, self.plan.steps)
        await self.learner.save_policy(self.version, last=True)
        self.learner_done = True
        self._notify(*_WAITS)

    async def _take_in_shards(self, step: int) -> set[int]:
        """With ``stream``, take in all shards of a batch but the last, each as soon as it may be; return which."""
        taken_in = set[int]()

        def next_shard() -> int | None:
            there = self.assembler.parts(step)
            if self.plan.stream == "in_order":
                return len(taken_in) if len(taken_in) in there else None
            return next((shard for shard in there if shard not in taken_in), None)

        while self.plan.stream is not None and len(taken_in) < len(self.generators) - 1:
            is_there = lambda: next_shard() is not None  # noqa: E731
            await self._wait(self.learner.lane, Stage.WAIT_FOR_BATCH, is_there, step)
            shard = next_shard()
            assert shard is not None
            if groups := self.assembler.parts(step)[shard].groups:
                self._check_consumption(step, groups)
                await self.learner.accumulate(step, groups)
            taken_in.add(shard)
        return taken_in

    async def _train_step(self, step: int, taken_in: Collection[int]) -> None:
        """Train on the batch that is ready, of which the Learner may have taken in shards. Its handles end with this
        call, so that while the Learner waits for the next batch nobody but the replay buffer keeps rollouts alive.
        """
        batch = self._take_batch(step)
        taken = self._choose(step, batch)
        waiting = count(group for part in self.assembler.waiting for group in part.groups) + self.sampler.waiting
        in_flight = self.in_flight
        rest = tuple(item.group for item in taken)
        if taken_in:
            rest = tuple(group for shard, part in enumerate(batch) if shard not in taken_in for group in part.groups)
        result = await self.learner.update(step, rest)
        await self._wait_until_published(self.learner.lane, step, step)
        self.counts.trained += count(item.group for item in taken if item.uses == 1)
        self.counts.trained_again += count(item.group for item in taken if item.uses > 1)
        self.version = step + 1
        self._drop(self.assembler.expire(self.version))
        self._admit_one()
        replay = None if self.buffer is None else (self.buffer.stats, len(self.buffer))

        async def publish_and_report() -> None:
            weight_handle = await self._publish()
            if self.plan.is_synchronous:
                await self._wait(self.learner.lane, Stage.WAIT_FOR_BATCH, self._weights_in_use, step)
            report = StepReport(
                step, batch, taken, result, weight_handle, self.dropped, waiting.rollouts, in_flight, replay
            )
            self.dropped = Count()
            self.observer.on_step(report)

        if self.plan.overlapped_publish:
            self.tasks.create_task(publish_and_report())
        else:
            await publish_and_report()

    async def _wait_until_published(self, lane: str, version: int, step: int) -> None:
        await self._wait(lane, Stage.WAIT_FOR_WEIGHTS, partial(self._is_published, version), step)

    async def _save(self, step: int) -> None:
        """Hand over what a call that goes on needs, and with it the right to save the policy."""
        await self._wait_until_published(self.learner.lane, self.version, self.version)
        self.evaluates_first = True
        self._notify(Stage.WAIT_FOR_WEIGHTS, Stage.WAIT_FOR_ROOM)
        told = lambda: all(version >= self.version for version in self.evaluations.unreported)  # noqa: E731
        await self._wait(self.learner.lane, Stage.WAIT_FOR_BATCH, told, step)
        self.evaluates_first = False
        if self.checkpoints is not None:
            await self.checkpoints.save(self.state())

    def _take_batch(self, step: int) -> Batch:
        """Take the batch and check its lag. One without any group is taken too, so many times in a row; its training
        step has nothing to train on, but for what a replay buffer holds, and publishes the same policy again."""
        batch = self.assembler.take(step)
        groups = [group for part in batch for group in part.groups]
        self.failed_batches = 0 if groups else self.failed_batches + 1
        if self.failed_batches > self.plan.max_failed_batches:
            failure = next((part.failure for part in batch if part.failure is not None), None)
            raise RunStopped(
                f"no group of a rollout batch could be scored; the first failure: {failure} (batches in a row: "
                f"{self.failed_batches}; the run goes on over at most max_failed_batches of them, "
                f"{self.plan.max_failed_batches})"
            )
        if groups:
            self._check_consumption(step, groups)
        self.under_way -= len(groups)
        self._admit_one()
        return batch

    def _choose(self, step: int, batch: Batch) -> tuple[ReplayDraw, ...]:
        """Return what this step trains on: the batch itself, or a sample of the buffer that the batch has entered."""
        fresh = [group for part in batch for group in part.groups]
        if self.buffer is None:
            return tuple(ReplayDraw(group, 1, self.version - group.min_version) for group in fresh)
        self.buffer.add(fresh, self.version)
        taken = self.buffer.sample(self.version)
        for item in taken:
            if item.age > self.buffer.max_age:
                raise RunStopped(
                    f"age bound broken: training step {step} at policy version {self.version} would train on a "
                    f"replayed group of version {item.group.min_version}: age {item.age} is above replay.max_age "
                    f"{self.buffer.max_age}"
                )
        return taken

    async def _publish(self) -> WeightHandle:
        needed = {handle.version for handle in self.evaluations.due} | self.loaded.needed.keys()
        needed |= set() if self.newest is None else {self.newest.version}
        weight_handle = await self.learner.publish_weights(self.version, frozenset(needed))
        check_published(self.learner.lane, self.version, weight_handle)
        self.newest = weight_handle
        if self.plan.is_evaluated(weight_handle.version):
            self.evaluations.add(weight_handle)
        self.observer.on_version(self.learner.lane, weight_handle.version)
        self._notify(Stage.WAIT_FOR_WEIGHTS)
        return weight_handle

    def _weights_in_use(self) -> bool:
        """Whether every Generator with work left holds the newest weights, and what is due was evaluated."""
        last = self.version == self.plan.steps
        return (last or self.loaded.oldest >= self.version) and not self.evaluations.unreported

    def _check_consumption(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        oldest = min(group.min_version for group in groups)
        if self.version - oldest > self.plan.max_lag:
            raise RunStopped(
                f"lag bound broken: training step {step} at policy version {self.version} would consume a rollout "
                f"whose oldest token is of version {oldest}: lag {self.version - oldest} is above max_lag "
                f"{self.plan.max_lag}"
            )

    # ---- all

    async def _answer(self, lane: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the part on a lane; where it died, the one in its place."""
        while True:
            try:
                return await ask()
            except PartReplaced as error:
                self._replaced(lane, error)

    def _replaced(self, lane: str, error: PartReplaced) -> None:
        """A new part, without weights, stands on this lane. Where a load and a batch are under way at once, the same
        death may be heard of twice, and an older one after a newer one.
        """
        known = self.incarnations.setdefault(lane, set())
        if error.incarnation in known:
            return
        if lane in self.loaded and error.incarnation > max(known, default=0):
            self.loaded.set(lane, NONE)
        known.add(error.incarnation)
        self.observer.on_replaced(lane, error.reason)

    def _drop(self, groups: Sequence[RolloutGroup]) -> None:
        if groups:
            dropped = count(groups)
            self.under_way -= len(groups)
            self.dropped += dropped
            self.counts.dropped += dropped

    def _admit_one(self) -> None:
        """Have one Generator order a batch if there is room for it; it lets in the next."""
        if self._has_room():
            self.conditions[Stage.WAIT_FOR_ROOM].notify_one()

    def _notify(self, *waits: Stage) -> None:
        for wait in waits:
            self.conditions[wait].notify()

    async def _wait(self, lane: str, stage: Stage, condition: Callable[[], bool], step: int) -> None:
        """Wait for ``condition`` under a wait span; no span where it holds already."""
        if not condition():
            with self.tracer.span(lane, stage, step, self.version):
                await self.conditions[stage].until(condition)
