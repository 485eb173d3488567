"""From records to one set of numbers for each step, with a count of everything that is no number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.errors import UserError
from harness.results.importers.entry import Crosswalk
from harness.results.importers.logs import Log, Record


@dataclass
class Point:
    """The numbers that a log has for one step, as the trainer counts it; ``at`` is when, in seconds, if known."""

    step: int
    values: dict[str, float] = field(default_factory=dict)
    at: float | None = None


@dataclass
class Points:
    """All steps of a log, in order.

    Attributes:
        run_totals: numbers of the whole run.
        not_numbers: how often a name came with something else than a number (texts, histograms, tables).
        non_finite: how often a name came as NaN, infinity or null, which is how JSON writers put these.
        replaced: numbers in whose place a later record of the same step put another one.
        without_step: records without a step, left out.
        backwards: how often the log went back to an earlier step, as a resumed run's does.
    """

    points: list[Point]
    run_totals: dict[str, float] = field(default_factory=dict)
    not_numbers: Counter[str] = field(default_factory=Counter)
    non_finite: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    without_step: int = 0
    backwards: int = 0

    @property
    def names(self) -> set[str]:
        """Every name that came with a number."""
        return {name for point in self.points for name in point.values}


def collect(log: Log, crosswalk: Crosswalk, where: str) -> Points:
    """Gather the records by step; what comes later for the same step and name counts.

    Args:
        where: how to name the log in an error.

    Raises:
        UserError: no record has a step, or none a number.
    """
    found = Points([])
    by_step: dict[int, Point] = {}
    last = -1
    for record in log.records:
        values, step = _unpack(record, crosswalk)
        if step is None:
            found.without_step += 1
            continue
        found.backwards += step < last
        last = step
        _add(values, by_step.setdefault(step, Point(step)), found, crosswalk)
        _set_clock(by_step[step], record, values, crosswalk)
    found.points = [by_step[step] for step in sorted(by_step)]
    if not found.names:
        raise _nothing_found(log, found, crosswalk, where)
    return found


def _unpack(record: Record, crosswalk: Crosswalk) -> tuple[Mapping[str, Any], int | None]:
    """Return the values and the step; verl's file logger keeps the values one level down."""
    values = record.values
    steps = [record.step, *(values.get(name) for name in crosswalk.step_names)]
    step = next((whole for item in steps if (whole := _whole(item)) is not None), None)
    inner = values.get("data")
    return (inner if isinstance(inner, dict) else values), step


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def _add(values: Mapping[str, Any], point: Point, found: Points, crosswalk: Crosswalk) -> None:
    for raw_name, raw in values.items():
        name = crosswalk.plain_name(raw_name)
        if raw_name in crosswalk.step_names or name in crosswalk.step_names or name in crosswalk.clock_names:
            continue
        value = _number(raw)
        if value is None:
            found.not_numbers[name] += 1
            continue
        if not math.isfinite(value):
            found.non_finite[name] += 1
        if name in crosswalk.run_totals:
            found.run_totals[name] = value
            continue
        before = point.values.get(name, value)
        found.replaced += before != value and not (math.isnan(before) and math.isnan(value))
        point.values[name] = value


def _number(value: Any) -> float | None:
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond float's range
        return None


def _set_clock(point: Point, record: Record, values: Mapping[str, Any], crosswalk: Crosswalk) -> None:
    times = [record.at, *(values.get(name) for name in crosswalk.clock_names)]
    point.at = next((float(at) for at in times if isinstance(at, int | float) and math.isfinite(at)), point.at)


def _nothing_found(log: Log, found: Points, crosswalk: Crosswalk, where: str) -> UserError:
    if log.records and found.without_step == len(log.records):
        what = f"none of the {found.without_step} records has a step ({', '.join(crosswalk.step_names)})"
    else:
        what = f"the log has no numbers ({len(log.records)} records)"
    return UserError(what, where=where, fix="name the log of a run that has made a step, or another trainer")
