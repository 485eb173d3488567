"""Arms that take turns: one training step each, on clocks that stand still while another arm works.

Live alternation compares arms under the same weather: a slow minute of the machine hits all of them. It is sound where
the arms do not work at the same time, so it is used at ``max_lag`` 0 only.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.loop import Condition
from harness.probes.clock import PausableClock
from harness.scenario.axes import Variant


def points_of(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Return the variants of each point of the sweep in each block: those are the arms that take turns."""
    return [list(group) for _, group in itertools.groupby(variants, key=lambda variant: (variant.block, variant.point))]


def interleaving_of(variants: Sequence[Variant]) -> str | None:
    """Return how a point's arms take turns: as asked for, else by ``step`` where all of them can, else by ``run``.

    Those can that are synchronous and make no checkpoints. None for a single arm.
    """
    if len(variants) == 1:
        return None
    asked = variants[0].scenario.interleaving
    if asked != "auto":
        return asked
    scenarios = [variant.scenario for variant in variants]
    by_step = all(
        scenario.is_synchronous and scenario.checkpoint.every is None and not scenario.command for scenario in scenarios
    )
    return "step" if by_step else "run"


@dataclass(frozen=True, slots=True)
class Group:
    """Runs whose parts are alive at the same time: arms that take turns by training step, or one run.

    ``interleaving`` stands in their manifests: ``step``, ``run`` for one after the other, or None for a single arm.
    """

    variants: Sequence[Variant]
    interleaving: str | None

    @property
    def block(self) -> int | None:
        return self.variants[0].block


def groups_of(points: Iterable[list[Variant]], by_itself: str | None = None) -> list[Group]:
    """Return the runs of each point in the order in which they are made.

    The points of every second block are turned round, and the arms of a point that run one after the other are in an
    order drawn from the seed, so that drift of the machine hits all alike. ``by_itself`` is the ``interleaving`` of a
    point with a single arm.
    """
    groups = list[Group]()
    for block, members in itertools.groupby(points, key=lambda variants: variants[0].block):
        for variants in reversed([*members]) if (block or 0) % 2 else members:
            interleaving = interleaving_of(variants) or by_itself
            if interleaving == "step":
                groups.append(Group(variants, interleaving))
                continue
            order = order_in_block(len(variants), block or 0, variants[0].scenario.seed - (block or 0))
            groups += [Group([variants[number]], interleaving) for number in order]
    return groups


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


class RoundRobinSchedule:
    """Gives one arm at a time its turn, in a given order; the clocks of the others stand still.

    Args:
        order: arm and step of each turn.
        clocks: of the arms.
        between: called with the number of the arm after each of its turns, while every clock stands still.
    """

    def __init__(
        self,
        order: Sequence[tuple[int, int]],
        clocks: Sequence[PausableClock],
        between: Callable[[int], None] = lambda arm: None,
    ) -> None:
        self._order, self._clocks, self._between = deque(order), clocks, between
        self._started = False
        self._turn_passed = Condition()

    def start(self) -> None:
        self._started = True
        self._let_next_begin()

    def slot(self, arm: int) -> Slot:
        return Slot(self, arm, last=max(step for number, step in self._order if number == arm))

    async def acquire(self, arm: int, step: int) -> None:
        await self._turn_passed.until(lambda: self._started and bool(self._order) and self._order[0] == (arm, step))

    def advance(self, arm: int, step: int) -> None:
        """The arm has finished the step: stop its clock, start that of the next arm and let it begin.

        Raises:
            ValueError: it was not this arm's turn.
        """
        if self._order[0] != (arm, step):
            raise ValueError(f"arm {arm} finished step {step} out of turn; expected {self._order[0]}")
        self._clocks[arm].pause()
        self._between(arm)
        self._order.popleft()
        self._let_next_begin()

    def drop(self, arm: int) -> None:
        """Take an arm out: the others go on without it."""
        self._clocks[arm].pause()
        self._order = deque(entry for entry in self._order if entry[0] != arm)
        self._let_next_begin()

    def _let_next_begin(self) -> None:
        if self._order and self._started:
            self._clocks[self._order[0][0]].resume()
        self._turn_passed.notify()


class Slot:
    """The turns of one arm in a schedule; the loop's ``Throttle``."""

    def __init__(self, schedule: RoundRobinSchedule, arm: int, last: int) -> None:
        self._schedule, self._arm, self._last = schedule, arm, last

    async def acquire(self, step: int) -> None:
        await self._schedule.acquire(self._arm, step)

    def finished(self, step: int) -> None:
        """Pass the turn on. That of the last step ends with ``leave``, when the run is saved, at nobody else's cost."""
        if step < self._last:
            self._schedule.advance(self._arm, step)

    def leave(self) -> None:
        self._schedule.drop(self._arm)


class Alone:
    """The schedule and the slot of an arm that has the machine to itself: it never waits.

    Args:
        clock: of the arm.
        between: called before each batch but the first, while the clock stands still; None lets it run on. Its one
            Generator has its weights by then, and everybody else waits for it: what a part did meanwhile would be
            nobody's time.
        is_busy: whether a part is at work before the batch of a step all the same; then nothing is called.
    """

    def __init__(
        self,
        clock: PausableClock,
        between: Callable[[], object] | None = None,
        is_busy: Callable[[int], bool] = lambda step: False,
    ) -> None:
        self._clock, self._between, self._is_busy = clock, between, is_busy
        self._newest: int | None = None

    def start(self) -> None:
        """Let the arm's time run."""
        self._clock.resume()

    def slot(self, arm: int) -> Alone:
        """Return the turns of the arm."""
        return self

    async def acquire(self, step: int) -> None:
        """Do what is done between the step before and this one, once."""
        is_next = self._newest is not None and step > self._newest
        self._newest = step if self._newest is None else max(step, self._newest)
        if is_next and self._between is not None and not self._is_busy(step):
            self._clock.pause()
            self._between()
            self._clock.resume()

    def finished(self, step: int) -> None:
        """Go on."""

    def leave(self) -> None:
        self._clock.pause()
