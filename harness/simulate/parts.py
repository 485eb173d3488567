"""Simulated Generator, Scorer and Learner: they take the time that a cost source says, and pass metadata on.

What their calls cost comes from a ``CostSource``: a machine profile (``ProfileCosts``), a recorded run
(``harness.simulate.whatif.replay.RecordedCosts``), or constants (``tests.stand_ins.simulated_parts``). They hold the
loop to its side of the protocols: generating without weights, or loading weights that the Learner was allowed to
forget, is an ``AssertionError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from harness.core.seeds import derive_seed
from harness.core.trace import NullTracer, Stage, Tracer
from harness.core.types import Metrics, Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.loop.state import LoopState
from harness.scenario.schema import Scenario
from harness.simulate.cost_model import CostModel
from harness.simulate.features import Features, Group, Workload, sizes_of
from harness.simulate.ranks import RankCosts
from harness.simulate.timeline import CallPlan, StagePlan, Times, make_stage

Sampled = tuple[int | None, Sequence[int]]
"""Tokens of a prompt, None where they are not known, and of each response to it."""
Sample = Callable[[WorkItem], Sequence[Sampled]]
"""What a Generator samples for a work item, prompt by prompt."""
Score = Callable[[WorkItem, tuple[RolloutGroup, ...]], ScoredBatch]
"""What a Scorer says of the groups of a work item."""


class CostSource(Protocol):
    """Says how long the calls to one part take."""

    def load(self, version: int) -> CallPlan:
        """Return a Generator's call that loads a policy version."""

    def generate(self, item: WorkItem, sampled: Sequence[Sampled]) -> CallPlan:
        """Return a Generator's call that samples these rollouts, for training or for an evaluation."""

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        """Return a Scorer's call."""

    def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        """Return the Learner's call that takes in these groups of a batch."""

    def update(self, step: int, groups: tuple[RolloutGroup, ...], taken_in: int = 0) -> CallPlan:
        """Return the Learner's call that trains on these groups, after it has taken in so many others of the batch."""

    def publish(self, version: int) -> CallPlan:
        """Return the Learner's call that publishes a policy version."""

    def save_policy(self, version: int) -> CallPlan:
        """Return the Learner's call that saves a policy version."""

    def checkpoint(self, version: int) -> CallPlan:
        """Return the Learner's call that makes a checkpoint; of an asynchronous one, what the Learner waits for."""

    def write_checkpoint(self, version: int) -> CallPlan:
        """Return what is done of an asynchronous checkpoint while the Learner trains on."""


class Timeline(Protocol):
    """Takes the time of the calls to one part; see ``harness.simulate.timeline.CallTimeline``."""

    @property
    def lane(self) -> str:
        """Of the part."""

    async def run(self, plan: CallPlan, step: int, version: int, *, loading: bool = False) -> Times:
        """Take the time of a call, and return the times of its stages."""


class SimulatedGenerator:
    """A Generator that takes time. Weights may be loaded while it generates.

    Args:
        timeline: makes its calls.
        costs: of the calls.
        sample: what it samples.

    Attributes:
        version: that it holds; -1 before the first one.
    """

    def __init__(self, timeline: Timeline, costs: CostSource, sample: Sample) -> None:
        self.timeline, self._costs, self._sample, self.lane = timeline, costs, sample, timeline.lane
        self.version = -1
        self._sampling = False
        self._held: list[tuple[float, int]] = []  # (since, version), for the shares of versions while it samples

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        """Take the time of a transfer and a load; nothing is measured.

        Raises:
            AssertionError: the Learner was told that nobody needs this version any more.
        """
        version = weight_handle.version
        _check_readable(weight_handle)
        plan = self._costs.load(version)
        times = await self.timeline.run(plan, version, version, loading=True)
        _check_readable(weight_handle)
        self.version = version
        if self._sampling:
            loaded = [end for each, (_, end) in zip(plan.stages, times, strict=True) if each.stage is Stage.WEIGHT_LOAD]
            self._held.append((loaded[-1] if loaded else asyncio.get_running_loop().time(), version))
        return {}

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        """Take the time of sampling and return groups without data.

        Raises:
            AssertionError: no weights were loaded.
        """
        assert self.version >= 0, f"{self.lane} generates for step {item.step} without weights"
        oldest = self.version
        self._held, self._sampling = [(-1.0, oldest)], True
        sampled = self._sample(item)
        times = await self.timeline.run(self._costs.generate(item, sampled), item.step, oldest)
        self._sampling = False
        mean = None if self.version == oldest else self._mean_version(times[0][0], times[-1][1])
        return tuple(
            [
                RolloutGroup(
                    prompt_id,
                    item.step,
                    oldest,
                    self.version,
                    tuple(lengths),
                    mean_version=mean,
                    prompt_length=prompt,
                    attempt=item.attempt,
                )
                for prompt_id, (prompt, lengths) in zip(item.prompt_ids, sampled, strict=True)
            ]
        )

    def _mean_version(self, start: float, end: float) -> float:
        """Mean of the versions held while it sampled, each weighted by its time."""
        since = [(min(max(at, start), end), version) for at, version in self._held]
        until = [at for at, _ in since[1:]] + [end]
        area = sum((stop - at) * version for (at, version), stop in zip(since, until, strict=True))
        return area / (end - start) if end > start else float(self._held[0][1])


class SimulatedScorer:
    """A Scorer that takes time.

    Args:
        timeline: makes its calls.
        costs: of the calls.
        score: what it says of the groups.
    """

    def __init__(self, timeline: Timeline, costs: CostSource, score: Score) -> None:
        self.timeline, self._costs, self._score, self.lane = timeline, costs, score, timeline.lane

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Take the time of scoring and return what is said of the groups."""
        await self.timeline.run(self._costs.score(item, groups), item.step, groups[0].min_version)
        return self._score(item, groups)


class SimulatedLearner:
    """A Learner that takes time; it saves nothing and measures nothing.

    Args:
        timeline: makes its calls.
        costs: of the calls.
        optimizer_steps: of a training step.
        weight_bytes, weight_tensors: of a weight sync.
        publisher: makes the calls that publish while others train; None: they take turns. The wait of a training step's
            first optimizer step for that is at the end of its share of the update.
        tracer: records that wait, and the one for a checkpoint that is still being written.
        writer: writes checkpoints while others train; None: the Learner waits until they are whole.

    Attributes:
        readable: versions that a Generator may load. A publish forgets, when it begins, all that are not still needed.
    """

    def __init__(
        self,
        timeline: Timeline,
        costs: CostSource,
        optimizer_steps: int = 1,
        weight_bytes: int = 0,
        weight_tensors: int = 1,
        publisher: Timeline | None = None,
        tracer: Tracer | None = None,
        writer: Timeline | None = None,
    ) -> None:
        self.timeline, self._costs, self.lane = timeline, costs, timeline.lane
        self._publisher, self._tracer = publisher, tracer or NullTracer()
        self._writer = writer
        self._writing: asyncio.Task[Times] | None = None
        self._copied = asyncio.Event()
        self.optimizer_steps, self._weights = optimizer_steps, (weight_bytes, weight_tensors)
        self.readable: set[int] = set()
        self._taken_in = 0

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        """Take the time of a part of a training step."""
        await self.timeline.run(self._costs.accumulate(step, groups), step, step)
        self._taken_in += len(groups)

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Take the time of a training step, or of what is left of it."""
        plan = self._costs.update(step, groups, self._taken_in)
        self._taken_in = 0
        if self._publisher is not None:
            first, plan = _at_first_optimizer_step(plan, self.optimizer_steps)
            await self.timeline.run(first, step, step)
            if not self._copied.is_set():
                with self._tracer.span(self.lane, Stage.WAIT_FOR_WEIGHTS, step, step):
                    await self._copied.wait()
        if plan.stages or plan.response_s or self._publisher is None:
            await self.timeline.run(plan, step, step)
        self._copied.clear()
        return UpdateResult(step + 1, self.optimizer_steps, {})

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        """Take the time of a publish.

        Raises:
            AssertionError: a version that is still needed was given up before.
        """
        assert still_needed <= self.readable, f"versions {set(still_needed - self.readable)} are gone already"
        self.readable &= still_needed
        plan, timeline = self._costs.publish(version), self._publisher or self.timeline
        if self._publisher is not None:
            copy, *verifying = plan.stages
            await timeline.run(CallPlan((copy,), plan.request_s, 0.0, plan.delay_s), version, version)
            self._copied.set()
            plan = CallPlan(verifying, 0.0, plan.response_s)
        if plan.stages or plan.response_s or self._publisher is None:
            await timeline.run(plan, version, version)
        self.readable.add(version)
        return WeightHandle(version, *self._weights, payload=self.readable)

    async def save_policy(self, version: int, *, last: bool) -> None:
        """Take the time of saving the policy; the last one comes behind all checkpoints."""
        if last:
            await self._written(version)
        await self.timeline.run(self._costs.save_policy(version), version, version)

    async def save(self, state: LoopState) -> None:
        """Take the time of a checkpoint; see ``loop.state.Checkpoints``. One is written at a time."""
        version = state.version
        await self._written(version)
        await self.timeline.run(self._costs.checkpoint(version), version, version)
        if self._writer is not None:
            plan = self._costs.write_checkpoint(version)
            self._writing = asyncio.create_task(self._writer.run(plan, version, version))

    async def _written(self, version: int) -> None:
        writing, self._writing = self._writing, None
        if writing is not None and not writing.done():
            with self._tracer.span(self.lane, Stage.WAIT_FOR_CHECKPOINT, version, version):
                await writing


def _at_first_optimizer_step(plan: CallPlan, optimizer_steps: int) -> tuple[CallPlan, CallPlan]:
    """Return what a training step does until its first optimizer step, and from there on; these take equally long."""
    at = next(place for place, each in enumerate(plan.stages) if each.stage is Stage.UPDATE)
    update, after = plan.stages[at], list(plan.stages[at + 1 :])
    first_s = update.seconds / optimizer_steps
    if optimizer_steps > 1:
        after = [update._replace(seconds=update.seconds - first_s), *after]
    before = [*plan.stages[:at], update._replace(seconds=first_s)]
    return CallPlan(before, plan.request_s, 0.0, plan.delay_s), CallPlan(after, 0.0, plan.response_s)


def _check_readable(weight_handle: WeightHandle) -> None:
    assert weight_handle.payload is None or weight_handle.version in weight_handle.payload, (
        f"version {weight_handle.version} is gone: the Learner was told that only {weight_handle.payload} are needed"
    )


def with_rewards(group: RolloutGroup, rewards: tuple[float, ...]) -> RolloutGroup:
    """Return a group with rewards and without data, several times as fast as ``dataclasses.replace`` does."""
    return RolloutGroup(
        group.prompt_id,
        group.step,
        group.min_version,
        group.max_version,
        group.lengths,
        None,
        rewards,
        group.mean_version,
        group.prompt_length,
        group.attempt,
    )


def stage_of(item: WorkItem, training: Stage) -> Stage:
    """Return the stage of a work item: ``evaluate``, or the one that it has for training."""
    return Stage.EVALUATE if item.purpose is Purpose.EVALUATE else training


class ProfileCosts:
    """The calls to one part at the seconds of a machine profile; see ``CostSource``.

    A paced engine or model takes the time that its settings say, and only waits meanwhile.

    Args:
        lane: of the part.
        seconds: of every stage.
        work: what stages count.
        delays: seconds by which each span of a stage is made longer.
        steady: whether as many rollouts always take as long in transit, so that it is asked for once.
        ranks: of a Learner that has several.
    """

    def __init__(
        self,
        lane: str,
        seconds: CostModel,
        work: Workload,
        delays: Mapping[str, float],
        steady: bool = False,
        ranks: RankCosts | None = None,
    ) -> None:
        self._lane, self._seconds, self._work, self._delays, self._steady = lane, seconds, work, delays, steady
        self._ranks = ranks
        self._pace = _pace(work.scenario)
        self._transits: dict[tuple[str, str, int, int], float] = {}
        self._synced = False

    def load(self, version: int) -> CallPlan:
        """See ``CostSource``; the first call counts as the part's first weight sync."""
        stages = self._sync((Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD), version, "generator")
        request_s = 0.0 if self._work.two_sided else self._transit("load", "there", version)  # else it is the transfer
        return CallPlan(stages, request_s, self._transit("load", "back", version))

    def generate(self, item: WorkItem, sampled: Sequence[Sampled]) -> CallPlan:
        groups: Sequence[Group] = [(prompt or 0, lengths) for prompt, lengths in sampled]
        if self._pace is None:
            seconds = self._seconds.seconds("generate", self._lane, item.step, self._work.generate(groups))
        else:
            seconds = self._pace(item)
        stage = self._stage(stage_of(item, Stage.GENERATE), seconds, self._pace is None)
        request_s = self._transit("generate", "there", item.step)
        return CallPlan((stage,), request_s, self._transit("generate", "back", item.step, groups))

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        counted = sizes_of(groups)
        seconds = self._seconds.seconds("score", self._lane, item.step, self._work.batch(counted))
        stage = self._stage(stage_of(item, Stage.SCORE), seconds)
        request_s = self._transit("score", "there", item.step, counted)
        return CallPlan((stage,), request_s, self._transit("score", "back", item.step, counted))

    def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        training = self._work.training | {Stage.UPDATE: self._work.accumulate}
        return self._train(step, groups, training, len(groups))

    def update(self, step: int, groups: tuple[RolloutGroup, ...], taken_in: int = 0) -> CallPlan:
        training = self._work.training if groups or not taken_in else {Stage.UPDATE: self._work.update}
        plan = self._train(step, groups, training, self._work.scenario.prompts_per_batch - taken_in)
        if not self._proves_when_trained:
            return plan
        units = self._work.sync(first=False)
        verify_s = self._seconds.seconds("weight_verify", self._lane, step + 1, units, part="learner")
        return plan._replace(stages=[*plan.stages, self._stage(Stage.WEIGHT_VERIFY, verify_s)])

    def _train(
        self,
        step: int,
        groups: tuple[RolloutGroup, ...],
        training: Mapping[Stage, Callable[[Sequence[Group]], Features]],
        paced: int,
    ) -> CallPlan:
        """Return a call that trains; a paced Learner takes the time of so many groups of a batch."""
        counted, model, scenario = sizes_of(groups), self._model, self._work.scenario
        if model.type == "paced":
            stages = [self._stage(stage, 0.0) for stage in training if stage is not Stage.UPDATE]
            update_s = scenario.epochs_per_batch * model.update_s * paced / scenario.prompts_per_batch
            stages.append(self._stage(Stage.UPDATE, update_s, works=False))
        else:
            shared = {} if self._ranks is None else self._ranks.stages(step, counted)
            stages = [
                self._stage(
                    stage,
                    shared[stage].seconds
                    if stage in shared
                    else self._seconds.seconds(stage, self._lane, step, count(counted)),
                )
                for stage, count in training.items()
            ]
        request_s = self._transit("update", "there", step, counted)
        return CallPlan(stages, request_s, self._transit("update", "back", step))

    def publish(self, version: int) -> CallPlan:
        """See ``CostSource``; the first call counts as the run's first weight sync."""
        proven = version > 0 and self._proves_when_trained
        stages = self._sync((Stage.WEIGHT_PUBLISH,), version, "learner", proven)
        if self._ranks is None or self._ranks.gathers:
            gathered_s = 0.0 if self._ranks is None else self._ranks.gather_s(version)
            published = stages[0]._replace(seconds=stages[0].seconds + gathered_s)
            return self._as_publish([published, *stages[1:]], version)
        # rank 0 makes room, all ranks write, rank 0 makes the version readable: two calls more, between the stages
        further_s = self._transit("publish", "there", version) + self._transit("publish", "back", version)
        return self._as_publish([make_stage((None, 2 * further_s, False)), *stages], version)

    def save_policy(self, version: int) -> CallPlan:
        """See ``CostSource``; where the policy is not saved, the call alone takes time."""
        stages = []
        if self._work.scenario.save_policy and self._model.type != "paced":
            seconds = self._seconds.seconds("save_policy", self._lane, version, self._work.sync(first=False))
            gathered_s = 0.0 if self._ranks is None else self._ranks.gather_s(version)
            stages = [self._stage(Stage.SAVE_POLICY, seconds + gathered_s)]
        return self._as_publish(stages, version)  # a call that carries no rollouts either

    def checkpoint(self, version: int) -> CallPlan:
        units = self._work.checkpoint(copied=self._work.scenario.checkpoint.asynchronous)
        seconds = self._seconds.seconds("checkpoint", self._lane, version, units)
        return self._as_publish([self._stage(Stage.CHECKPOINT, seconds)], version)

    def write_checkpoint(self, version: int) -> CallPlan:
        units = self._work.checkpoint(copied=False)
        seconds = self._seconds.seconds("checkpoint_write", self._lane, version, units)
        return CallPlan([self._stage(Stage.CHECKPOINT_WRITE, seconds)])

    def _as_publish(self, stages: Sequence[StagePlan], version: int) -> CallPlan:
        request_s = self._transit("publish", "there", version)
        return CallPlan(stages, request_s, self._transit("publish", "back", version))

    @property
    def _proves_when_trained(self) -> bool:
        return self._work.proves and self._work.scenario.learner.overlapped_publish

    def _sync(self, stages: Sequence[Stage], version: int, part: str, proven: bool = False) -> list[StagePlan]:
        first, self._synced = not self._synced, True
        found = []
        for stage in (*stages, *[Stage.WEIGHT_VERIFY] * (self._work.verifications - proven)):
            units = self._work.sync_stage(stage, part, first)
            found.append(self._stage(stage, self._seconds.seconds(stage, self._lane, version, units, part=part)))
        return found

    def _stage(self, stage: Stage, seconds: float, works: bool = True) -> StagePlan:
        """Return a stage of a call, made longer where the scenario says so."""
        return make_stage((stage, seconds + self._delays.get(stage, 0.0), works))

    def _transit(self, method: str, way: str, step: int, groups: Sequence[Group] = ()) -> float:
        key = method, way, len(groups), sum([len(lengths) for _, lengths in groups])
        seconds = self._transits.get(key)
        if seconds is None:
            seconds = self._seconds.seconds("call", self._lane, step, self._work.call(groups), call=method, way=way)
            if self._steady:
                self._transits[key] = seconds
        return seconds

    @property
    def _model(self) -> Any:
        return self._work.scenario.model


def _pace(scenario: Scenario) -> Callable[[WorkItem], float] | None:
    """Return the seconds of an order of a paced engine, as ``harness.engines.paced`` draws them; None for others."""
    engine: Any = scenario.engine
    if engine.type != "paced":
        return None
    generate_s, spread, prompts = engine.generate_s, engine.spread, scenario.prompts_per_batch

    def seconds(item: WorkItem) -> float:
        share = len(item.prompt_ids) / prompts
        drawn = np.random.default_rng(derive_seed(item.seed + item.first, "pace")).uniform(-1, 1) if spread else 0.0
        return float(generate_s * share * (1 + spread * drawn))

    return seconds
