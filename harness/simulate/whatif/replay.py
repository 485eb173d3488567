"""A recorded run as a cost source: the real loop on the virtual clock, with parts whose calls take recorded times.

A replay has the recorded rollouts in their order. With other batch or group sizes the recorded groups follow each other
into the new batches, round and round; a smaller group takes the first responses of a recorded one, a larger one draws
the missing ones from it again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from harness.core.errors import UserError
from harness.core.seeds import derive_seed
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Metric, Metrics, Purpose, RolloutGroup, ScoredBatch, WorkItem
from harness.loop import Observer, StepReport
from harness.results import lane_kind
from harness.scenario.derived import on_one_thread
from harness.scenario.lanes import lanes_of, writer_lane
from harness.scenario.loop_plan import loop_plan
from harness.scenario.schema import Scenario
from harness.simulate.features import sizes_of
from harness.simulate.machine import Contention
from harness.simulate.parts import (
    ProfileCosts,
    Sampled,
    SimulatedGenerator,
    SimulatedLearner,
    SimulatedScorer,
    with_rewards,
)
from harness.simulate.recorded_run import EVALUATE, TRAIN, RecordedCall, RecordedGroup, RecordedRun, Work
from harness.simulate.simulated_run import ForwardingObserver, SimulatedResult, SimulatedRun, on_virtual_clock
from harness.simulate.timeline import CallPlan, CallTimeline, OwnDevice, SharedCores, StagePlan
from harness.simulate.whatif.repricing import Repricing, cores_of, transit_cores_of

CALL, RECORD = "call", "record"
"""How the transit of a call, and the driver's own bookkeeping, are called beside the stages."""
LEARNER = "learner"
WRITER = writer_lane(LEARNER)
UNKNOWN_REWARD = 0.5

Pace = Mapping[str, float]
"""Factors on the seconds of a stage, of ``call`` or ``record``, or on all that lanes of a kind do."""


class Replay:
    """Replays a recorded run, at one pace or another.

    Args:
        run: the recorded one.
        calls, record_s: of the run; see ``RecordedRun.calls``.
        scenario: what is replayed.
        contention: what parts on the same cores cost each other; None where nothing.
        repricing: how calls differ whose work does; None: none does.
    """

    def __init__(
        self,
        run: RecordedRun,
        calls: Sequence[RecordedCall],
        record_s: Mapping[int, float],
        scenario: Scenario,
        contention: Contention | None = None,
        repricing: Repricing | None = None,
    ) -> None:
        self._run, self._calls, self._record_s, self._scenario = run, calls, record_s, scenario
        self._contention, self._repricing = contention, repricing
        self._rollouts = Rollouts(run, scenario)
        self._warmup = [row.step for row in run.run.steps if row.warmup]
        self._profiled = [row.step for row in run.run.steps if row.profiled]
        gone = run.scenario.needs_old_log_probs and not scenario.needs_old_log_probs and repricing is None
        self._gone = {Stage.OLD_LOGPROBS} if gone else set[Stage]()

    def at(self, pace: Pace, draw: int = 0) -> SimulatedResult:
        """Return what comes of it at this pace.

        Args:
            draw: 0: every call as it was recorded; of others see ``CallPool``.

        Raises:
            UserError: the scenario asks for work of which no call was recorded.
            Deadlock: the loop stands still, which no setting should be able to bring about.
        """
        return on_virtual_clock(partial(self._build, pace, draw))

    def _build(self, pace: Pace, draw: int, tracer: RecordingTracer) -> SimulatedRun:
        scenario, rollouts = self._scenario, self._rollouts
        pool = CallPool(self._calls, max(self._warmup, default=-1) + 1, draw)

        def part(lane: str) -> tuple[CallTimeline, RecordedCosts]:
            return timelines[lane], RecordedCosts(lane, pool, pace, self._repricing, self._gone)

        lanes = [*lanes_of("generator", scenario), *lanes_of("scorer", scenario), LEARNER]
        timelines = {line.lane: line for line in self._timelines([*lanes, WRITER], tracer)}
        own = part(LEARNER)
        batches, validation = rollouts.batch_prompts, rollouts.validation_prompts
        return SimulatedRun(
            [SimulatedGenerator(*part(lane), rollouts.sample) for lane in lanes_of("generator", scenario)],
            [SimulatedScorer(*part(lane), rollouts.score) for lane in lanes_of("scorer", scenario)],
            SimulatedLearner(
                *own,
                scenario.optimizer_steps_per_batch,
                tracer=tracer,
                writer=timelines[WRITER] if scenario.checkpoint.asynchronous else None,
            ),
            replace(loop_plan(scenario, 1, 0), batch_prompts=batches, validation_prompts=validation),
            tuple(lanes),
            tracer,
            keep_books=lambda observer: _Bookkeeping(observer, tracer, own[1], self._seconds_of_books(pace)),
            said=lambda: (*pool.said(), *(self._repricing.notes if self._repricing else ())),
            warmup=self._warmup,
            profiled=self._profiled,
            by_arrival=True,
        )

    def _seconds_of_books(self, pace: Pace) -> Callable[[int], float]:
        """Return the seconds by training step; further ones take the mean of those beyond warm-up."""
        steady = [seconds for step, seconds in self._record_s.items() if step not in self._warmup]
        mean_s, factor = sum(steady) / len(steady) if steady else 0.0, _factor(pace, LEARNER, RECORD)
        return lambda step: factor * self._record_s.get(step, mean_s)

    def _timelines(self, lanes: Sequence[str], tracer: RecordingTracer) -> Iterable[CallTimeline]:
        """Yield the timeline of each lane; every part has a device of its own, or all share cores."""
        shared = self._contention
        place = OwnDevice() if shared is None else SharedCores(shared.cores, shared.slowdown)
        takes_turns, cores = on_one_thread(self._scenario), cores_of(self._run.scenario, shared)
        for lane in lanes:
            yield CallTimeline(
                lane=lane,
                tracer=tracer,
                place=place,
                thread="all parts" if takes_turns and lane != WRITER else lane,
                loading="all parts" if takes_turns else f"{lane} weights",
                remote=lane != WRITER,
                cores=cores(lane),
                transit_cores=transit_cores_of(self._scenario),
            )


class _Bookkeeping(ForwardingObserver):
    """Holds the Learner while the driver would record a step, for as many seconds as that took then."""

    def __init__(
        self, observer: Observer, tracer: RecordingTracer, learner: RecordedCosts, seconds: Callable[[int], float]
    ) -> None:
        super().__init__(observer)
        self._tracer, self._learner, self._seconds, self._version = tracer, learner, seconds, -1

    def on_version(self, lane: str, version: int) -> None:
        if lane == LEARNER:
            self._version = version
        super().on_version(lane, version)

    def on_step(self, facts: StepReport) -> None:
        super().on_step(facts)
        seconds, now_ns = self._seconds(facts.step), self._tracer.clock_ns()
        if seconds > 0:
            self._learner.held_until = asyncio.get_running_loop().time() + seconds
            end_ns = now_ns + round(seconds * 1e9)
            wait = Span(LEARNER, Stage.WAIT_FOR_RECORDER, now_ns, end_ns, facts.step, self._version)
            self._tracer.finished.append(wait)


def _factor(pace: Pace, lane: str, stage: str) -> float:
    return pace.get(stage, 1.0) * pace.get(lane_kind(lane), 1.0)


class Rollouts:
    """What the Generators of a replay return. Prompts go by their places, for one may be in a batch twice.

    Attributes:
        validation_prompts: places in every evaluation.
    """

    def __init__(self, run: RecordedRun, scenario: Scenario) -> None:
        before = run.scenario
        self._prompts, self._size, self._seed = scenario.prompts_per_batch, scenario.group_size, scenario.seed
        self._same_shape = (before.prompts_per_batch, before.group_size) == (self._prompts, self._size)
        self._recorded, self._evaluated = run.sampled[TRAIN], run.sampled[EVALUATE]
        self._groups = [group for groups in self._recorded.values() for group in groups]
        unknown = [RecordedGroup(None, (1,), (UNKNOWN_REWARD,))] * scenario.evaluation.prompts
        self._some_evaluation = next(iter(self._evaluated.values()), unknown)
        self.validation_prompts = tuple(range(len(self._some_evaluation)))
        self._made: dict[int, list[RecordedGroup]] = {}

    def batch_prompts(self, number: int) -> tuple[int, ...]:
        """Return the places of the prompts of a rollout batch."""
        return tuple(range(len(self._batch(number))))

    def sample(self, item: WorkItem) -> list[Sampled]:
        """Return what a Generator samples; see ``harness.simulate.parts.Sample``."""
        groups = self._of(item)
        return [(groups[place].prompt, groups[place].lengths) for place in item.prompt_ids]

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        """Return the groups with their recorded rewards; see ``harness.simulate.parts.Score``."""
        recorded = self._of(item)
        scored = tuple(with_rewards(group, recorded[group.prompt_id].rewards) for group in groups)
        rewards = [reward for group in scored for reward in group.rewards or ()]
        name = "validation/reward" if item.purpose is Purpose.EVALUATE else "reward/total"
        metrics: Metrics = {name: Metric(sum(rewards) / len(rewards), count=len(rewards))} if rewards else {}
        return ScoredBatch(item, scored, metrics)

    def _of(self, item: WorkItem) -> Sequence[RecordedGroup]:
        if item.purpose is Purpose.TRAIN:
            return self._batch(item.step)
        return self._evaluated.get(item.step) or self._some_evaluation

    def _batch(self, number: int) -> list[RecordedGroup]:
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> list[RecordedGroup]:
        if not self._recorded:
            return [RecordedGroup(None, (1,) * self._size, (UNKNOWN_REWARD,) * self._size)] * self._prompts
        following = [self._following(number * self._prompts + place) for place in range(self._prompts)]
        if not self._same_shape:
            return following
        numbers = list(self._recorded)
        recorded = self._recorded.get(number) or self._recorded[numbers[number % len(numbers)]]
        return [*recorded, *following[len(recorded) :]]  # where groups got no reward, others stand in

    def _following(self, place: int) -> RecordedGroup:
        """Return the recorded group that comes at this place of all, with as many responses as are asked for."""
        sampled = self._groups[place % len(self._groups)]
        count = len(sampled.lengths)
        rng = random.Random(derive_seed(self._seed, "whatif", place))
        again = [rng.randrange(count) for _ in range(self._size - count)]
        chosen = [*range(count), *again][: self._size]
        known = sampled.rewards or (UNKNOWN_REWARD,) * count  # a simulated run records none
        lengths, rewards = (tuple(values[index] for index in chosen) for values in (sampled.lengths, known))
        return RecordedGroup(sampled.prompt, lengths, rewards)


class CallPool:
    """The recorded calls of one replay; each is handed out once, as long as there is another.

    First the call of the same lane and the same key (training step, policy version, rollout batch) that nobody has
    taken yet, then one of a lane beside it, then one of that key that was taken before. A call that was never recorded,
    as one for a rollout batch beyond the recorded ones, borrows the time of another from the steady part of the run:
    the n-th such call that of number n, round and round.

    Args:
        calls: recorded, in order of time.
        steady_from: keys from which on a call is typical: first uses and warm-up take longer.
        draw: where it is not 0, the typical calls of a lane to one kind of work take their times in turn from another
            place of the run on, so that other calls meet: a run that might have been as well.

    Attributes:
        borrowed: how many calls of each kind of work took the time of another.
    """

    def __init__(self, calls: Iterable[RecordedCall], steady_from: int, draw: int = 0) -> None:
        self.borrowed: Counter[Work] = Counter()
        self._left: dict[tuple[str, Work, int], deque[RecordedCall]] = defaultdict(deque)
        self._taken: dict[tuple[str, Work, int], RecordedCall] = {}
        self._beside: dict[tuple[str, Work, int], dict[str, None]] = defaultdict(dict)
        by_work: dict[tuple[str, Work], list[RecordedCall]] = defaultdict(list)
        for call in _from_elsewhere(calls, steady_from, draw) if draw else calls:
            kind = lane_kind(call.lane)
            self._left[call.lane, call.work, call.key].append(call)
            self._beside[kind, call.work, call.key][call.lane] = None
            by_work[kind, call.work].append(call)
        self._typical = {
            place: [call for call in own if call.key >= steady_from] or own for place, own in by_work.items()
        }

    def said(self) -> list[str]:
        """Return in a sentence for each kind of work how many calls took the time of others."""
        end = "the time of others of this run"
        return [
            f"1 call to {work.value} was never recorded and takes {end}"
            if calls == 1
            else f"{calls} calls to {work.value} were never recorded and take {end}"
            for work, calls in self.borrowed.items()
        ]

    def knows(self, lane: str, work: Work) -> bool:
        """Whether any such call was recorded on lanes of this kind."""
        return (lane_kind(lane), work) in self._typical

    def take(self, lane: str, work: Work, key: int) -> RecordedCall:
        """Return the call to replay.

        Raises:
            UserError: no call of this kind of work was recorded.
        """
        kind = lane_kind(lane)
        for each in (lane, *self._beside.get((kind, work, key), ())):
            if self._left.get((each, work, key)):
                call = self._left[each, work, key].popleft()
                self._taken.setdefault((lane, work, key), call)
                self._taken.setdefault((kind, work, key), call)
                return call
        again = self._taken.get((lane, work, key)) or self._taken.get((kind, work, key))
        if again is not None:
            return again
        typical = self._typical.get((kind, work))
        if not typical:
            what = f"the run has no call of a {kind} to {work.value}, so that its time is not known"
            raise UserError(what, fix="leave out the change that asks for it")
        self.borrowed[work] += 1
        return typical[key % len(typical)]


def _from_elsewhere(calls: Iterable[RecordedCall], steady_from: int, draw: int) -> list[RecordedCall]:
    """Return the calls with the times that their like took from another place of the run on."""
    moved, alike = list(calls), dict[tuple[str, Work], list[int]]()
    for place, call in enumerate(moved):
        if call.key >= steady_from:
            alike.setdefault((call.lane, call.work), []).append(place)
    times = list(moved)
    for (lane, work), places in alike.items():
        first = random.Random(derive_seed(draw, lane, work.value)).randrange(len(places))
        for place, other in zip(places, [*places[first:], *places[:first]], strict=True):
            own, found = moved[place], moved[other]
            times[place] = replace(found, key=own.key)
    return times


class RecordedCosts:
    """The calls to one part at recorded times; see ``harness.simulate.parts.CostSource``.

    Args:
        gone: stages that are left out of a training step.

    Attributes:
        held_until: virtual seconds at which the driver, which records a step after its end, calls the Learner again.
    """

    def __init__(self, lane: str, pool: CallPool, pace: Pace, repricing: Repricing | None, gone: set[Stage]) -> None:
        self._lane, self._pool, self._pace, self._gone, self._prices = lane, pool, pace, gone, repricing
        self._costs = None if repricing is None else repricing.costs(lane)
        self.held_until = 0.0

    def load(self, version: int) -> CallPlan:
        return self._plan(Work.LOAD, version, lambda costs: costs.load(version))

    def publish(self, version: int) -> CallPlan:
        return self._plan(Work.PUBLISH, version, lambda costs: costs.publish(version))

    def save_policy(self, version: int) -> CallPlan:
        known = self._pool.knows(self._lane, Work.SAVE_POLICY)  # where nothing was saved it takes no time
        return self._plan(Work.SAVE_POLICY, version) if known else CallPlan(())

    def checkpoint(self, version: int) -> CallPlan:
        return self._plan(Work.CHECKPOINT, version)

    def write_checkpoint(self, version: int) -> CallPlan:
        return self._plan(Work.CHECKPOINT_WRITE, version, lane=WRITER)

    def generate(self, item: WorkItem, sampled: Sequence[Sampled]) -> CallPlan:
        return self._plan(
            Work.EVALUATE if item.purpose is Purpose.EVALUATE else Work.GENERATE,
            item.step,
            lambda costs: costs.generate(item, sampled),
            lambda costs, shards: [costs.generate(item, sizes_of(shard)) for shard in shards],
        )

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        return self._plan(
            Work.EVALUATE if item.purpose is Purpose.EVALUATE else Work.SCORE,
            item.step,
            lambda costs: costs.score(item, groups),
            lambda costs, shards: [costs.score(item, shard) for shard in shards],
        )

    def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        raise AssertionError("a recording of a Learner that trains on parts of a batch is refused before")

    def update(self, step: int, groups: tuple[RolloutGroup, ...], taken_in: int = 0) -> CallPlan:
        """The driver's bookkeeping after the last step comes first."""
        plan = self._plan(
            Work.UPDATE,
            step,
            lambda costs: costs.update(step, groups),
            lambda costs, batches: [costs.update(step, batch) for batch in batches],
        )
        stages = [each for each in plan.stages if each.stage not in self._gone]
        return plan._replace(stages=stages, delay_s=self.held_until - asyncio.get_running_loop().time())

    def _plan(
        self,
        work: Work,
        key: int,
        now: Callable[[ProfileCosts], CallPlan] | None = None,
        then: Callable[[ProfileCosts, Sequence[tuple[RolloutGroup, ...]]], list[CallPlan]] = lambda costs, rollouts: [],
        lane: str = "",
    ) -> CallPlan:
        """Return the recorded call at its pace; a gap between two stages of it stays.

        Args:
            now: prices the call of the replay, with its rollouts.
            then: prices calls with given rollouts: those that the recorded call, or its like, worked on.
        """
        call = self._pool.take(lane or self._lane, work, key)
        if now is not None and self._prices is not None and self._costs is not None and self._prices.differs(work):
            old, new = self._costs
            before = then(old, self._prices.behind(work, call.key)) or [now(old)]
            call = self._prices.repriced(call, before, now(new))
        transit = _factor(self._pace, self._lane, CALL)
        stages = [
            StagePlan(None, each.seconds, works=False)
            if each.stage is None
            else StagePlan(each.stage, each.seconds * _factor(self._pace, call.lane, each.stage))
            for each in call.stages
        ]
        return CallPlan(stages, call.request_s * transit, call.response_s * transit)
