"""The axes of a simulated sweep, as typed: ``generators=1..64``, ``max_lag=0,1,2``, ``transport.type=nixl,disk``."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.errors import UserError
from harness.scenario import Scenario
from harness.scenario.yaml_files import parse_yaml
from harness.simulate.machine import MachineProfile
from harness.simulate.settings import ALIASES

MOST_POINTS = 20_000
BESIDE = ("learners", "model")
"""Axes that are no keys of a scenario."""
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")
Point = dict[str, Any]
QUESTIONS = ("generators", "lag", "transport")
GENERATORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)
LAGS = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting and the values that it takes."""

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """What people call it: the short name where there is one, else the key's last part."""
        short = {key: alias for alias, key in ALIASES.items()}
        return short.get(self.key, self.key.rpartition(".")[2])

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers, so that there is an order and a knee."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def read_axes(texts: Sequence[str], first: Sequence[Axis] = ()) -> list[Axis]:
    """Return the axes that were typed, in order, after those that come first; the first one of all is the x axis.

    Raises:
        UserError: one has no values, a value twice, or is named twice; or they make too many points.
    """
    axes = [*first, *(read_axis(text) for text in texts)]
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key} is swept twice", "--sweep", "name each axis once")
    points = 1
    for axis in axes:
        points *= len(axis.values)
    if points > MOST_POINTS:
        what = f"the axes make {points:,} points, must be at most {MOST_POINTS:,}"
        raise UserError(what, "--sweep", "name fewer values")
    return axes


def read_axis(text: str) -> Axis:
    """Return the axis of ``KEY=1..64`` or ``KEY=a,b,c``.

    Raises:
        UserError: it is of no such form.
    """
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise UserError(f"{text!r} is no axis", "--sweep", "write KEY=1..64 or KEY=a,b,c, as in max_lag=0,1,2")
    found = _RANGE.match(values.strip())
    if found:
        low, high = int(found[1]), int(found[2])
        if high < low:
            raise UserError(f"the axis {text!r} runs backwards", "--sweep", f"write {key}={high}..{low}")
        if high - low >= MOST_POINTS:
            what = f"the axis {text!r} has {high - low + 1:,} values, must be at most {MOST_POINTS:,}"
            raise UserError(what, "--sweep", "name fewer values")
        listed: list[Any] = list(range(low, high + 1))
    else:
        listed = parse_yaml(f"[{values}]", "--sweep")
    if len({json.dumps(value, sort_keys=True, default=str) for value in listed}) < len(listed):
        raise UserError(f"the axis {text!r} names a value twice", "--sweep", "name each once")
    return Axis(ALIASES.get(key.strip(), key.strip()), tuple(listed))


def axis_of(question: str, scenario: Scenario, machine: MachineProfile) -> Axis:
    """Return the axis that answers a ready-made question.

    Raises:
        UserError: there is nothing to choose from.
    """
    if question == "lag":
        return Axis("max_lag", LAGS)
    if question == "generators":
        most = scenario.prompts_per_batch
        counts = [count for count in GENERATORS if count < most] + [min(most, GENERATORS[-1])]
        return Axis(ALIASES["generators"], tuple(counts))
    known = dict.fromkeys(
        cost.where["transport"]
        for cost in machine.stages
        if cost.stage == "weight_publish" and "transport" in cost.where
    )
    kinds = [kind for kind in known if not kind.startswith("in_process")]  # which no other placement can have
    if not kinds:
        what = f"the profile {machine.name} knows no transport that takes time, so there is nothing to choose from"
        raise UserError(what, "--ask transport", "take a profile that was calibrated with transports")
    return Axis(ALIASES["transport"], tuple(kinds))


def points_of(axes: Sequence[Axis]) -> Iterator[Point]:
    """Yield every point; the last axis changes fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


def line_name(point: Mapping[str, Any], axes: Sequence[Axis]) -> str:
    """Name the line of a picture that a point is on: the values of all axes but the first; empty for one axis."""
    return ", ".join(f"{axis.name} {shown(point[axis.key])}" for axis in axes[1:])


def shown(value: Any) -> str:
    """Write a value of an axis."""
    if isinstance(value, dict) and "type" in value:
        return str(value["type"])
    return value if isinstance(value, str) else json.dumps(value, default=str)
