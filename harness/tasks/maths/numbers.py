"""Numbers as people and LaTeX write them, read as exact fractions of bounded size. No text is ever evaluated."""

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
_TEN_TO_THE = r"10\s*(?:\^|\*\*)\s*\{?\s*"
_PLAIN_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3}){1,9}|\d{1,30})(?:\.(?P<decimals>\d{1,30}))?")
_NUMBER = re.compile(
    rf"""
    (?P<sign>{_SIGN})(?P<inner_sign>{_SIGN})
    (?:
        (?:(?P<mixed>\d+)\s*)?\\frac\s*\{{\s*(?P<over_sign>{_SIGN})(?P<over>{_DECIMAL})\s*\}}\s*\{{\s*(?P<under_sign>{_SIGN})(?P<under>{_DECIMAL})\s*\}}
      | (?:(?P<plain_mixed>\d+)\s+)?(?P<plain_over>\d+)\s*/\s*(?P<plain_under>\d+)
      | (?P<decimal_over>{_DECIMAL})\s*/\s*(?P<decimal_under>{_DECIMAL})
      | {_TEN_TO_THE}(?P<ten_to_the>-?\d{{1,4}})\s*\}}?
      | (?P<decimal>{_DECIMAL})
        (?:
            [eE](?P<exponent>[-+]?\d{{1,4}})
          | \s*(?:\\times|\\cdot|\*|x)\s*{_TEN_TO_THE}(?P<power>-?\d{{1,4}})\s*\}}?
        )?
    )
    \s*(?P<percent>%)?
    """,
    re.VERBOSE,
)
_REPEATING = re.compile(
    r"(?P<whole>\d{0,30})\.(?P<once>\d{0,30})\\(?:overline|bar)\s*\{?\s*(?P<again>\d{1,30})\s*\}?"
    r"|(?P<dotted_whole>\d{0,30})\.(?P<dotted_once>\d{0,30}?)(?P<dotted_again>\d{1,6}?)(?P=dotted_again){2,9}\.\.\."
)

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
NUMBER_WORDS = (
    {word: value for value, word in enumerate(_ONES)}
    | _TENS
    | {f"{tens}-{_ONES[ones]}": value + ones for tens, value in _TENS.items() for ones in range(1, 10)}
)
"""Whole numbers below a hundred by their names."""
POWERS_OF_TEN = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Exponents of the words that multiply the number before them."""
_WORD_IN_FRONT = re.compile(r"([a-z]+(?:[- ](?:one|two|three|four|five|six|seven|eight|nine))?)(?=\s|$)", re.IGNORECASE)
_BASED = re.compile(
    r"(?P<open>\()?\s*(?P<digits>\d[0-9a-zA-Z]*)\s*(?(open)\))\s*"
    r"(?:_\s*\{?\s*\(?\s*(?P<base>\d{1,2}|[a-z]+)\s*\)?\s*\}?|\(?\s*base\s+(?P<named_base>\d{1,2}|[a-z]+)\s*\)?)"
)


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


def read_plain_number(text: str) -> WrittenNumber | None:
    """Return the number that a text is as most answers write it, digits and a decimal point; None for all else."""
    found = _PLAIN_NUMBER.fullmatch(text)
    if found is None or not text.isascii():
        return None
    digits = text.replace(",", "")
    decimals = found["decimals"]
    if decimals is None:
        return WrittenNumber(Fraction(int(digits)), None, 0, False)
    significant = len(digits.lstrip("-0.").replace(".", ""))
    return WrittenNumber(Fraction(int(digits.replace(".", "")), 10 ** len(decimals)), len(decimals), significant, False)


def read_number(text: str) -> WrittenNumber | None:
    """Return the number that a normalised text is, with its percent sign taken off; else None."""
    if not text.isascii() or sum(map(str.isdecimal, text)) > MAX_DIGITS:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    group = found.groupdict(default="")
    value = _value(group)
    if value is None:
        return None
    signs = group["sign"] + group["inner_sign"] + group["over_sign"] + group["under_sign"]
    decimals = len(group["decimal"].partition(".")[2]) if "." in group["decimal"] else None
    shift = int(group["exponent"] or group["power"] or 0)
    if decimals is not None:
        decimals -= shift
    digits = len(re.sub(r"\D", "", group["decimal"]).lstrip("0"))
    return WrittenNumber(-value if signs.count("-") % 2 else value, decimals, digits, bool(group["percent"]))


def _value(group: dict[str, str]) -> Fraction | None:
    """Return the value without its sign; None where it divides by zero or its power of ten is out of bounds."""
    if group["over"]:
        over, under, whole = group["over"], group["under"], group["mixed"]
    elif group["plain_over"]:
        over, under, whole = group["plain_over"], group["plain_under"], group["plain_mixed"]
    elif group["decimal_over"]:
        over, under, whole = group["decimal_over"], group["decimal_under"], ""
    else:
        exponent = int(group["exponent"] or group["power"] or group["ten_to_the"] or 0)
        if abs(exponent) > MAX_EXPONENT:
            return None
        return _fraction(group["decimal"] or "1") * Fraction(10) ** exponent
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


def with_fractions_for_repeating_decimals(text: str) -> str:
    r"""Return the text with ``\frac{1}{6}`` for ``0.1\overline{6}``, ``0.1\bar{6}`` and ``0.1666...``."""
    return _REPEATING.sub(_repeating_fraction, text)


def _repeating_fraction(found: re.Match[str]) -> str:
    whole, once, again = (found[name] or found[f"dotted_{name}"] or "" for name in ("whole", "once", "again"))
    over = int(whole + once + again) - int(whole + once or "0")
    value = Fraction(over, (10 ** len(again) - 1) * 10 ** len(once))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def with_digits_for_a_word(text: str) -> str:
    """Return the text with digits for the name of a number that it begins with: ``12 eggs`` for ``Twelve eggs``."""
    found = _WORD_IN_FRONT.match(text)
    if found is None:
        return text
    value = NUMBER_WORDS.get(found[1].casefold().replace(" ", "-"))
    return text if value is None else str(value) + text[found.end() :]


def read_based(text: str) -> tuple[str, int] | None:
    """Return the digits of a numeral that names its base, and the base: ``201_5``, ``(2A3)_{16}``, ``11 base two``.

    Digits come in lower case and without zeros in front. Whether they exist in that base is not asked.
    """
    found = _BASED.fullmatch(text)
    if found is None:
        return None
    name = found["base"] or found["named_base"]
    base = int(name) if name.isdecimal() else NUMBER_WORDS.get(name)
    return None if base is None else (found["digits"].casefold().lstrip("0") or "0", base)
