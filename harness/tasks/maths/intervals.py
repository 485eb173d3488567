r"""Inequalities in one variable as the intervals that they mean: ``x>3`` as ``(3,\infty)``."""

from __future__ import annotations

import re
from typing import NamedTuple

_RELATION = re.compile(r"(\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<=|>=|<|>)")
_CLOSED = frozenset({r"\le", r"\ge", "<=", ">="})
_UPWARDS = frozenset({r"\le", "<=", "<"})
_ALTERNATIVES = re.compile(r"(?<![a-zA-Z\\])or(?![a-zA-Z])|\\cup(?![a-zA-Z])")
_VARIABLE = re.compile(r"[a-zA-Z]|\\theta")
_MAGNITUDE = re.compile(r"\|\s*([a-zA-Z])\s*\|")
_LOOKS_LIKE_INTERVALS = re.compile(r"[(\[].*,.*[)\]]", re.DOTALL)


class Intervals(NamedTuple):
    """What an inequality allows its variable, as the text of an interval or a union of some."""

    variable: str
    text: str


def as_intervals(given: str, truth: str) -> tuple[str, str]:
    """Return two normalised answers, inequalities as intervals if both have one variable or one is intervals."""
    ours, theirs = read_inequality(given), read_inequality(truth)
    if ours and theirs:
        return (ours.text, theirs.text) if ours.variable == theirs.variable else (given, truth)
    if ours and _LOOKS_LIKE_INTERVALS.fullmatch(truth):
        return ours.text, truth
    if theirs and _LOOKS_LIKE_INTERVALS.fullmatch(given):
        return given, theirs.text
    return given, truth


def read_inequality(text: str) -> Intervals | None:
    """Return the intervals of ``x>3``, ``-1<x\\le 2``, ``|x|<3`` or ``x<0 or x>6``; None for all else."""
    if not _RELATION.search(text):
        return None
    read = [_read_one(part.strip()) for part in _ALTERNATIVES.split(text)]
    known = [one for one in read if one is not None]
    if len(known) < len(read) or len({one.variable for one in known}) != 1:
        return None
    return Intervals(known[0].variable, r"\cup ".join(one.text for one in known))


def _read_one(text: str) -> Intervals | None:
    pieces = [piece.strip() for piece in _RELATION.split(text)]
    if len(pieces) not in (3, 5) or not all(pieces):
        return None
    bounds, relations = pieces[::2], pieces[1::2]
    if len({relation in _UPWARDS for relation in relations}) != 1:
        return None
    if relations[0] not in _UPWARDS:
        bounds, relations = bounds[::-1], relations[::-1]
    closed = [relation in _CLOSED for relation in relations]
    magnitude = _MAGNITUDE.fullmatch(bounds[0])
    if magnitude and len(bounds) == 2:
        low = f"-({bounds[1]})" if "+" in bounds[1] or "-" in bounds[1] else f"-{bounds[1]}"
        return _between(magnitude[1], (low, closed[0]), (bounds[1], closed[0]))
    if len(bounds) == 3:
        return _between(bounds[1], (bounds[0], closed[0]), (bounds[2], closed[1]))
    if _VARIABLE.fullmatch(bounds[0]):
        return _between(bounds[0], (r"-\infty", False), (bounds[1], closed[0]))
    return _between(bounds[1], (bounds[0], closed[0]), (r"\infty", False))


def _between(variable: str, low: tuple[str, bool], high: tuple[str, bool]) -> Intervals | None:
    """Return the interval between two bounds, each with whether it is closed; None where there is no variable."""
    if not _VARIABLE.fullmatch(variable):
        return None
    return Intervals(variable, f"{'[' if low[1] else '('}{low[0]},{high[0]}{']' if high[1] else ')'}")
