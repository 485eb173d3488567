"""Where simulated work is done: on a device of its own, or on cores that parts share.

A call is a row of pieces, one after the other, on a thread that does one call at a time. Pieces that keep cores busy
slow each other down where they share them; pieces that only wait do not. What a place does goes on while the driver is
held up: the times of the pieces are its own, and the driver hears of the end as soon as it can.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Times = list[tuple[float, float]]
"""Start and end of each piece, in seconds of the virtual clock."""
_ROUNDING_S = 1e-12
"""How far a timer of the virtual clock may be from the time that it was set to."""


class Piece(NamedTuple):
    """A part of a call.

    ``seconds`` it takes alone, and ``cores`` it would like to keep busy; 0 only waits. One that is ``brief`` is slowed
    down by others and slows nobody down, as work of a few milliseconds that the system lets through at once.
    """

    seconds: float
    cores: float = 1
    brief: bool = False


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
        """See ``Place``."""
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
            loop.call_at(at, _finish, done)
            await done
        return times


def _finish(done: asyncio.Future[None]) -> None:
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
        """See ``Place``."""
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
        burdens = [call.piece.cores for call in self._active if call.piece.cores and not call.piece.brief]
        wanted = sum(burdens)
        for call in self._active:
            speed = self._speed(call.piece, len(burdens), wanted)
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
