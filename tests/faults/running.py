"""One schedule, from start to outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from harness.core.trace import RecordingTracer
from harness.loop import Condition, LoopPlan, LoopState, run_loop
from harness.loop.batching import BatchAssembler
from harness.loop.loop import new_assembler
from harness.run.watchdog import watch
from harness.simulate.clock import run_virtual
from tests.faults.checker import Books, Broken, Event
from tests.faults.expected_outcome import ending
from tests.faults.faulty import FaultyGenerator, FaultyLearner, FaultyScorer, Injected
from tests.faults.killing import Checkpoint, Killed, SlowCheckpoints
from tests.faults.recording import Listener, WatchedTracer
from tests.faults.schedule import LEARNER, FaultKind, Schedule
from tests.stand_ins.checked_loop import CheckedLoop

STALL_AFTER_S = 1e6
"""Virtual seconds after which the watchdog takes a call for hung; slow and stuck ones take less."""


@dataclass(frozen=True)
class Wiring:
    """What the loop is put together from. The default is the loop as it is; another one plants a bug in it."""

    plan: Callable[[LoopPlan], LoopPlan] = lambda plan: plan  # what the loop gets for the schedule's plan
    new_condition: Callable[[], Condition] = Condition  # wakes those who wait
    assembler: Callable[[LoopPlan, int], BatchAssembler] = new_assembler  # turns scored shards into batches
    saved: Callable[[LoopState], LoopState] = lambda state: state  # what becomes of a state before it is written


@dataclass(frozen=True)
class Outcome:
    """How a run went."""

    schedule: Schedule
    end: str  # see ``ending``; empty where an invariant broke
    broken: Broken | None  # the first invariant that did not hold
    happened: Counter[str]  # faults that really happened, by what and how
    events: tuple[Event, ...]
    resumed: tuple[int, ...] = ()  # versions that it went on from, in order; 0 is the beginning


def run_schedule(schedule: Schedule, wiring: Wiring | None = None) -> Outcome:
    """Run one schedule on the virtual clock and check the invariants after each event.

    Where everything is killed, it goes on from the newest whole checkpoint, or from the beginning where there is none,
    with the faults that have not happened.
    """
    wiring, books, whole = wiring or Wiring(), Books(schedule, now=lambda: 0.0), list[Checkpoint]()
    events, happened, resumed = books.events, books.happened, list[int]()
    state: LoopState | None = None
    kills = iter(schedule.kills)
    while True:
        error = _run_until_killed(books, whole, wiring, state, next(kills, None))
        if books.broken is not None or not _is_death_of_all(error, schedule):
            break
        newest = max(whole, key=lambda checkpoint: checkpoint.books.version, default=None)
        if newest is None:
            state, books = None, Books(schedule, books.now, events, happened=happened)
        else:
            state, books = newest.read()
        resumed.append(books.version)
        books.start_s = books.last_s = events[-1].time_s if events else 0.0
        books.note("everything", "killed", version=books.version, detail=str(error))
    try:
        end, broken = ending(books, error), None
    except Broken as found:
        end, broken = "", found
    return Outcome(schedule, end, broken, _happened(books), tuple(events), tuple(resumed))


def _is_death_of_all(error: BaseException | None, schedule: Schedule) -> bool:
    """Whether a run that makes checkpoints goes on after this; nobody but the Learner has what it had learnt."""
    is_of_learner = isinstance(error, Injected) and error.kind is FaultKind.KILLED
    return isinstance(error, Killed) or (bool(schedule.checkpoint_every) and is_of_learner)


def _run_until_killed(
    books: Books, whole: list[Checkpoint], wiring: Wiring, state: LoopState | None, kill: int | None
) -> BaseException | None:
    """Run until the end or ``kill`` callbacks from here; return what was raised."""
    callbacks = 0

    def after_each() -> None:
        nonlocal callbacks
        books.tick()
        callbacks += 1
        if callbacks == kill:
            raise Killed(f"after {kill} callbacks")

    try:
        run_virtual(lambda tracer: _run(books, whole, wiring, state, tracer), CheckedLoop(after_each))
    except Exception as raised:
        return raised
    return None


async def _run(
    books: Books, whole: list[Checkpoint], wiring: Wiring, state: LoopState | None, tracer: RecordingTracer
) -> None:
    """Run in one process."""
    clock, start_s = asyncio.get_running_loop().time, books.start_s
    books.now = lambda: start_s + clock()
    schedule, watched = _still_to_happen(books), WatchedTracer(tracer, books)
    others = schedule, books, watched, [0]
    learner = FaultyLearner(LEARNER, *others)
    books.readable = learner.part.readable
    loop = run_loop(
        [FaultyGenerator(lane, *others) for lane in schedule.generator_lanes],
        [FaultyScorer(lane, *others) for lane in schedule.scorer_lanes],
        learner,
        wiring.plan(schedule.plan),
        watched,
        Listener(books),
        resume=state,
        checkpoints=SlowCheckpoints(whole, books, watched, wiring.saved),
    )
    with (
        patch("harness.loop.loop.new_assembler", wiring.assembler),
        patch("harness.loop.loop.Condition", wiring.new_condition),
    ):
        if any(fault.kind is FaultKind.HUNG for fault in schedule.faults):
            await _watched(loop, tracer)
        else:  # without a watchdog's timer, a deadlock is found at once
            await loop


def _still_to_happen(books: Books) -> Schedule:
    """The schedule without the faults that struck those who are dead."""
    done = {fault for fault, _ in books.happened}
    return replace(books.schedule, faults=tuple(fault for fault in books.schedule.faults if fault not in done))


async def _watched(loop: Coroutine[Any, Any, None], tracer: RecordingTracer) -> None:
    """Run the loop beside the watchdog, as real runs do."""
    watchdog = watch(tracer, STALL_AFTER_S, lambda: "", lambda report: None, STALL_AFTER_S / 10)
    tasks = [asyncio.ensure_future(loop), asyncio.ensure_future(watchdog)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _happened(books: Books) -> Counter[str]:
    """Count the faults; a death by when it came."""
    counts: Counter[str] = Counter()
    for fault, how in books.happened:
        part = fault.lane.rstrip("0123456789")
        when = f" {how}" if fault.kind is FaultKind.KILLED and part != LEARNER else ""
        counts[f"{part} {fault.call}: {fault.kind}{when}"] += 1
    counts["a reward never comes"] += len(books.failed)
    counts["an evaluation's reward never comes"] += books.failed_evaluations
    return +counts
