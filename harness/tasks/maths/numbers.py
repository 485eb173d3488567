r"""Numbers as people and LaTeX write them, read as exact fractions: no evaluation, no float, bounded size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 100
"""A number with more digits than this is not read as one."""
MAX_EXPONENT = 100
"""Largest power of ten in scientific notation."""
SIGNIFICANT_DIGITS = 6
"""A decimal counts as the value that it rounds if it has at least so many significant digits: 0.333333 is 1/3."""

_WHOLE = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ]\d{3})+|\d+"
_DECIMAL = rf"(?:(?:{_WHOLE})(?:\.\d*)?|\.\d+)"
_SIGN = r"[-+]?\s*"
_CURRENCY = r"(?:[$€£]\s*)?"
_UNIT_WORD = r"(?:[a-zA-Z][a-zA-Z.]+|[mgshlLCFK])(?:\^[23])?"
_NUMBER = re.compile(
    rf"""
    (?P<sign>{_SIGN}){_CURRENCY}(?P<inner_sign>{_SIGN})
    (?:
        (?:(?P<mixed>\d+)\s*)?\\frac\s*\{{\s*(?P<over_sign>{_SIGN})(?P<over>{_DECIMAL})\s*\}}\s*\{{\s*(?P<under>{_DECIMAL})\s*\}}
      | (?:(?P<plain_mixed>\d+)\s+)?(?P<plain_over>\d+)\s*/\s*(?P<plain_under>\d+)
      | (?P<decimal_over>{_DECIMAL})\s*/\s*(?P<decimal_under>{_DECIMAL})
      | (?P<decimal>{_DECIMAL})
        (?:
            [eE](?P<exponent>[-+]?\d{{1,4}})
          | \s*(?:\\times|\\cdot|\*|x)\s*10\s*(?:\^|\*\*)\s*\{{?\s*(?P<power>-?\d{{1,4}})\s*\}}?
        )?
    )
    \s*(?P<percent>%|percent(?:age)?(?:\s+points?)?)?
    (?P<unit>(?:\s+{_UNIT_WORD}(?:[ /]{_UNIT_WORD}){{0,3}}|[a-zA-Z]{{2,}})?)
    """,
    re.VERBOSE,
)
_CHANGES_THE_VALUE = re.compile(
    r"(?:and|or|to|of|in|by|plus|minus|times|over|per|mod|modulo|not|than|th|st|nd|rd|bn|mn|mil|"
    r"squared?|cubed?|factorial|roots?|half|halves|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten)ths?|"
    r"(?:ten-?)?(?:hundred|thousand|million|billion|trillion)(?:s|ths?)?|dozens?|score|radians?|rad|"
    r"pi|inf|infinity|sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|[a-eknx-z]{2,3})"
)
"""Words behind a number that change it, and short runs of the letters that variables are called by."""


_SHORT_UNITS = frozenset({"day", "ac", "kb", "ex"})


@dataclass(frozen=True, slots=True)
class WrittenNumber:
    """A number and how it was written.

    Attributes:
        value: as written, without regard to a percent sign.
        decimals: places behind the decimal point; None for whole numbers and fractions, which are exact.
        digits: significant digits.
        percent: there was a percent sign.
    """

    value: Fraction
    decimals: int | None
    digits: int
    percent: bool


def read_number(text: str) -> WrittenNumber | None:
    """Return the number that a normalised text is, with currency, percent sign and unit taken off; else None."""
    if not text.isascii() or sum(map(str.isdecimal, text)) > MAX_DIGITS:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    group = found.groupdict(default="")
    if not _is_unit(group["unit"]):
        return None
    value = _value(group)
    if value is None:
        return None
    signs = group["sign"] + group["inner_sign"] + group["over_sign"]
    decimals = len(group["decimal"].partition(".")[2]) if "." in group["decimal"] else None
    shift = int(group["exponent"] or group["power"] or 0)
    if decimals is not None:
        decimals -= shift
    digits = len(re.sub(r"\D", "", group["decimal"]).lstrip("0"))
    return WrittenNumber(-value if signs.count("-") % 2 else value, decimals, digits, bool(group["percent"]))


def _is_unit(unit: str) -> bool:
    words = re.split(r"[\s/.^]+", unit.casefold())
    return not any(word not in _SHORT_UNITS and _CHANGES_THE_VALUE.fullmatch(word) for word in words)


def _value(group: dict[str, str]) -> Fraction | None:
    """Return the value without its sign; None where it divides by zero or its power of ten is out of bounds."""
    if group["over"]:
        over, under, whole = group["over"], group["under"], group["mixed"]
    elif group["plain_over"]:
        over, under, whole = group["plain_over"], group["plain_under"], group["plain_mixed"]
    elif group["decimal_over"]:
        over, under, whole = group["decimal_over"], group["decimal_under"], ""
    else:
        exponent = int(group["exponent"] or group["power"] or 0)
        if abs(exponent) > MAX_EXPONENT:
            return None
        return _fraction(group["decimal"]) * Fraction(10) ** exponent
    divisor = _fraction(under)
    return None if divisor == 0 else _fraction(whole or "0") + _fraction(over) / divisor


def _fraction(decimal: str) -> Fraction:
    digits = decimal.replace(",", "").replace(" ", "")
    return Fraction(digits + "0" if digits.endswith(".") else digits)


def same_number(one: WrittenNumber, other: WrittenNumber) -> bool:
    """Return whether two numbers are the same.

    A percent sign may be left out (50% is 50) or carried out (50% is 0.5). A decimal with ``SIGNIFICANT_DIGITS`` or
    more is the same as a value that rounds to it.
    """
    return _same(one, other, False) or (one.percent != other.percent and _same(one, other, True))


def _same(one: WrittenNumber, other: WrittenNumber, carry_out: bool) -> bool:
    """Compare with the percent signs left out, or carried out."""
    (value, rounding), (other_value, other_rounding) = (
        _scaled(number, Fraction(1, 100) if carry_out and number.percent else Fraction(1)) for number in (one, other)
    )
    return abs(value - other_value) <= max(rounding, other_rounding)


def _scaled(number: WrittenNumber, scale: Fraction) -> tuple[Fraction, Fraction]:
    """Return the value, and how far from it a value may be that it rounds: 0 if it is exact or has few digits."""
    rounds = number.decimals is not None and number.digits >= SIGNIFICANT_DIGITS
    rounding = Fraction(1, 2) / Fraction(10) ** (number.decimals or 0) if rounds else Fraction(0)
    return number.value * scale, rounding * scale
