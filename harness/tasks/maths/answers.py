"""Whether two written answers are the same, by rules that need no algebra.

An answer is normalised (delimiters, spacing commands, spellings of fractions, units, trailing dots), then compared as
text, as a number, as words, or part by part. No text is ever evaluated. Numbers, as people and LaTeX write them, are
read as exact fractions of bounded size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from harness.tasks.maths.prompts import MAX_ANSWER_CHARS, closing_brace

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


MAX_PARTS = 30
"""A longer list is left to the symbolic comparison."""

_CHARACTERS = {
    0x2212: "-", 0x2010: "-", 0x2013: "-", 0x2014: "-",  # minus, hyphen and dashes
    0x00A0: " ", 0x2009: " ", 0x202F: " ", 0x200B: "", 0x2044: "/", 0xFF05: "%",  # spaces, fraction slash, percent
    0x00D7: r"\times ", ord("·"): r"\cdot ", ord("⋅"): r"\cdot ", ord("÷"): "/", ord("√"): r"\sqrt ",
    ord("π"): r"\pi ", ord("∞"): r"\infty ", ord("°"): r"^\circ", ord("²"): "^2", ord("³"): "^3",
    ord("≤"): r"\le ", ord("≥"): r"\ge ", ord("≠"): r"\ne ", ord("∈"): r"\in ", ord("±"): r"\pm ",
    0x222A: r"\cup ", 0x2229: r"\cap ", ord("½"): r"\frac{1}{2}", ord("…"): "...",
}  # fmt: skip
DEGREE = "\x03"
"""Stands for a sign of degrees where it was not dropped."""

_WRAPPINGS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ('"', '"'))
_TEXT_COMMANDS = ("text", "textbf", "textit", "textrm", "mathrm", "mathbf", "mbox", "boxed", "fbox")
_TEXT = re.compile(rf"\\({'|'.join(_TEXT_COMMANDS)})\s*(?=\{{)")
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:left|right|bigg?|Bigg?)(?![a-zA-Z])\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])", ""),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~", " "),
        (r"\{,\}", ","),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac(\{[^{}]*\})\s*([a-zA-Z0-9])", r"\\frac\1{\2}"),
        (r"\\sqrt\s*([a-zA-Z0-9])", r"\\sqrt{\1}"),
        (r"\\(%|\$|#|&|_)", r"\1"),
        (r"\^\s*(?:\{\s*)?\\(?:circ|degree)(?![a-zA-Z])\s*\}?", DEGREE),
        (r"\\degree(?![a-zA-Z])|(?<=\d)\s*degrees?(?![a-zA-Z])", DEGREE),
        (r"([_^])\{\s*([a-zA-Z0-9])\s*\}", r"\1\2"),
        (r"\\l?dots(?![a-zA-Z])|…", "..."),
        (r"\\leq(?![a-zA-Z])", r"\\le"),
        (r"\\geq(?![a-zA-Z])", r"\\ge"),
        (r"\\neq(?![a-zA-Z])", r"\\ne"),
        (r"\s+", " "),
    )
)
_LEAD_IN = re.compile(r"^(?:the\s+)?(?:final\s+)?answer(?:\s+is|\s*[:=])\s*:?\s*", re.IGNORECASE)
_MEMBER_OF = re.compile(r"^[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")
_ASSIGNED = re.compile(r"^[a-zA-Z](?:_[a-zA-Z0-9])?\s*=\s*(?=[^=]+$)")
_ANGLE_TAKEN = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_WORDS = re.compile(r"[a-zA-Z][a-zA-Z' -]*")
_LETTER_RUN = re.compile(r"[a-zA-Z]{3,}")
_CHOICE = re.compile(r"\(?([A-Z])\)?[.:]?")
_NEEDLESS_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_CONJUNCTION = re.compile(r"\s*,?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*")
_NAMES_IN_FORMULAS = frozenset(
    ["sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "arcsin", "arccos", "arctan", "infinity", "inf"]
)


def agree_exactly(answer: str, ground_truth: str) -> bool | None:
    """Return whether two answers are the same; None where only algebra can tell.

    An empty answer, or one longer than ``MAX_ANSWER_CHARS``, is wrong.
    """
    if len(answer) > MAX_ANSWER_CHARS or len(ground_truth) > MAX_ANSWER_CHARS:
        return False
    return _agree(*normalise_both(answer, ground_truth))


def normalise_both(answer: str, ground_truth: str) -> tuple[str, str]:
    """Return both texts normalised; ``x = 5`` becomes ``5`` where the other one names no variable."""
    given, truth = normalise(answer), normalise(ground_truth)
    if "=" not in truth:
        given = _ASSIGNED.sub("", given)
    elif "=" not in given:
        truth = _ASSIGNED.sub("", truth)
    return given, truth


def normalise(text: str) -> str:
    """Return an answer in one spelling. Signs of degrees are dropped, except in arguments of angle functions."""
    text = _unwrap(text.translate(_CHARACTERS).strip())
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    text = _LEAD_IN.sub("", _unwrap(_without_text_commands(text).strip()))
    text = _MEMBER_OF.sub("", _unwrap(text).rstrip(" .,;:").strip())
    return text if _ANGLE_TAKEN.search(text) else text.replace(DEGREE, "")


def _unwrap(text: str) -> str:
    """Take off pairs of delimiters around the whole text; single dollar signs are money and stay."""
    for begin, end in _WRAPPINGS * 2:
        inner = text[len(begin) : -len(end)]
        if len(text) > len(begin) + len(end) and text.startswith(begin) and text.endswith(end) and begin not in inner:
            text = inner.strip()
    return text


def _without_text_commands(text: str) -> str:
    r"""Replace ``\text{...}`` and its like by what they hold, with spaces around."""
    for _ in range(MAX_PARTS):
        found = _TEXT.search(text)
        end = closing_brace(text, found.end()) if found else None
        if found is None or end is None:
            break
        behind = text[end + 1 :]
        text = f"{text[: found.start()]} {text[found.end() + 1 : end].strip()}{' ' * behind[:1].isalnum()}{behind}"
    return re.sub(r"\s+", " ", text)


def _agree(given: str, truth: str) -> bool | None:
    if not given or not truth:
        return False
    if _squeezed(given) == _squeezed(truth):
        return True
    numbers = read_number(given), read_number(truth)
    if numbers[0] is not None and numbers[1] is not None:
        return same_number(numbers[0], numbers[1])
    choices = _CHOICE.fullmatch(given), _CHOICE.fullmatch(truth)
    if choices[0] is not None and choices[1] is not None:
        return choices[0].group(1) == choices[1].group(1)
    if _is_words(given) or _is_words(truth):
        return _squeezed(given).casefold() == _squeezed(truth).casefold()
    return _agree_in_parts(given, truth, any(number is not None for number in numbers))


def _squeezed(text: str) -> str:
    return _NEEDLESS_SPACE.sub("", text)


def _is_words(text: str) -> bool:
    """Whether a text is made of words, which algebra would read as products of letters."""
    runs = _LETTER_RUN.findall(text)
    return bool(runs) and _WORDS.fullmatch(text) is not None and not _NAMES_IN_FORMULAS.intersection(runs)


class Parts(NamedTuple):
    """A list, set, tuple or interval: its brackets (``{}`` for a set and for a bare list) and what stands in it."""

    brackets: str
    parts: tuple[str, ...]


def split_parts(text: str) -> Parts | None:
    r"""Return the parts of ``(1, 2)``, ``[0, 1)``, ``\{1, 2\}`` or ``1, 2``; None where there are less than two."""
    text = text.replace(r"\{", "\x01").replace(r"\}", "\x02")
    brackets, inside = "{}", text
    if text[0] in "([\x01" and text[-1] in ")]\x02" and _closed_by(text) == len(text) - 1:
        brackets, inside = text[0] + text[-1], text[1:-1]
        brackets = "{}" if brackets == "\x01\x02" else brackets
    if brackets == "{}":
        inside = separate_parts(inside)
    parts = [part.replace("\x01", r"\{").replace("\x02", r"\}").strip() for part in _split_at_commas(inside)]
    return Parts(brackets, tuple(parts)) if 2 <= len(parts) <= MAX_PARTS and all(parts) else None


def separate_parts(text: str) -> str:
    """Return the text with commas for "and" and "or"."""
    return _CONJUNCTION.sub(", ", text)


def _closed_by(text: str) -> int:
    """Return where the first bracket is closed; brackets of all kinds close each other, as in half-open intervals."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{\x01") - (character in ")]}\x02")
        if depth == 0:
            return at
    return -1


def _split_at_commas(text: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{\x01") - (character in ")]}\x02")
        if character == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _agree_in_parts(given: str, truth: str, one_is_a_number: bool) -> bool | None:
    ours, theirs = split_parts(given), split_parts(truth)
    if ours is None or theirs is None:
        return False if one_is_a_number and (ours or theirs) else None
    if ours.brackets != theirs.brackets:
        return None if "{}" in (ours.brackets, theirs.brackets) else False
    if len(ours.parts) != len(theirs.parts):
        return False
    return (_agree_unordered if ours.brackets == "{}" else _agree_in_order)(ours.parts, theirs.parts)


def _agree_in_order(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool | None:
    verdicts = [_agree(*normalise_both(one, other)) for one, other in zip(ours, theirs, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _agree_unordered(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool | None:
    """Match each part with an equal one; None as soon as a pair needs algebra."""
    left = list(theirs)
    for part in ours:
        verdicts = [_agree(*normalise_both(part, other)) for other in left]
        if True in verdicts:
            del left[verdicts.index(True)]
        elif None in verdicts:
            return None
        else:
            return False
    return True
