"""Waiting for a condition on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Wakes everyone who waits for a condition, in the order in which they came."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Have every waiter look at its condition again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds; it is looked at now and after each ring."""
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
