"""The smallest schedule that still breaks the same invariant.

Greedy, after delta debugging (A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002):
try every simpler schedule, largest cut first, keep the first that still breaks, and begin again until none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tests.faults.running import Outcome, Wiring, run_schedule
from tests.faults.schedule import Schedule, Timing

T = TypeVar("T")

MOST_RUNS = 2_000
"""Runs that one search for the smallest schedule may take."""

SMALLEST: dict[str, Any] = {
    "replay": None,
    "validates": False,
    "lag_control": "wait",
    "max_lag": 0,
    "generators": 1,
    "scorers": 1,
    "steps": 1,
    "prompts": 1,
    "group_size": 1,
    "epochs": 1,
    "evaluate_every": 1,
    "proof": False,
    "restart_s": 0.0,
    "max_replacements": 10,
}
"""The simplest value of each setting; a number is also tried at each value on the way."""


def shrink(schedule: Schedule, breaks: Callable[[Schedule], bool]) -> Schedule:
    """Return a smaller schedule that breaks too; taking anything more away from it mends it.

    Args:
        schedule: one that breaks.
        breaks: whether a schedule breaks the invariant at hand.
    """
    runs = 0
    while True:
        for smaller in simpler(schedule):
            runs += 1
            if breaks(smaller):
                schedule = smaller
                break
            if runs >= MOST_RUNS:
                return schedule
        else:
            return schedule


def smallest_run(outcome: Outcome, wiring: Wiring | None = None) -> Outcome:
    """Return the run of the smallest schedule found that breaks the same invariant as this one.

    Args:
        outcome: of a run that broke one.
        wiring: what its loop was put together from.
    """
    assert outcome.broken is not None
    invariant = outcome.broken.invariant

    def breaks(schedule: Schedule) -> bool:
        broken = run_schedule(schedule, wiring).broken
        return broken is not None and broken.invariant == invariant

    return run_schedule(shrink(outcome.schedule, breaks), wiring)


def simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules that are simpler in one respect, largest cuts first; all of them can be run."""
    for faults in _fewer(schedule.faults):
        yield replace(schedule, faults=faults)
    for unrewarded in _fewer(schedule.unrewarded):
        yield replace(schedule, unrewarded=unrewarded)
    for name, smallest in SMALLEST.items():
        for value in _towards(smallest, getattr(schedule, name)):
            changed = _runnable(replace(schedule, **{name: value}))
            if changed is not None and changed != schedule:
                yield changed
    for timings in _fewer(schedule.timings):
        yield replace(schedule, timings=timings)
    yield from _simpler_timings(schedule)
    for index, fault in enumerate(schedule.faults):
        for amount in _towards(0.0, fault.amount):
            yield replace(schedule, faults=_with(schedule.faults, index, replace(fault, amount=amount)))
        for number in _towards(1, fault.number):
            yield replace(schedule, faults=_with(schedule.faults, index, replace(fault, number=number)))


def _fewer(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """Yield the items without some: none of them, without each half, quarter and so on, without each single one."""
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield items[:start] + items[start + size :]
        size //= 2


def _towards(smallest: Any, value: Any) -> Iterator[Any]:
    """Yield simpler values than ``value``, the simplest first."""
    if value == smallest:
        return
    yield smallest
    if isinstance(value, float) and value != 1.0:
        yield 1.0
    if isinstance(value, float) and value != round(value):
        yield float(round(value))
    if isinstance(value, int) and not isinstance(value, bool):
        yield from range(min(smallest, value) + 1, value)


def _simpler_timings(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules in which one call always takes a second, or its first time, or whole seconds."""
    for index, timing in enumerate(schedule.timings):
        whole = tuple(float(round(seconds)) for seconds in timing.table)
        for table in ((1.0,), timing.table[:1], whole, whole[:1]):
            if table != timing.table and (len(table) < len(timing.table) or timing.table != (1.0,)) and any(table):
                timings = _with(schedule.timings, index, Timing(timing.lane, timing.call, table))
                yield replace(schedule, timings=timings)


def _with(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _runnable(schedule: Schedule) -> Schedule | None:
    """Return the schedule without what belongs to lanes that are gone; None where the loop does not take it."""
    if schedule.prompts < schedule.generators:
        return None
    if schedule.max_lag == 0 and schedule.lag_control != "wait":
        return None
    if schedule.replay is not None and schedule.replay.max_age < schedule.max_lag:
        return None
    lanes = schedule.lanes
    kept: dict[str, Any] = {
        name: tuple(item for item in getattr(schedule, name) if item.lane in lanes) for name in ("timings", "faults")
    }
    return replace(schedule, **kept)
