"""One replay: the real loop on the virtual clock, with parts whose calls take recorded times."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Purpose, RolloutGroup, WorkItem
from harness.loop import LoopPlan, Observer, RolloutCounts, StepReport, run_loop
from harness.results import StepRow, VersionChange, lane_kind
from harness.results.frames import RunTable
from harness.results.occupancy import Occupancy
from harness.results.rows import LaneSeconds, TailRow
from harness.scenario.derived import on_one_thread
from harness.scenario.lanes import writer_lane
from harness.scenario.schema import Scenario
from harness.simulate.clock import run_virtual
from harness.simulate.machine import Contention
from harness.simulate.metrics import simulated_row, table_of_rows
from harness.simulate.parts import Sampled, SimulatedGenerator, SimulatedLearner, SimulatedScorer
from harness.simulate.timeline import CallPlan, CallTimeline, OwnDevice, SharedCores, StagePlan
from harness.simulate.whatif.recording import RecordedCall, Recording, Rollouts, Work
from harness.simulate.whatif.repricing import RepricedCalls, cores_of, transit_cores_of

CALL, RECORD = "call", "record"
"""How the transit of a call, and the driver's own bookkeeping, are called beside the stages."""
LEARNER = "learner"
WRITER = writer_lane(LEARNER)


@dataclass(frozen=True)
class Factors:
    """What makes parts of a run slower or faster.

    Attributes:
        stages: factor on the seconds of a stage, of ``call`` or of ``record``.
        lanes: factor on everything that lanes of a kind do, such as ``generator``.
    """

    stages: Mapping[str, float] = field(default_factory=dict)
    lanes: Mapping[str, float] = field(default_factory=dict)

    def of(self, lane: str, stage: str) -> float:
        """Return the factor on the seconds of a stage of a lane."""
        return self.stages.get(stage, 1.0) * self.lanes.get(lane_kind(lane), 1.0)

    def times(self, other: Factors) -> Factors:
        """Return both, one after the other."""
        return Factors(_product(self.stages, other.stages), _product(self.lanes, other.lanes))


def _product(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 1.0) * second.get(name, 1.0) for name in {**first, **second}}


@dataclass(frozen=True)
class Setting:
    """What is replayed, beside the recorded calls.

    Attributes:
        scenario: of the replay.
        plan: what the loop is asked to do.
        generators, scorers: lanes.
        rollouts: their lengths and rewards.
        contention: what parts on the same cores cost each other; None where nothing.
        gone: stages of a training step that the run had and the replay has not.
    """

    scenario: Scenario
    plan: LoopPlan
    generators: Sequence[str]
    scorers: Sequence[str]
    rollouts: Rollouts
    contention: Contention | None = None
    gone: frozenset[Stage] = frozenset()

    def timelines(self, tracer: RecordingTracer) -> dict[str, CallTimeline]:
        """Return the timeline of each lane; every part has a device of its own, or all share cores."""
        place = OwnDevice() if self.contention is None else SharedCores(self.contention.cores, self.contention.slowdown)
        takes_turns, cores = on_one_thread(self.scenario), cores_of(self.scenario, self.contention)
        return {
            lane: CallTimeline(
                lane=lane,
                tracer=tracer,
                place=place,
                thread="all parts" if takes_turns and lane != WRITER else lane,
                loading="all parts" if takes_turns else f"{lane} weights",
                remote=lane != WRITER,
                cores=cores(lane),
                transit_cores=transit_cores_of(self.scenario),
            )
            for lane in (*self.generators, *self.scorers, LEARNER, WRITER)
        }


@dataclass(frozen=True)
class Replayed:
    """What came of a replay.

    Attributes:
        rows: of the training steps, flagged as warm-up or profiled where the recorded ones are.
        spans: in the order in which they ended.
        loop_s: seconds of the loop.
        borrowed: calls that were never recorded, by kind of work.
        changes: when which lane took which policy version.
        tail: seconds by lane and stage of what ended after the last step.
    """

    rows: tuple[StepRow, ...]
    spans: tuple[Span, ...]
    loop_s: float
    ledger: RolloutCounts
    borrowed: Mapping[Work, int]
    changes: tuple[VersionChange, ...] = ()
    tail: LaneSeconds = field(default_factory=dict)

    @cached_property
    def table(self) -> RunTable:
        """What figures are taken of: the last step with a last evaluation after it."""
        end_s = self.rows[-1].elapsed_s if self.rows else 0.0
        totals: Counter[str] = Counter()
        for stages in self.tail.values():
            totals.update(stages)
        return table_of_rows(self.rows, TailRow(max(0.0, self.loop_s - end_s), self.loop_s, self.tail, dict(totals)))


def replay(
    recording: Recording, setting: Setting, pace: Factors | None = None, repriced: RepricedCalls | None = None
) -> Replayed:
    """Replay a recording.

    Args:
        recording: of the run.
        setting: what is replayed.
        pace: what is slower or faster.
        repriced: how calls differ whose work does; None: none does.

    Raises:
        UserError: the setting asks for work of which no call was recorded.
        Deadlock: the loop stands still, which no setting should be able to bring about.
    """
    factors = pace or Factors()
    warm = [row.step for row in recording.rows if row.warmup]
    pool = CallPool(recording.calls, max(warm, default=-1) + 1)

    async def main(tracer: RecordingTracer) -> Replayed:
        timelines = setting.timelines(tracer)
        costs = {lane: RecordedCosts(lane, pool, factors, repriced, setting.gone) for lane in timelines}
        generators = [
            SimulatedGenerator(timelines[lane], costs[lane], setting.rollouts.sample) for lane in setting.generators
        ]
        scorers = [SimulatedScorer(timelines[lane], costs[lane], setting.rollouts.score) for lane in setting.scorers]
        optimizer_steps, writes = setting.scenario.optimizer_steps_per_batch, setting.scenario.checkpoint.asynchronous
        writer = timelines[WRITER] if writes else None
        learner = SimulatedLearner(timelines[LEARNER], costs[LEARNER], optimizer_steps, tracer=tracer, writer=writer)
        record_s = {step: s * factors.of(LEARNER, RECORD) for step, s in recording.record_s.items()}
        watch = _StepWatch(tracer, costs[LEARNER], recording.rows, record_s)
        await run_loop(generators, scorers, learner, setting.plan, tracer, watch, checkpoints=learner)
        return watch.close(asyncio.get_running_loop().time(), pool.borrowed)

    return run_virtual(main)[0]


class CallPool:
    """The recorded calls of one replay; each is handed out once, as long as there is another.

    First the call of the same lane and the same key (training step, policy version, rollout batch) that nobody has
    taken yet, then one of a lane beside it, then one of that key that was taken before. A call that was never recorded,
    as one for a rollout batch beyond the recorded ones, borrows the time of another from the steady part of the run:
    the n-th such call that of number n, round and round.

    Args:
        calls: recorded, in order of time.
        steady_from: keys from which on a call is typical: first uses and warm-up take longer.

    Attributes:
        borrowed: how many calls of each kind of work took the time of another.
    """

    def __init__(self, calls: Iterable[RecordedCall], steady_from: int) -> None:
        self.borrowed: Counter[Work] = Counter()
        self._own: dict[tuple[str, Work, int], deque[RecordedCall]] = {}
        self._taken: dict[tuple[str, Work, int], RecordedCall] = {}
        self._beside: dict[tuple[str, Work, int], list[tuple[str, Work, int]]] = {}
        by_work: dict[tuple[str, Work], list[RecordedCall]] = {}
        for call in calls:
            kind, own = lane_kind(call.lane), (call.lane, call.work, call.key)
            self._own.setdefault(own, deque()).append(call)
            beside = self._beside.setdefault((kind, call.work, call.key), [])
            if own not in beside:
                beside.append(own)
            by_work.setdefault((kind, call.work), []).append(call)
        self._typical = {
            place: [call for call in found if call.key >= steady_from] or found for place, found in by_work.items()
        }

    def knows(self, lane: str, work: Work) -> bool:
        """Whether any such call was recorded on lanes of this kind."""
        return (lane_kind(lane), work) in self._typical

    def take(self, lane: str, work: Work, key: int) -> RecordedCall:
        """Return the call to replay.

        Raises:
            UserError: no call of this kind of work was recorded.
        """
        kind = lane_kind(lane)
        for own in ((lane, work, key), *self._beside.get((kind, work, key), ())):
            if self._own.get(own):
                call = self._own[own].popleft()
                self._taken.setdefault((lane, work, key), call)
                self._taken.setdefault((kind, work, key), call)
                return call
        again = self._taken.get((lane, work, key)) or self._taken.get((kind, work, key))
        if again is not None:
            return again
        typical = self._typical.get((kind, work))
        if not typical:
            raise UserError(
                f"the run has no call of a {kind} to {work.value}, so that its time is not known",
                fix="leave out the change that asks for it",
            )
        self.borrowed[work] += 1
        return typical[key % len(typical)]


class RecordedCosts:
    """The calls to one part at recorded times; see ``harness.simulate.parts.CostSource``.

    Args:
        lane: of the part.
        pool: the recorded calls.
        pace: what is slower or faster.
        repriced: how calls differ whose work does; None: none does.
        gone: stages that are left out of a training step.

    Attributes:
        held_until: virtual seconds at which the driver, which records a step after its end, calls the Learner again.
    """

    def __init__(
        self, lane: str, pool: CallPool, pace: Factors, repriced: RepricedCalls | None, gone: frozenset[Stage]
    ) -> None:
        self._lane, self._pool, self._pace, self._repriced, self._gone = lane, pool, pace, repriced, gone
        self.held_until = 0.0

    def load(self, version: int) -> CallPlan:
        """See ``CostSource``."""
        return self._sync(Work.LOAD, version)

    def publish(self, version: int) -> CallPlan:
        """See ``CostSource``."""
        return self._sync(Work.PUBLISH, version)

    def save_policy(self, version: int) -> CallPlan:
        """See ``CostSource``; where nothing was saved it takes no time."""
        return self._sync(Work.SAVE_POLICY, version) if self._pool.knows(self._lane, Work.SAVE_POLICY) else CallPlan(())

    def checkpoint(self, version: int) -> CallPlan:
        """See ``CostSource``."""
        return self._sync(Work.CHECKPOINT, version)

    def write_checkpoint(self, version: int) -> CallPlan:
        """See ``CostSource``."""
        return self._plan(self._pool.take(writer_lane(self._lane), Work.CHECKPOINT_WRITE, version))

    def generate(self, item: WorkItem, sampled: Sequence[Sampled]) -> CallPlan:
        """See ``CostSource``."""
        call = self._take(_work_of(item, Work.GENERATE), item.step)
        return self._plan(self._repriced.generate(call, item, sampled) if self._repriced else call)

    def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        """See ``CostSource``."""
        call = self._take(_work_of(item, Work.SCORE), item.step)
        return self._plan(self._repriced.score(call, item, groups) if self._repriced else call)

    def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> CallPlan:
        """See ``CostSource``.

        Raises:
            AssertionError: always; a recording of a Learner that streams is refused before.
        """
        raise AssertionError("a replay has no parts of a batch")

    def update(self, step: int, groups: tuple[RolloutGroup, ...], taken_in: int = 0) -> CallPlan:
        """See ``CostSource``; the driver's bookkeeping after the last step comes first."""
        call = self._take(Work.UPDATE, step)
        plan = self._plan(self._repriced.update(call, groups) if self._repriced else call)
        stages = [each for each in plan.stages if each.stage not in self._gone]
        return plan._replace(stages=stages, delay_s=self.held_until - asyncio.get_running_loop().time())

    def _sync(self, work: Work, version: int) -> CallPlan:
        call = self._take(work, version)
        return self._plan(self._repriced.sync(call) if self._repriced else call)

    def _take(self, work: Work, key: int) -> RecordedCall:
        return self._pool.take(self._lane, work, key)

    def _plan(self, call: RecordedCall) -> CallPlan:
        """Return a call at its pace; a gap between two stages of it stays."""
        transit = self._pace.of(self._lane, CALL)
        stages = [
            StagePlan(None, each.seconds, works=False)
            if each.stage is None
            else StagePlan(each.stage, each.seconds * self._pace.of(call.lane, each.stage))
            for each in call.stages
        ]
        return CallPlan(stages, call.request_s * transit, call.response_s * transit)


def _work_of(item: WorkItem, training: Work) -> Work:
    return Work.EVALUATE if item.purpose is Purpose.EVALUATE else training


class _StepWatch(Observer):
    """Keeps the rows of a replay, and holds the Learner while the driver would record a step."""

    def __init__(
        self,
        tracer: RecordingTracer,
        learner: RecordedCosts,
        recorded: Iterable[StepRow],
        record_s: Mapping[int, float],
    ) -> None:
        self._tracer, self._learner = tracer, learner
        self._flags = {row.step: (row.warmup, row.profiled) for row in recorded}
        self._record_s = record_s
        steady = [s for step, s in record_s.items() if not self._flags.get(step, (False,))[0]]
        self._steady_s = sum(steady) / len(steady) if steady else 0.0
        self._steps: list[tuple[StepReport, float, int, dict[str, int]]] = []  # with spans that had ended, and versions
        self.spans: list[Span] = []
        self.changes: list[VersionChange] = []
        self._held: dict[str, int] = {}
        self._ledger = RolloutCounts()

    def on_version(self, lane: str, version: int) -> None:
        """See ``Observer``."""
        self._held[lane] = version
        self.changes.append(VersionChange(self._now_s(), lane, version))

    def on_step(self, facts: StepReport) -> None:
        """See ``Observer``."""
        now_s = self._now_s()
        self.spans += self._tracer.drain()
        self._steps.append((facts, now_s, len(self.spans), dict(self._held)))
        self._hold_learner(facts.step, now_s)

    def on_finished(self, ledger: RolloutCounts) -> None:
        """See ``Observer``."""
        self._ledger = ledger

    def close(self, loop_s: float, borrowed: Mapping[Work, int]) -> Replayed:
        """Return what came of the replay."""
        self.spans += self._tracer.drain()
        table, rows, before_s, first = Occupancy.of(self.spans), list[StepRow](), 0.0, 0
        for facts, now_s, last, held in self._steps:
            lanes = table.seconds(self.spans[first:last], first)
            warmup, profiled = self._flags.get(facts.step, (False, False))
            row = simulated_row(facts, now_s - before_s, now_s, lanes, warmup=warmup, profiled=profiled, versions=held)
            rows.append(row)
            before_s, first = now_s, last
        tail, spans, changes = table.seconds(self.spans[first:], first), tuple(self.spans), tuple(self.changes)
        return Replayed(tuple(rows), spans, loop_s, self._ledger, dict(borrowed), changes, tail)

    def _hold_learner(self, step: int, now_s: float) -> None:
        seconds = self._record_s.get(step, self._steady_s)
        if seconds <= 0:
            return
        self._learner.held_until = now_s + seconds
        now_ns = self._tracer.clock_ns()
        end_ns = now_ns + round(seconds * 1e9)
        version = self._held[LEARNER]
        self._tracer.finished.append(Span(LEARNER, Stage.WAIT_FOR_RECORDER, now_ns, end_ns, step, version))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
