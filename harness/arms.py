"""Arms that take turns: one training step each, on clocks that stand still while another arm works.

Live alternation compares arms under the same weather: a slow minute of the machine hits all of them. It is sound where
the arms do not work at the same time, so it is used at ``max_lag`` 0 only.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

from harness.loop import Bell


class PausableClock:
    """Nanoseconds of running time: the machine's monotonic clock less the pauses. Starts paused at 0.

    Attributes:
        on_resume, on_pause: called right after the time has begun to run, and right before it stops.
    """

    def __init__(self) -> None:
        self._elapsed_ns = 0
        self._resumed_at_ns: int | None = None
        self._stretches: list[tuple[int, int]] = []  # (monotonic clock, running time) at each resume
        self.on_resume: Callable[[], None] = _nothing
        self.on_pause: Callable[[], None] = _nothing

    @property
    def is_running(self) -> bool:
        """Whether the time runs."""
        return self._resumed_at_ns is not None

    def __call__(self) -> int:
        """Running time so far."""
        if self._resumed_at_ns is None:
            return self._elapsed_ns
        return self._elapsed_ns + time.perf_counter_ns() - self._resumed_at_ns

    def at(self, monotonic_ns: int) -> int:
        """Running time at a reading of the machine's monotonic clock. One in a pause counts as the pause's moment."""
        place = bisect_right(self._stretches, monotonic_ns, key=lambda stretch: stretch[0])
        if place == 0:
            return 0
        resumed_at_ns, elapsed_ns = self._stretches[place - 1]
        running_ns = elapsed_ns + monotonic_ns - resumed_at_ns
        if place < len(self._stretches):
            return min(running_ns, self._stretches[place][1])
        return running_ns if self._resumed_at_ns is not None else min(running_ns, self._elapsed_ns)

    def resume(self) -> None:
        """Let the time run."""
        if self._resumed_at_ns is None:
            self._resumed_at_ns = time.perf_counter_ns()
            self._stretches.append((self._resumed_at_ns, self._elapsed_ns))
            self.on_resume()

    def pause(self) -> None:
        """Stop the time."""
        if self._resumed_at_ns is not None:
            self.on_pause()
        self._elapsed_ns = self()
        self._resumed_at_ns = None


def _nothing() -> None: ...


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
        self._bell = Bell()

    def start(self) -> None:
        """Let the first arm through."""
        self._started = True
        self._let_in()

    def lane(self, arm: int) -> Turn:
        """Return the pace of one arm."""
        return Turn(self, arm)

    async def admit(self, arm: int, step: int) -> None:
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
        self._bell.ring()


class Turn:
    """The pace of one arm behind a turnstile."""

    def __init__(self, turnstile: Turnstile, arm: int) -> None:
        self._turnstile, self._arm = turnstile, arm

    async def admit(self, step: int) -> None:
        """See ``Pace``."""
        await self._turnstile.admit(self._arm, step)

    def finished(self, step: int) -> None:
        """Pass the turn on."""
        self._turnstile.advance(self._arm, step)
