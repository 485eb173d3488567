"""A virtual clock with somebody who looks after each callback whether something still holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple, Unpack

from harness.simulate.clock import VirtualClockLoop

Ts = TypeVarTuple("Ts")


class CheckedLoop(VirtualClockLoop):
    """Calls ``check`` after each callback until it is closed; what that raises ends the run."""

    def __init__(self, check: Callable[[], object]) -> None:
        super().__init__()
        self._check, self._done = check, False

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._checked(callback), *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_later(delay, self._checked(callback), *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._checked(callback), *args, context=context)

    def _checked(self, callback: Callable[[Unpack[Ts]], object]) -> Callable[[Unpack[Ts]], None]:
        def call(*args: *Ts) -> None:
            callback(*args)
            if not self._done:
                self._check()

        return call

    def close(self) -> None:
        self._done = True
        super().close()
