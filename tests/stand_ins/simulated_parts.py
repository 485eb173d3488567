"""Simulated parts whose stages take constant seconds, on whatever clock the event loop has.

``SimulatedGenerator``, ``SimulatedScorer`` and ``SimulatedLearner`` are those of ``harness.simulate.parts``; here are a
cost source and a timeline for them that need neither a machine profile nor a recording.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.core.protocols import Generator, Learner, Scorer
from harness.core.seeds import derive_seed
from harness.core.trace import RecordingTracer, Stage, Tracer
from harness.core.types import Metric, Metrics, Purpose, RolloutGroup, ScoredBatch, WorkItem
from harness.loop import LoopPlan
from harness.run.parts import RunningParts, StopSignal
from harness.scenario.lanes import lanes_of, publisher_lane, writer_lane
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.simulate.parts import (
    Sampled,
    SimulatedGenerator,
    SimulatedLearner,
    SimulatedScorer,
    stage_of,
    with_rewards,
)
from harness.simulate.timeline import CallPlan, Times, finish, make_stage

G = TypeVar("G", bound=SimulatedGenerator)
L = TypeVar("L", bound=SimulatedLearner)

Cost = Callable[[int], float]
"""Seconds a stage takes at a given training step (or policy version)."""

Lengths = Callable[[WorkItem, int], tuple[int, ...]]
"""Response tokens of each of a group's rollouts, for a work item and one of its prompt ids."""

Fails = Callable[[WorkItem, int], bool]
"""Whether the reward function fails on the group of this prompt id."""


def constant(seconds: float) -> Cost:
    """The cost model of a stage that always takes the same time."""
    return lambda step: seconds


FREE = constant(0.0)
REWARD = 0.5


def equal_lengths(tokens: int) -> Lengths:
    """Responses that all have the same length."""
    return lambda item, prompt_id: (tokens,) * item.group_size


def varying_lengths(shortest: int, longest: int) -> Lengths:
    """Responses whose lengths are drawn uniformly, bounds included, from the item's seed and the prompt."""

    def lengths(item: WorkItem, prompt_id: int) -> tuple[int, ...]:
        rng = random.Random(derive_seed(item.seed, prompt_id))
        return tuple(rng.randint(shortest, longest) for _ in range(item.group_size))

    return lengths


@types.coroutine
def _yield() -> abc.Generator[None, None, None]:
    """Let others run once, as ``asyncio.sleep(0)`` does."""
    yield


@dataclass(frozen=True)
class SleepingTimeline:
    """Sleeps for each stage of a call, under its span."""

    tracer: Tracer
    lane: str

    async def run(self, plan: CallPlan, step: int, version: int, *, loading: bool = False) -> Times:
        loop = asyncio.get_running_loop()
        times: Times = []
        end = loop.time()
        for stage, seconds, _ in plan.stages:
            with self.tracer.span(self.lane, stage or Stage.WAIT_FOR_CALL, step, version):
                if seconds > 0:  # as ``asyncio.sleep`` does, without a coroutine of its own
                    done = loop.create_future()
                    timer = loop.call_later(seconds, finish, done)
                    try:
                        await done
                    finally:
                        timer.cancel()
                else:
                    await _yield()
            start, end = end, loop.time()
            times.append((start, end))
        return times


@dataclass(frozen=True)
class ConstantCosts:
    """The calls to a part whose stages take the seconds that are given here; see ``harness.simulate.parts``."""

    generate_cost: Cost = FREE
    evaluate_cost: Cost = FREE
    transfer_cost: Cost = FREE
    load_cost: Cost = FREE
    score_cost: Cost = FREE
    update_cost: Cost = FREE
    publish_cost: Cost = FREE
    epochs_per_batch: int = 1
    groups: int = 1
    checkpoint_s: float = 0.0
    write_s: float = 0.0

    def load(self, version: int) -> CallPlan:
        transfer = make_stage((Stage.WEIGHT_TRANSFER, self.transfer_cost(version), True))
        load = make_stage((Stage.WEIGHT_LOAD, self.load_cost(version), True))
        return CallPlan((transfer, load))

    def generate(self, item: WorkItem, sampled: Sequence[Sampled]) -> CallPlan:
        cost = self.evaluate_cost if item.purpose is Purpose.EVALUATE else self.generate_cost
        return _call(stage_of(item, Stage.GENERATE), cost(item.step))

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        return _call(stage_of(item, Stage.SCORE), self.score_cost(item.step))

    def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        """See ``CostSource``: the share of these groups in a batch of ``groups``."""
        return _call(Stage.UPDATE, self.update_cost(step) * len(groups) / self.groups)

    def update(self, step: int, groups: tuple[RolloutGroup, ...], taken_in: int = 0) -> CallPlan:
        """See ``CostSource``: ``epochs_per_batch`` passes."""
        share = (self.groups - taken_in) / self.groups
        return _call(Stage.UPDATE, self.epochs_per_batch * self.update_cost(step) * share)

    def publish(self, version: int) -> CallPlan:
        return _call(Stage.WEIGHT_PUBLISH, self.publish_cost(version))

    def save_policy(self, version: int) -> CallPlan:
        return CallPlan(())

    def checkpoint(self, version: int) -> CallPlan:
        return _call(Stage.CHECKPOINT, self.checkpoint_s)

    def write_checkpoint(self, version: int) -> CallPlan:
        return _call(Stage.CHECKPOINT_WRITE, self.write_s)


def _call(stage: Stage, seconds: float) -> CallPlan:
    return CallPlan((make_stage((stage, seconds, True)),))


def simulated_generator(
    tracer: Tracer,
    generate_cost: Cost,
    evaluate_cost: Cost = FREE,
    transfer_cost: Cost = FREE,
    load_cost: Cost = FREE,
    lane: str = "generator",
    lengths: Lengths = equal_lengths(8),  # noqa: B008 (a pure function)
    of: type[G] = SimulatedGenerator,  # type: ignore[assignment]
) -> G:
    """Return a Generator whose stages take these seconds; ``of`` may be a class of its own."""
    costs = ConstantCosts(
        generate_cost=generate_cost, evaluate_cost=evaluate_cost, transfer_cost=transfer_cost, load_cost=load_cost
    )

    def sample(item: WorkItem) -> list[Sampled]:
        return [(None, lengths(item, prompt_id)) for prompt_id in item.prompt_ids]

    return of(SleepingTimeline(tracer, lane), costs, sample)


def simulated_scorer(
    tracer: Tracer,
    score_cost: Cost,
    lane: str = "scorer",
    fails: Fails = lambda item, prompt_id: False,
    is_flat: Fails = lambda item, prompt_id: True,
) -> SimulatedScorer:
    """Return a Scorer of which every reward is 0.5; a group on which ``fails`` holds has none.

    Where ``is_flat`` does not hold, the first rollout of a group gets 1 more.
    """

    def rewards(item: WorkItem, group: RolloutGroup) -> tuple[float, ...]:
        first = REWARD if is_flat(item, group.prompt_id) else REWARD + 1
        return (first, *[REWARD] * (len(group.lengths) - 1))

    def score(item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        failed = [group.prompt_id for group in groups if fails(item, group.prompt_id)]
        kept = [group for group in groups if group.prompt_id not in failed]
        scored = tuple([with_rewards(group, rewards(item, group)) for group in kept])
        failure = f"the reward of prompt {failed[0]} failed" if failed else None
        metrics = _metrics(item, scored) if scored else {}
        return ScoredBatch(item, scored, metrics, failed_groups=len(failed), failure=failure)

    return SimulatedScorer(SleepingTimeline(tracer, lane), ConstantCosts(score_cost=score_cost), score)


def _metrics(item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Metrics:
    evaluating = item.purpose is Purpose.EVALUATE
    rollouts = sum([len(group.lengths) for group in groups])
    mean_length = sum([group.num_tokens for group in groups]) / rollouts
    return {
        "validation/reward" if evaluating else "reward/total": Metric(REWARD, count=rollouts),
        "validation/response_length" if evaluating else "response_length": Metric(mean_length, count=rollouts),
    }


def simulated_learner(
    tracer: Tracer,
    update_cost: Cost,
    publish_cost: Cost = FREE,
    epochs_per_batch: int = 1,
    lane: str = "learner",
    of: type[L] = SimulatedLearner,  # type: ignore[assignment]
    overlapped: bool = False,
    groups: int = 1,
    checkpoint_s: float = 0.0,
    write_s: float = 0.0,
) -> L:
    """Return a Learner of ``epochs_per_batch`` passes of ``update_cost`` each; ``of`` may be a class of its own.

    Parts of a batch of ``groups`` groups take their share. A checkpoint holds it up for ``checkpoint_s``, and is
    written in ``write_s`` beside it.
    """
    costs = ConstantCosts(
        update_cost=update_cost,
        publish_cost=publish_cost,
        epochs_per_batch=epochs_per_batch,
        groups=groups,
        checkpoint_s=checkpoint_s,
        write_s=write_s,
    )
    publisher = SleepingTimeline(tracer, publisher_lane(lane)) if overlapped else None
    writer = SleepingTimeline(tracer, writer_lane(lane)) if write_s else None
    return of(SleepingTimeline(tracer, lane), costs, epochs_per_batch, 0, 1, publisher, tracer, writer)


@dataclass
class SimulatedParts(RunningParts):
    """Parts without processes, logs, profiles or a GPU."""

    generators: tuple[Generator, ...]
    scorers: tuple[Scorer, ...]
    learner: Learner
    plan: LoopPlan
    num_parameters: int | None = None
    threads: int | None = None
    learner_on_gpu: bool = False

    def save_to(self, folder: Path) -> None: ...


def build_simulated_parts(
    scenario: Scenario,
    tracer: RecordingTracer,
    should_stop: StopSignal,
) -> SimulatedParts:
    """Make parts that only pass metadata on and take no time: the same loop, rows and files without any model."""
    return SimulatedParts(
        tuple(simulated_generator(tracer, FREE, lane=lane) for lane in lanes_of("generator", scenario)),
        tuple(simulated_scorer(tracer, FREE, lane=lane) for lane in lanes_of("scorer", scenario)),
        simulated_learner(tracer, FREE, epochs_per_batch=scenario.optimizer_steps_per_batch),
        loop_plan(scenario, num_train=4 * scenario.prompts_per_batch, num_validation=scenario.evaluation.prompts),
    )
