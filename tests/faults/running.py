"""One schedule, from start to outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from harness.core.trace import RecordingTracer
from harness.loop import Condition, LoopPlan, LoopState, run_loop
from harness.loop.batching import BatchAssembler
from harness.run.watchdog import watch
from harness.simulate.clock import run_virtual
from tests.faults.checker import Books, Broken, Event
from tests.faults.expected_outcome import ending
from tests.faults.faulty import FaultyGenerator, FaultyLearner, FaultyScorer, Injected
from tests.faults.killing import Killed, Shelf, SlowCheckpoints
from tests.faults.recording import Listener, WatchedGenerator, WatchedLearner, WatchedScorer, WatchedTracer
from tests.faults.schedule import LEARNER, FaultKind, Schedule

STALL_AFTER_S = 1e6
"""Virtual seconds after which the watchdog takes a call for hung; slow and stuck ones take less."""


@dataclass(frozen=True)
class Wiring:
    """What the loop is put together from. The default is the loop as it is; another one plants a bug in it.

    Attributes:
        plan: what the loop gets for the schedule's plan.
        new_condition: makes what wakes those who wait.
        assembler: makes what turns scored shards into batches; None takes the loop's own.
        saved: what becomes of the loop's state before it is written.
    """

    plan: Callable[[LoopPlan], LoopPlan] = lambda plan: plan
    new_condition: Callable[[], Condition] = Condition
    assembler: Callable[[Schedule], BatchAssembler | None] = lambda schedule: None
    saved: Callable[[LoopState], LoopState] = lambda state: state


@dataclass(frozen=True)
class Outcome:
    """How a run went.

    Attributes:
        schedule: what was run.
        end: how it ended; see ``endings``. Empty where an invariant broke.
        broken: the first invariant that did not hold.
        happened: faults that really happened, by what and how.
        events: all that was written down.
        resumed: versions that it went on from, in order; 0 is the beginning.
    """

    schedule: Schedule
    end: str
    broken: Broken | None
    happened: Counter[str]
    events: tuple[Event, ...]
    resumed: tuple[int, ...] = ()


def run_schedule(schedule: Schedule, wiring: Wiring | None = None) -> Outcome:
    """Run one schedule on the virtual clock and check the invariants after each event.

    Where everything is killed, it goes on from the newest whole checkpoint, or from the beginning where there is none,
    with the faults that have not happened.
    """
    wiring, shelf, books = wiring or Wiring(), Shelf(), Books(schedule, now=lambda: 0.0)
    events, happened = books.events, books.happened
    state: LoopState | None = None
    resumed = list[int]()
    kills = iter(schedule.kills)
    while True:
        error = _run_until_killed(books, wiring, shelf, state, next(kills, None))
        if books.broken is not None or not _is_death_of_all(error, schedule):
            break
        if shelf.newest is None:
            books = Books(schedule, books.now, events, happened=happened)
        else:
            state, books = shelf.newest.read()
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
    return isinstance(error, Killed) or (
        bool(schedule.checkpoint_every) and isinstance(error, Injected) and error.kind is FaultKind.KILLED
    )


def _run_until_killed(
    books: Books, wiring: Wiring, shelf: Shelf, state: LoopState | None, kill: int | None
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
        run_virtual(lambda tracer: _run(books, wiring, shelf, state, tracer), after_each=after_each)
    except Exception as raised:
        return raised
    return None


async def _run(books: Books, wiring: Wiring, shelf: Shelf, state: LoopState | None, tracer: RecordingTracer) -> None:
    schedule, done = books.schedule, {fault for fault, _ in books.happened}
    if done:  # by those who were killed
        schedule = replace(schedule, faults=tuple(fault for fault in schedule.faults if fault not in done))
    watched, replaced, clock = WatchedTracer(tracer, books), [0], asyncio.get_running_loop().time
    books.now = lambda: books.start_s + clock()
    learner = FaultyLearner(LEARNER, schedule, watched, books.fault, replaced)
    books.readable = learner.part.readable
    loop = run_loop(
        [
            WatchedGenerator(FaultyGenerator(lane, schedule, watched, books.fault, replaced), books)
            for lane in schedule.generator_lanes
        ],
        [
            WatchedScorer(FaultyScorer(lane, schedule, watched, books.fault, replaced), books)
            for lane in schedule.scorer_lanes
        ],
        WatchedLearner(learner, books),
        wiring.plan(schedule.plan),
        watched,
        Listener(books),
        resume=state,
        checkpoints=SlowCheckpoints(shelf, books, watched, wiring.saved),
        assembler=wiring.assembler(schedule),
        new_condition=wiring.new_condition,
    )
    if any(fault.kind is FaultKind.HUNG for fault in schedule.faults):
        await _watched(loop, tracer)
    else:  # without a watchdog's timer, a deadlock is found at once
        await loop


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
