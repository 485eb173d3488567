"""How figures are written. Three significant digits and no trailing exponents where a person would write none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.compare.stats.intervals import Interval

Format = Callable[[float], str]
NOTHING = "-"


def number(value: float) -> str:
    """Write a figure with about three significant digits: 0.310, 1.22, 31.2, 1,234; 4.1e-05 below 0.001."""
    size = abs(value)
    if not math.isfinite(value) or (0 < size < 0.001):
        return f"{value:.1e}"
    decimals = 3 if size < 0.9995 else 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:,.{decimals}f}"


def reward(value: float) -> str:
    """Write a reward: 0.612."""
    return f"{value:.3f}"


def count(value: float) -> str:
    """Write a whole number: 1,234."""
    return f"{value:,.0f}"


def percent(value: float) -> str:
    """Write a share: 41.3%."""
    return f"{100 * value:.1f}%"


def over_runs(value: Interval, form: Format) -> str:
    """Write a mean over runs with its range, where there is one to be seen: ``0.612 (0.580 to 0.640)``."""
    point, low, high = form(value.value), form(value.low), form(value.high)
    return point if low == high else f"{point} ({low} to {high})"


def plural(count: int, noun: str) -> str:
    """Write ``1 step`` or ``3 steps``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Write names as a person would: ``a``, ``a and b``, ``a, b and c``; there must be one."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def some(parts: Sequence[str], most: int = 6) -> list[str]:
    """Return the first few parts of a sentence, and how many more there are; one more is worth its place."""
    return [*parts] if len(parts) <= most + 1 else [*parts[:most], f"{len(parts) - most} more"]


def change(ratio: float | None) -> str:
    """Write a ratio as a signed change: 1.05 is ``+5.0%``, 7.3 is ``+630%``; None is unknown."""
    return "unknown" if ratio is None else f"{100 * (ratio - 1):+.{0 if ratio > 2 else 1}f}%"


_OUTSIDE = re.compile(
    r"(?P<stage>[^:(]+?)(?: \(.*\))?: (?P<units>\S+) units of (?P<what>.+) are (?:more|fewer) than the "
    r"(?P<low>\S+) to (?P<high>\S+) that were measured"
)


def extrapolation(sentence: str) -> str:
    """Say number first what left a profile's range, from the sentence that a forecast keeps."""
    found = _OUTSIDE.fullmatch(sentence)
    if found is None:
        return sentence
    units, low, high = (f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
                        for number in (float(found[key]) for key in ("units", "low", "high")))  # fmt: skip
    return f"{units} {found['what']} in {found['stage']}, and {low} to {high} were measured"
