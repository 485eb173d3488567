"""Simulated parts that die, dawdle and lie as their schedule says, and whose calls stand in the books.

A dead one is replaced as the actor shells do it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from harness.core.errors import PartReplaced, RunStopped
from harness.core.trace import Stage, Tracer
from harness.core.types import Metrics, Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.simulate.parts import SimulatedGenerator, SimulatedLearner, SimulatedScorer
from tests.faults.checker import Books
from tests.faults.schedule import LEARNER, Call, Fault, FaultKind, Schedule
from tests.stand_ins.simulated_parts import (
    Cost,
    simulated_generator,
    simulated_learner,
    simulated_scorer,
    varying_lengths,
)

P = TypeVar("P")
T = TypeVar("T")

FOR_EVER_S = 1e12
"""Seconds that a hung call takes: the watchdog has long ended the run."""
TOO_MANY = "too many deaths"


class Injected(RunStopped):
    """What a part raises because of a fault of this kind."""

    def __init__(self, kind: FaultKind | str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _FaultyPart(Generic[P]):
    """The part on one lane: its calls are counted, and some of them go wrong.

    When it dies, every call under way fails, and a new part stands there ``restart_s`` later. The answer of a call that
    was held back is on its way already and survives.
    """

    def __init__(self, lane: str, schedule: Schedule, books: Books, tracer: Tracer, replaced: list[int]) -> None:
        self.lane, self.schedule, self.books, self.tracer, self._replaced = lane, schedule, books, tracer, replaced
        self._faults = schedule.faults_of(lane)
        self._mortal = any(fault.kind is FaultKind.KILLED for fault in self._faults.values())
        self._timings = {timing.call: timing for timing in schedule.timings if timing.lane == lane}
        self._made: Counter[Call] = Counter()
        self._slow: dict[Call, Fault | None] = {}
        self._under_way: dict[asyncio.Task[object], None] = {}  # a set's order is not the same in every process
        self._restarting = asyncio.Lock()
        self._fresh = True  # the part has not answered yet
        self.incarnation = 0  # number of the part that stands there
        self.part = self._make()

    def _make(self) -> P:
        raise NotImplementedError

    def _cost(self, call: Call) -> Cost:
        """The seconds of a call; one that is slow takes longer."""
        timing = self._timings.get(call)

        def seconds(step: int) -> float:
            usual, fault = (timing.seconds(step) if timing else 0.0), self._slow.get(call)
            if fault is None:
                return usual
            longer = usual + (FOR_EVER_S if fault.kind is FaultKind.HUNG else fault.amount)
            self.books.fault(fault, f"{longer:g} s instead of {usual:g} s")
            return longer

        return seconds

    async def _call(self, call: Call, work: Callable[[P, Fault | None], Awaitable[T]]) -> tuple[T, Fault | None]:
        """Make one call; ``work`` gets the part and what goes wrong. Return the answer, and what went wrong."""
        self._made[call] += 1
        fault = self._faults.get((call, self._made[call]))
        kind = None if fault is None else fault.kind
        async with self._restarting:  # until a new part, if one is on its way, stands there
            incarnation = self.incarnation
        if fault is not None and kind is FaultKind.FAILS:
            self.books.fault(fault, "")
            raise Injected(fault.kind, f"{self.lane} failed in {call} number {fault.number}")
        self._slow[call] = fault if kind in (FaultKind.SLOW, FaultKind.HUNG) else None
        doing = work(self.part, fault)
        answer = await (self._while_it_lives(doing, call, fault, incarnation) if self._mortal else doing)
        self._fresh = False
        if fault is not None and kind is FaultKind.HELD_BACK and fault.amount > 0:
            self.books.fault(fault, f"{fault.amount:g} s")
            with self.tracer.span(self.lane, Stage.WAIT_FOR_CALL):
                await asyncio.sleep(fault.amount)
        return answer, fault

    async def _while_it_lives(self, doing: Awaitable[T], call: Call, fault: Fault | None, incarnation: int) -> T:
        """Do it until it is done or the part dies; a part that was to die later dies at the end, with the answer."""
        task = asyncio.ensure_future(doing)
        self._under_way[task] = None
        kill = fault if fault is not None and fault.kind is FaultKind.KILLED else None
        try:
            await asyncio.wait({task}, timeout=None if kill is None else kill.amount)
            failed = task.done() and not task.cancelled() and task.exception() is not None
            if incarnation == self.incarnation and (kill is None or failed):
                return task.result()
            if incarnation == self.incarnation and kill is not None:
                how = "at its end" if task.done() else "at once" if kill.amount == 0 else "in the middle"
                await self._die(kill, how + (", and it was new" if self._fresh and self.incarnation else ""))
            async with self._restarting:
                raise PartReplaced(f"{self.lane} died in {call}", self.incarnation)
        finally:
            task.cancel()
            del self._under_way[task]

    async def _die(self, kill: Fault, how: str) -> None:
        self.books.fault(kill, how)
        for task in self._under_way:
            task.cancel()
        if self.lane == LEARNER:
            raise Injected(kill.kind, f"the {self.lane} died in {kill.call} number {kill.number}")
        async with self._restarting:
            self.incarnation += 1
            self._fresh = True
            if self._replaced[0] >= self.schedule.max_replacements:
                raise Injected(TOO_MANY, f"{self.lane} died, and {self._replaced[0]} parts were replaced already")
            self._replaced[0] += 1
            if self.schedule.restart_s:
                with self.tracer.span(self.lane, Stage.STARTUP):
                    await asyncio.sleep(self.schedule.restart_s)
            self.part = self._make()

    @contextmanager
    def _heard(self, pinned: int | None = None) -> Iterator[None]:
        """Note a death that passes through; then nobody on this lane reads the pinned version any more."""
        try:
            yield
        except PartReplaced as error:
            self.books.died(self.lane, error.incarnation)
            raise
        finally:
            if pinned is not None:
                self.books.unpin(self.lane, pinned)


class FaultyGenerator(_FaultyPart[SimulatedGenerator]):
    """A Generator of a schedule."""

    truth = -1  # the version that it really holds, whatever it says
    _answer: tuple[WorkItem, tuple[RolloutGroup, ...]] | None = None
    _again: tuple[int, WeightHandle] | None = None  # a load that is delivered once more, to this incarnation

    def _make(self) -> SimulatedGenerator:
        self.truth = -1
        generate = self._cost("generate")
        return simulated_generator(
            self.tracer, generate, generate, load_cost=self._cost("load"), lane=self.lane, lengths=varying_lengths(1, 9)
        )

    async def load_weights(self, weight_handle: WeightHandle) -> Metrics:
        version = weight_handle.version
        self.books.load_begins(self.lane, version)
        with self._heard(version):
            (holds, measured), fault = await self._call(
                "load", lambda part, fault: self._load(part, fault, weight_handle)
            )
            if fault is not None and holds != version:
                self.books.fault(fault, f"it holds {holds}, not {version}")
            if fault is not None and fault.kind is FaultKind.SECOND_LOAD:
                self._again = self.incarnation, weight_handle
        self.books.load_ends(self.lane, version)
        return measured

    async def _load(
        self, part: SimulatedGenerator, fault: Fault | None, weight_handle: WeightHandle
    ) -> tuple[int, Metrics]:
        """Load, or pretend to; return the version that it holds then. One that held nothing cannot own up to that."""
        held, kind = self.truth, None if fault is None else fault.kind
        if kind is FaultKind.LOST_WEIGHTS and held >= 0:
            return held, await part.load_weights(replace(weight_handle, version=held, payload=None))
        measured = await part.load_weights(weight_handle)
        self.truth = weight_handle.version
        return self.truth, measured

    async def generate(self, item: WorkItem) -> tuple[RolloutGroup, ...]:
        self.books.generate_begins(self.lane, item, self.truth)
        with self._heard(item.step if item.purpose is Purpose.EVALUATE else None):
            groups, fault = await self._call("generate", lambda part, _: self._generate(part, item))
        before, self._answer = self._answer, (item, groups)
        if fault is not None and fault.kind is FaultKind.OLD_ANSWER and before is not None and before[0] != item:
            self.books.fault(fault, f"the answer of step {before[0].step}")
            groups = before[1]
        if fault is not None and fault.kind is FaultKind.LOST_GROUPS:
            self.books.fault(fault, f"{fault.amount:g} of them, or all")
            groups = _shortened(groups, fault)
        self.books.generate_ends(self.lane, item, groups)
        return groups

    async def _generate(self, part: SimulatedGenerator, item: WorkItem) -> tuple[RolloutGroup, ...]:
        self._load_again(part)
        return await part.generate(item)

    def _load_again(self, part: SimulatedGenerator) -> None:
        """Have a load that is delivered once more replace newer weights, if its own are still there."""
        if self._again is None or self._again[1].version >= self.truth:
            return
        (incarnation, weight_handle), self._again = self._again, None
        if incarnation == self.incarnation and weight_handle.version in weight_handle.payload:
            [fault] = [fault for fault in self._faults.values() if fault.kind is FaultKind.SECOND_LOAD][-1:]
            self.books.fault(fault, f"version {weight_handle.version} replaces {self.truth}")
            self.truth = part.version = weight_handle.version


class FaultyScorer(_FaultyPart[SimulatedScorer]):
    """A Scorer of a schedule."""

    _answer: ScoredBatch | None = None

    def _make(self) -> SimulatedScorer:
        flat = self.schedule.is_flat
        return simulated_scorer(self.tracer, self._cost("score"), self.lane, fails=self._never_rewarded, is_flat=flat)

    def _never_rewarded(self, item: WorkItem, prompt_id: int) -> bool:
        place = item.places[item.prompt_ids.index(prompt_id)]
        return (item.purpose, item.step, place, item.attempt) in self.schedule.never_rewarded

    async def score(self, item: WorkItem, groups: tuple[RolloutGroup, ...]) -> ScoredBatch:
        self.books.score_begins(self.lane, item, groups[0].min_version)
        with self._heard():
            scored, fault = await self._call("score", lambda part, _: part.score(item, groups))
        before, self._answer = self._answer, scored
        if fault is not None and fault.kind is FaultKind.OLD_ANSWER and before is not None and before.item != item:
            self.books.fault(fault, f"the answer of step {before.item.step}")
            scored = before
        if fault is not None and fault.kind is FaultKind.LOST_GROUPS and scored.groups:
            self.books.fault(fault, f"{fault.amount:g} of them, or all")
            scored = replace(scored, groups=_shortened(scored.groups, fault))
        self.books.score_ends(self.lane, item, groups, scored)
        return scored


class FaultyLearner(_FaultyPart[SimulatedLearner]):
    """The Learner of a schedule. Nobody replaces it."""

    _ticket: WeightHandle | None = None

    def _make(self) -> SimulatedLearner:
        return simulated_learner(
            self.tracer, self._cost("update"), self._cost("publish"), self.schedule.epochs, lane=self.lane
        )

    async def accumulate(self, step: int, groups: tuple[RolloutGroup, ...]) -> None:
        raise AssertionError("no schedule has parts of a batch")

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        self.books.update_begins(step, groups)
        result, _ = await self._call("update", lambda part, _: part.update(step, groups))
        self.books.update_ends(result)
        return result

    async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
        self.books.publish_begins(version, still_needed)
        weight_handle, fault = await self._call("publish", lambda part, _: part.publish_weights(version, still_needed))
        before, self._ticket = self._ticket, weight_handle
        if fault is not None and fault.kind is FaultKind.OLD_TICKET and before is not None:
            self.books.fault(fault, f"the weight_handle of version {before.version}")
            weight_handle = before
        self.books.publish_ends(weight_handle)
        return weight_handle

    async def save_policy(self, version: int, *, last: bool) -> None:
        await self._call("save_policy", lambda part, _: part.save_policy(version, last=last))


def _shortened(groups: tuple[RolloutGroup, ...], fault: Fault) -> tuple[RolloutGroup, ...]:
    return groups[: -int(fault.amount)] if fault.amount else ()
