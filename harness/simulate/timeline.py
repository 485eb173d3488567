"""Calls to simulated parts on the virtual clock: request, stages, response, and the spans that they leave.

The work of a call is done in a place: on a device of the part's own, or on cores that parts share. A call is a row of
pieces, one after the other, on a thread that does one call at a time. Pieces that keep cores busy slow each other down
where they share them; pieces that only wait do not. What a place does goes on while the driver is held up: the times of
the pieces are its own, and the driver hears of the end as soon as it can.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from harness.core.trace import RecordingTracer, Span, Stage
from harness.simulate.clock import TICKS_PER_NS, to_ticks

Times = list[tuple[float, float]]
"""Start and end of each piece, in seconds of the virtual clock."""
_ROUNDING_S = 1e-12
"""How far a timer of the virtual clock may be from the time that it was set to."""
_HALF_NS = TICKS_PER_NS // 2


class StagePlan(NamedTuple):
    """A stage of a call, or a gap between two where ``stage`` is None; one that does not work only waits."""

    stage: Stage | None
    seconds: float
    works: bool = True


class CallPlan(NamedTuple):
    """How long a call to a part takes, where nothing slows it down.

    Attributes:
        stages: what it does, in order; none where the call alone takes time.
        request_s: seconds on its way to the part.
        response_s: seconds on its way back.
        delay_s: seconds before it is made.
    """

    stages: Sequence[StagePlan]
    request_s: float = 0.0
    response_s: float = 0.0
    delay_s: float = 0.0


make_stage: Callable[[tuple[Stage | None, float, bool]], StagePlan] = partial(tuple.__new__, StagePlan)
"""Makes plans of all their fields, in half the time of the class's own constructor."""


@dataclass(frozen=True)
class CallTimeline:
    """Makes the calls to one part, and records their spans as they come in with the response.

    A call to an actor leaves the spans of its stages first, then the waits for the call at both ends; in one process
    there are no such waits. Spans are rounded to nanoseconds as the virtual clock rounds them.

    Attributes:
        lane: of the part.
        tracer: takes its spans.
        place: does its work.
        thread: on which its calls take turns.
        loading: thread on which it loads weights.
        remote: whether the part is an actor.
        cores: that it would like to have for its work.
        transit_cores: that a request or a response would like to have; 0: it only waits.
        parts: that are at work side by side: the ranks of a Learner. Together they would like to have ``cores``.
    """

    lane: str
    tracer: RecordingTracer
    place: Place
    thread: str
    loading: str
    remote: bool
    cores: float = 1
    transit_cores: float = 0
    parts: int = 1

    async def run(self, plan: CallPlan, step: int, version: int, *, loading: bool = False) -> Times:
        """Make a call; return the times of its stages.

        Args:
            plan: how long it takes.
            step, version: of its spans.
            loading: whether it loads weights.
        """
        if plan.delay_s > 0:
            await asyncio.sleep(plan.delay_s)
        stages = plan.stages
        pieces = [Piece(plan.request_s, self.transit_cores, True)]
        pieces += [Piece(each.seconds, self.cores if each.works else 0, False, self.parts) for each in stages]
        pieces.append(Piece(plan.response_s, self.transit_cores, True))
        shown = (stages[0].stage or Stage.WAIT_FOR_CALL, step, version) if stages else (Stage.WAIT_FOR_CALL, -1, -1)
        with self.tracer.underway(self.lane, *shown):
            times = await self.place.run(self.loading if loading else self.thread, pieces)
        self.tracer.finished.extend(self._spans(stages, times, *shown[1:]))
        return times[1:-1]

    def _spans(self, stages: Sequence[StagePlan], times: Times, step: int, version: int) -> list[Span]:
        """Return the stages' spans, and behind them the waits at both ends of an actor's call, if they took time."""
        ends = [clock_ns(times[0][0]), *[clock_ns(end) for _, end in times]]  # a piece begins where the last one ended
        spans = [
            tuple.__new__(Span, (self.lane, each.stage, ends[number], ends[number + 1], step, version))
            for number, each in enumerate(stages, start=1)
            if each.stage is not None
        ]
        if self.remote:
            waits = ((ends[0], ends[1]), (ends[-2], ends[-1])) if stages else ((ends[0], ends[-1]),)
            spans += [
                tuple.__new__(Span, (self.lane, Stage.WAIT_FOR_CALL, start, end, step, version))
                for start, end in waits
                if start < end
            ]
        return spans


def clock_ns(seconds: float) -> int:
    """Return the virtual clock's nanoseconds at so many seconds, rounded as it rounds them."""
    return (to_ticks(seconds) + _HALF_NS) // TICKS_PER_NS


class Piece(NamedTuple):
    """A part of a call.

    ``seconds`` it takes alone, and ``cores`` it would like to keep busy; 0 only waits. One that is ``brief`` is slowed
    down by others and slows nobody down, as work of a few milliseconds that the system lets through at once. So many
    ``parts`` are at work side by side in it, and slow each other down too.
    """

    seconds: float
    cores: float = 1
    brief: bool = False
    parts: int = 1


class Place(Protocol):
    """Does work."""

    async def run(self, thread: str, pieces: Sequence[Piece]) -> Times:
        """Return when every piece is done, with their times.

        Args:
            thread: calls of one thread are done one after the other, in the order in which they came.
            pieces: of the call, in order.
        """


class OwnDevice:
    """A device whose user shares it with nobody: pieces take just their seconds."""

    def __init__(self) -> None:
        self._free_s: dict[str, float] = {}

    async def run(self, thread: str, pieces: Sequence[Piece]) -> Times:
        loop = asyncio.get_running_loop()
        now = loop.time()
        at = max(now, self._free_s.get(thread, 0.0))
        times: Times = []
        for piece in pieces:
            start, at = at, at + piece.seconds
            times.append((start, at))
        self._free_s[thread] = at
        if at > now:
            done: asyncio.Future[None] = loop.create_future()
            loop.call_at(at, finish, done)
            await done
        return times


def finish(done: asyncio.Future[None]) -> None:
    """Wake who waits for the future, unless the wait was cancelled."""
    if not done.done():
        done.set_result(None)


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way. Of its ``piece`` ``left`` seconds were left at ``since``; at ``speed`` it ends at ``end``."""

    thread: str
    pieces: Sequence[Piece]
    done: asyncio.Future[None]
    piece: Piece
    start: float = 0.0
    since: float = 0.0
    left: float = 0.0
    speed: float = 1.0
    end: float = 0.0
    times: Times = field(default_factory=list)


ASSUMED_SLOWDOWN, ASSUMED_SLOWDOWN_SD = 0.2, 0.15
"""Slow-down taken where no run with two parts at work at the same time was calibrated, and its standard error."""


class SharedCores:
    """Processor sharing: a piece beside n others at work, that together want so many cores, goes at

    speed = min(1, cores / wanted) / (1 + slowdown n). Alone, wanting no more than the cores there are, at 1.

    Args:
        cores: there are.
        slowdown: for each other piece at work.
    """

    def __init__(self, cores: float, slowdown: float = 0.0) -> None:
        self._cores, self._slowdown = cores, slowdown
        self._now = 0.0
        self._active: list[_Call] = []
        self._queued: dict[str, deque[_Call]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    async def run(self, thread: str, pieces: Sequence[Piece]) -> Times:
        loop = asyncio.get_running_loop()
        if not pieces:
            return []
        call = _Call(thread, pieces, loop.create_future(), pieces[0])
        self._advance(loop.time())
        queue = self._queued.get(thread)
        if queue is None:
            self._queued[thread] = deque()
            self._begin(call)
            self._advance(loop.time())  # pieces that take no time
        else:
            queue.append(call)
        self._set_timer(loop)
        await call.done
        return call.times

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = self._timer_at = None
        self._advance(loop.time())
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        first = min([call.end for call in self._active], default=None)
        if first == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = first
        self._timer = None if first is None else loop.call_at(first, self._wake)

    def _advance(self, to: float) -> None:
        """End every piece that ends by then, each at its own time."""
        while self._active:
            call = min(self._active, key=_end)
            if call.end > to + _ROUNDING_S + 4 * math.ulp(to):
                break
            self._now = max(self._now, call.end)
            self._end_piece(call)
        self._now = max(self._now, to)

    def _end_piece(self, call: _Call) -> None:
        call.times.append((call.start, self._now))
        if len(call.times) < len(call.pieces):
            self._start_piece(call)
            self._share()
            return
        self._active.remove(call)
        if not call.done.done():
            call.done.set_result(None)
        queue = self._queued[call.thread]
        if queue:
            self._begin(queue.popleft())
        else:
            del self._queued[call.thread]
            self._share()

    def _begin(self, call: _Call) -> None:
        self._active.append(call)
        self._start_piece(call)
        self._share()

    def _start_piece(self, call: _Call) -> None:
        call.piece = call.pieces[len(call.times)]
        call.start = call.since = self._now
        call.left, call.speed = call.piece.seconds, 0.0
        call.end = math.inf

    def _share(self) -> None:
        """Time what is left anew where the speed is another one now."""
        burdens = [call.piece for call in self._active if call.piece.cores and not call.piece.brief]
        wanted, parts = sum([piece.cores for piece in burdens]), sum([piece.parts for piece in burdens])
        for call in self._active:
            speed = self._speed(call.piece, parts, wanted)
            if speed != call.speed:
                call.left = max(0.0, call.left - (self._now - call.since) * call.speed)
                call.since, call.speed = self._now, speed
                call.end = self._now + call.left / speed

    def _speed(self, piece: Piece, burdens: int, wanted: float) -> float:
        if not piece.cores:
            return 1.0
        others = burdens if piece.brief else burdens - 1
        share = wanted + piece.cores if piece.brief and burdens else max(wanted, piece.cores)
        return min(1.0, self._cores / share) / (1 + self._slowdown * others)


def _end(call: _Call) -> float:
    return call.end
