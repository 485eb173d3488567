"""Arms that take turns: one training step each, on clocks that stand still while another arm works.

Live alternation compares arms under the same weather: a slow minute of the machine hits all of them. It is sound where
the arms do not work at the same time, so it is used at ``max_lag`` 0 only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from harness.loop import Condition
from harness.probes.clock import PausableClock


def alternating_order(arms: int, steps: Sequence[int], seed: int) -> list[tuple[int, int]]:
    """Return (arm, step) in the order in which arms take turns.

    Each round gives every arm one step. The order within a round is drawn from the seed and the next round runs it
    backwards (ABBA), so that a linear drift of the machine hits all arms alike.

    Args:
        arms: number of arms.
        steps: training steps of each arm; an arm that has finished is left out of later rounds.
        seed: of the drawn orders.
    """
    order: list[tuple[int, int]] = []
    rng = random.Random(seed)
    drawn: list[int] = []
    for step in range(max(steps)):
        drawn = drawn[::-1] if step % 2 else rng.sample(range(arms), arms)
        order += [(arm, step) for arm in drawn if step < steps[arm]]
    return order


def order_in_block(arms: int, block: int, seed: int) -> list[int]:
    """Return in which order the arms of a block run one after the other: ABBA over blocks, as over steps."""
    order = alternating_order(arms, [block + 1] * arms, seed)
    return [arm for arm, number in order if number == block]


class Turnstile:
    """Lets one arm at a time through, in a given order; the clocks of the others stand still. ``start`` opens it."""

    def __init__(self, order: Sequence[tuple[int, int]], clocks: Sequence[PausableClock]) -> None:
        self._order, self._clocks = deque(order), clocks
        self._started = False
        self._bell = Condition()

    def start(self) -> None:
        """Let the first arm through."""
        self._started = True
        self._let_in()

    def lane(self, arm: int) -> Turn:
        """Return the pace of one arm."""
        return Turn(self, arm)

    async def acquire(self, arm: int, step: int) -> None:
        """Return when it is this arm's turn to run this step."""
        await self._bell.until(lambda: self._started and bool(self._order) and self._order[0] == (arm, step))

    def advance(self, arm: int, step: int) -> None:
        """The arm has finished the step: stop its clock, start that of the next arm and let it through.

        Raises:
            ValueError: it was not this arm's turn.
        """
        if self._order[0] != (arm, step):
            raise ValueError(f"arm {arm} finished step {step} out of turn; expected {self._order[0]}")
        self._clocks[arm].pause()
        self._order.popleft()
        self._let_in()

    def drop(self, arm: int) -> None:
        """Take an arm out that will not finish: the others go on without it."""
        self._clocks[arm].pause()
        self._order = deque(entry for entry in self._order if entry[0] != arm)
        self._let_in()

    def _let_in(self) -> None:
        if self._order and self._started:
            self._clocks[self._order[0][0]].resume()
        self._bell.notify()


class Turn:
    """The pace of one arm behind a turnstile."""

    def __init__(self, turnstile: Turnstile, arm: int) -> None:
        self._turnstile, self._arm = turnstile, arm

    async def acquire(self, step: int) -> None:
        """See ``Throttle``."""
        await self._turnstile.acquire(self._arm, step)

    def finished(self, step: int) -> None:
        """Pass the turn on."""
        self._turnstile.advance(self._arm, step)
