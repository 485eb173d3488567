"""Checkpoints of a run on the virtual clock, as bytes; and the death of everything at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from harness.core.errors import HarnessError
from harness.core.trace import Stage, Tracer
from harness.loop import LoopState
from harness.loop.state_files import decode, encode
from tests.faults.checker import Books
from tests.faults.schedule import LEARNER


class Killed(HarnessError):
    """Everything died: nobody cleans up, nobody hears of it."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole one: the books when it was taken, and what was written of the loop."""

    books: Books
    written: tuple[bytes, bytes]

    def read(self) -> tuple[LoopState, Books]:
        """Return the state for the loop that goes on, and the books of its history."""
        state = decode(*self.written, LoopState)
        return state, self.books.go_on(state)


class SlowCheckpoints:
    """Holds the Learner up for ``save_s``; after ``write_s`` more the checkpoint is in ``whole``, which nobody kills.

    ``planted`` is what becomes of a state before it is written: a bug.
    """

    def __init__(
        self, whole: list[Checkpoint], books: Books, tracer: Tracer, planted: Callable[[LoopState], LoopState]
    ) -> None:
        self._whole, self._books, self._tracer, self._planted = whole, books, tracer, planted

    async def save(self, state: LoopState) -> None:
        books, schedule = self._books, self._books.schedule
        books.require(
            state.version == books.version == books.steps,
            "versions",
            f"a checkpoint of version {state.version} is taken at {books.version}, after {books.steps} steps",
        )
        checkpoint = Checkpoint(books.copy(), encode(self._planted(state)))
        books.note(LEARNER, "checkpoint begins", version=state.version)
        with self._tracer.span(LEARNER, Stage.CHECKPOINT, version=state.version):
            await asyncio.sleep(schedule.save_s)
        asyncio.get_running_loop().call_later(schedule.write_s, self._whole.append, checkpoint)
