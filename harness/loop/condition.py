"""Waiting for a condition on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any


class Condition:
    """Wakes those who wait for a condition, in the order in which they came.

    Whoever changes what a condition looks at notifies afterwards. Who is woken looks at its condition once more, since
    somebody else may have been faster; then it waits anew, behind the others.
    """

    def __init__(self) -> None:
        self._waiters: deque[tuple[asyncio.Future[None], Callable[[], bool]]] = deque()

    def notify(self) -> None:
        """Wake everyone whose condition holds."""
        if self._waiters:
            waiters, self._waiters = self._waiters, deque()
            self._waiters.extend(entry for entry in waiters if not _wake(*entry))

    def notify_one(self) -> None:
        """Wake the first whose condition holds: where there is something for one of them only."""
        passed_over = []
        while self._waiters:
            entry = self._waiters.popleft()
            if entry[0].done():  # gave up
                continue
            if _wake(*entry):
                break
            passed_over.append(entry)
        self._waiters.extendleft(reversed(passed_over))

    async def until(self, condition: Callable[[], bool], or_done: asyncio.Future[Any] | None = None) -> None:
        """Return once ``condition`` holds; it is looked at now, at each notification, and when ``or_done`` is done."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((waiter, condition))
            if or_done is not None:
                or_done.add_done_callback(partial(_release, waiter))
            await waiter


def _wake(waiter: asyncio.Future[None], condition: Callable[[], bool]) -> bool:
    """Wake a waiter whose condition holds; return True if it can be dropped."""
    if waiter.done():  # gave up, or was woken by something else
        return True
    if condition():
        waiter.set_result(None)
        return True
    return False


def _release(waiter: asyncio.Future[None], done: object) -> None:
    if not waiter.done():
        waiter.set_result(None)
