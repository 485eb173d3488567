"""The order in which things arrive in the loop, and how another run repeats it.

What an asynchronous run trains on depends on time: which Generator takes which order, with which weights it starts, in
which order scored shards come in, what is too old by then. All of that is decided between two awaits of the one loop:
it is one row of events. Each event says who did what:

    who                     what        decided by then
    ----------------------  ----------  --------------------------------------------------------------------------
    a Generator             order       this order is under way
                            again       so is this one, of groups to be sampled again
                            evaluate    this version is evaluated
                            load        these weights are loaded
                            start       the order is begun with the weights of this version
                            swap        these weights are loaded while it is being sampled (``in_flight``)
                            sampled     it is sampled: the next for the Scorers
    ``scored ...``          scored      this order's rewards are there, at this version of the Learner
    the Learner             part        the shard is taken in before the batch is whole
                            take        the batch is made of these orders
                            version     the Learner is at this version: what is too old is dropped
                            hold, save  a checkpoint waits for evaluations; it is made
                            done        all steps are made
    the Learner, publishing published   the weights of this version can be loaded

A run that repeats lets nobody decide before its turn. Then the state of the loop is that of the recorded run at this
event, by induction over the events, and so is the decision: the same event, which is checked. It cannot wait for ever,
since in the recorded run, too, all earlier events came first. Work between the events is as concurrent as ever. From
the last recorded event on, nobody waits for a turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from harness.core.errors import RunStopped
from harness.core.types import WorkItem

Swaps = tuple[tuple[int, int], ...]
"""See ``RolloutGroup.swaps``."""
Order = tuple[str, int, int, int]
"""Purpose, batch (of an evaluation the version), shard and attempt."""


class Arrival(NamedTuple):
    """An event; ``version`` is -1 where none is meant. ``swaps`` are those of the groups that were sampled."""

    who: str
    what: str
    orders: tuple[Order, ...] = ()
    version: int = -1
    swaps: Swaps = ()

    def __str__(self) -> str:
        about = [f"{purpose} {step}.{shard}.{attempt}" for purpose, step, shard, attempt in self.orders]
        return " ".join([self.who, self.what, *about, *([f"at version {self.version}"] if self.version >= 0 else [])])


DONE = "done"


def order_of(item: WorkItem) -> Order:
    """Return what names an order."""
    return item.purpose.value, item.step, item.shard, item.attempt


def scored_by(item: WorkItem) -> str:
    """Return who makes the event that an order was scored: whichever Scorer has it."""
    return "scored " + ".".join(map(str, order_of(item)))


class Arrivals(Protocol):
    """Hears of the events, and says whose turn it is."""

    def is_turn(self, who: str) -> bool:
        """Whether the next event may be this one's."""

    async def turn(self, who: str) -> None:
        """Return when the next event is this one's. There is nothing to await between this and the event."""

    def happened(self, arrival: Arrival) -> None:
        """Take in an event."""

    def nothing_to_do(self, who: str) -> None:
        """It is this one's turn, and it has to wait for something else.

        Raises:
            RunStopped: this run does not repeat the recorded one.
        """

    def swaps_of(self, who: str) -> tuple[int, Swaps] | None:
        """Return how often a Generator loads weights while it samples the order that it has begun, and where these take
        over; None where that comes as it comes.
        """


class AsItComes:
    """Lets everything come as it comes.

    Args:
        write: takes each event.
    """

    def __init__(self, write: Callable[[Arrival], None] = lambda arrival: None) -> None:
        self._write, self._is_done = write, False

    def is_turn(self, who: str) -> bool:
        """See ``Arrivals``."""
        return True

    async def turn(self, who: str) -> None:
        """See ``Arrivals``."""

    def happened(self, arrival: Arrival) -> None:
        """See ``Arrivals``. What comes after the last step is of no use to anyone."""
        if not self._is_done:
            self._write(arrival)
        self._is_done |= arrival.what == DONE

    def nothing_to_do(self, who: str) -> None:
        """See ``Arrivals``."""

    def swaps_of(self, who: str) -> tuple[int, Swaps] | None:
        """See ``Arrivals``."""
        return None


class Repeated(AsItComes):
    """Has everything come as in another run.

    Args:
        arrivals: of that run.
        write: takes each event.
    """

    def __init__(self, arrivals: Iterable[Arrival], write: Callable[[Arrival], None] = lambda arrival: None) -> None:
        super().__init__(write)
        self._due, self._number = deque(arrivals), 0
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def is_turn(self, who: str) -> bool:
        """See ``Arrivals``."""
        return not self._due or self._due[0].who == who

    async def turn(self, who: str) -> None:
        """See ``Arrivals``."""
        while not self.is_turn(who):
            self._waiting[who] = asyncio.get_running_loop().create_future()
            await self._waiting[who]

    def happened(self, arrival: Arrival) -> None:
        """See ``Arrivals``.

        Raises:
            RunStopped: another event came then.
        """
        if self._due:
            due = self._due.popleft()
            if due != arrival:
                raise RunStopped(
                    f"the run does not repeat the recorded one: event {self._number} was {due}, is {arrival}"
                )
            self._number += 1
        if arrival.what == DONE:
            self._due.clear()
        super().happened(arrival)
        for who in [self._due[0].who] if self._due else [*self._waiting]:
            waiting = self._waiting.pop(who, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def nothing_to_do(self, who: str) -> None:
        """See ``Arrivals``."""
        if self._due:
            what = f"event {self._number} was {self._due[0]}, and {who} has to wait"
            raise RunStopped(f"the run does not repeat the recorded one: {what}")

    def swaps_of(self, who: str) -> tuple[int, Swaps] | None:
        """See ``Arrivals``. None, too, where the recording ends before the order was sampled."""
        loads = 0
        for arrival in self._due:
            if arrival.who == who:
                if arrival.what != "swap":
                    return loads, arrival.swaps
                loads += 1
        return None
