"""One replay: the real loop on the virtual clock, with parts that sleep for recorded times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import RolloutGroup, WorkItem
from harness.loop import LoopPlan, RolloutCounts, SilentObserver, StepReport, run_loop
from harness.results import StepRow, VersionChange, lane_kind, lane_seconds
from harness.results.rows import LaneSeconds
from harness.results.step_metrics import trained_lags
from harness.simulate.clock import run_virtual
from harness.simulate.contention import OwnDevice, Place
from harness.simulate.whatif.books import Book
from harness.simulate.whatif.parts import (
    Lengths,
    ReplayedGenerator,
    ReplayedLearner,
    ReplayedScorer,
    Rewards,
    Stand,
)
from harness.simulate.whatif.recorded import Call, Recording, Work

CALL, RECORD = "call", "record"
"""How a call's way, and the driver's own bookkeeping, are called beside the stages."""


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

    def on(self, call: Call) -> Call:
        """Return the call at this pace; a gap between two stages of it stays."""
        pieces = tuple(
            piece if piece.stage is None else replace(piece, seconds=piece.seconds * self.of(call.lane, piece.stage))
            for piece in call.pieces
        )
        way = self.of(call.lane, CALL)
        return replace(call, pieces=pieces, before_s=call.before_s * way, after_s=call.after_s * way)

    def times(self, other: Factors) -> Factors:
        """Return both, one after the other."""
        return Factors(_product(self.stages, other.stages), _product(self.lanes, other.lanes))


def _product(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 1.0) * second.get(name, 1.0) for name in {**first, **second}}


class Changed(Protocol):
    """How a call differs from the recorded one because its work does."""

    def sync(self, call: Call, version: int) -> Call:
        """Return a call to publish, load or checkpoint a version."""

    def generate(self, call: Call, item: WorkItem) -> Call:
        """Return a call to sample rollouts."""

    def score(self, call: Call, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Call:
        """Return a call to score them."""

    def update(self, call: Call, step: int, groups: tuple[RolloutGroup, ...]) -> Call:
        """Return a call to train on them."""


class AsRecorded:
    """Nothing about the work differs."""

    def sync(self, call: Call, version: int) -> Call:
        return call

    def generate(self, call: Call, item: WorkItem) -> Call:
        return call

    def score(self, call: Call, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Call:
        return call

    def update(self, call: Call, step: int, groups: tuple[RolloutGroup, ...]) -> Call:
        return call


@dataclass(frozen=True)
class Setting:
    """What is replayed, beside the recorded calls.

    Attributes:
        plan: what the loop is asked to do.
        generators, scorers: lanes; the Learner's is ``learner``.
        lengths, rewards: of the rollouts.
        optimizer_steps: in each training step.
        one_thread: whether all parts take turns on one thread.
        place: makes where the work is done, inside of the running event loop.
        cores: that a lane's work would like to have.
        way_cores: that the way of a call would like to have.
    """

    plan: LoopPlan
    generators: Sequence[str]
    scorers: Sequence[str]
    lengths: Lengths
    rewards: Rewards
    optimizer_steps: int = 1
    one_thread: bool = False
    place: Callable[[], Place] = OwnDevice
    cores: Callable[[str], float] = lambda lane: 1.0
    way_cores: float = 0.0


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


def replay(
    recording: Recording, setting: Setting, factors: Factors | None = None, changed: Changed | None = None
) -> Replayed:
    """Replay a recording.

    Raises:
        UserError: the setting asks for work of which no call was recorded.
        Deadlock: the loop stands still, which no setting should be able to bring about.
    """
    pace = factors or Factors()
    warm = [row.step for row in recording.rows if row.warmup]
    timing = _Timing(Book(recording.calls, max(warm, default=-1) + 1), pace, changed or AsRecorded())

    async def main(tracer: RecordingTracer) -> Replayed:
        thread = "all parts" if setting.one_thread else None
        stand = Stand(tracer, timing, setting.place(), setting.cores, setting.way_cores, thread)
        generators = [ReplayedGenerator(stand, setting.lengths, lane) for lane in setting.generators]
        scorers = [ReplayedScorer(stand, setting.rewards, lane) for lane in setting.scorers]
        learner = ReplayedLearner(stand, setting.optimizer_steps)
        record_s = {step: s * pace.of(learner.lane, RECORD) for step, s in recording.record_s.items()}
        books = _Books(tracer, learner, recording.rows, record_s)
        await run_loop(generators, scorers, learner, setting.plan, tracer, books)
        return books.close(asyncio.get_running_loop().time(), timing.book.borrowed)

    result, _ = run_virtual(main)
    return result


class _Timing:
    """Looks calls up, then applies what differs about their work, then the pace."""

    def __init__(self, book: Book, factors: Factors, changed: Changed) -> None:
        self.book, self._factors, self._changed = book, factors, changed

    def sync(self, lane: str, work: Work, version: int) -> Call:
        """See ``parts.Timing``."""
        if work is Work.CHECKPOINT and not self.book.knows(lane, work):
            return Call(lane, work, version, ())
        return self._factors.on(self._changed.sync(self._take(lane, work, version), version))

    def generate(self, lane: str, item: WorkItem) -> Call:
        """See ``parts.Timing``."""
        work = Work.EVALUATE if item.purpose == "evaluate" else Work.GENERATE
        return self._factors.on(self._changed.generate(self._take(lane, work, item.step), item))

    def score(self, lane: str, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> Call:
        """See ``parts.Timing``."""
        work = Work.EVALUATE if item.purpose == "evaluate" else Work.SCORE
        return self._factors.on(self._changed.score(self._take(lane, work, item.step), item, groups))

    def update(self, lane: str, step: int, groups: tuple[RolloutGroup, ...]) -> Call:
        """See ``parts.Timing``."""
        return self._factors.on(self._changed.update(self._take(lane, Work.UPDATE, step), step, groups))

    def _take(self, lane: str, work: Work, key: int) -> Call:
        return replace(self.book.take(lane, work, key), lane=lane)


class _Books(SilentObserver):
    """Keeps the rows of a replay, and holds the Learner while the driver would keep its own."""

    def __init__(
        self,
        tracer: RecordingTracer,
        learner: ReplayedLearner,
        recorded: Iterable[StepRow],
        record_s: Mapping[int, float],
    ) -> None:
        self._tracer, self._learner = tracer, learner
        self._flags = {row.step: (row.warmup, row.profiled) for row in recorded}
        self._record_s = record_s
        self._steady_s = _typical([s for step, s in record_s.items() if not self._flags.get(step, (False,))[0]])
        self._last_s = 0.0
        self.rows: list[StepRow] = []
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
        spans = self._drain()
        lanes = lane_seconds(spans)
        totals: Counter[str] = Counter()
        for stages in lanes.values():
            totals.update(stages)
        warmup, profiled = self._flags.get(facts.step, (False, False))
        self.rows.append(
            StepRow(
                step=facts.step,
                version=facts.result.version,
                wall_s=now_s - self._last_s,
                elapsed_s=now_s,
                optimizer_steps=facts.result.optimizer_steps,
                lanes=lanes,
                stages_s=dict(totals),
                metrics={},
                versions=dict(self._held),
                lags=trained_lags(facts),
                warmup=warmup,
                profiled=profiled,
            )
        )
        self._last_s = now_s
        self._keep_books(facts.step, now_s)

    def on_finished(self, ledger: RolloutCounts) -> None:
        """See ``Observer``."""
        self._ledger = ledger

    def close(self, loop_s: float, borrowed: Mapping[Work, int]) -> Replayed:
        """Return what came of the replay."""
        tail = lane_seconds(self._drain())
        rows, spans, changes = tuple(self.rows), tuple(self.spans), tuple(self.changes)
        return Replayed(rows, spans, loop_s, self._ledger, dict(borrowed), changes, tail)

    def _keep_books(self, step: int, now_s: float) -> None:
        seconds = self._record_s.get(step, self._steady_s)
        if seconds <= 0:
            return
        self._learner.held_until = now_s + seconds
        now_ns = self._tracer.clock_ns()
        end_ns = now_ns + round(seconds * 1e9)
        lane = self._learner.lane
        self._tracer.finished.append(Span(lane, Stage.WAIT_FOR_RECORDER, now_ns, end_ns, step, self._held[lane]))

    def _drain(self) -> list[Span]:
        spans = self._tracer.drain()
        self.spans += spans
        return spans

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _typical(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
