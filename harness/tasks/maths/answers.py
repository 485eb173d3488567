"""Whether two written answers are the same, by rules that need no algebra.

Both are brought into one spelling (``spelling``), lose what is said of a value but not part of it (``units``, names,
the writing of an inequality), and are then compared as text, as numbers, as words, or part by part. No text is ever
evaluated.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.tasks.maths.extraction import MAX_ANSWER_CHARS
from harness.tasks.maths.intervals import as_intervals
from harness.tasks.maths.numbers import read_based, read_number, read_plain_number, same_number
from harness.tasks.maths.spelling import normalise
from harness.tasks.maths.units import DEGREE, Measured, same_unit, take_off_unit

MAX_PARTS = 30
"""A longer list is left to the symbolic comparison."""
UNORDERED = ("", "{}")
"""Brackets of what has no order: bare lists and sets."""

_NAME = r"(?:\\angle\s*)?[a-zA-Z]+(?:_[a-zA-Z0-9])?(?:\([a-zA-Z0-9]\))?|\([a-zA-Z](?:,\s*[a-zA-Z])+\)"
_NAMED = re.compile(rf"(?P<name>{_NAME})\s*=\s*(?P<value>[^=]+)")
_NAMED_BEHIND = re.compile(r"(?P<value>[^=]+)=\s*(?P<name>[a-zA-Z])")
_ANGLE_TAKEN = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_WORDS = re.compile(r"[a-zA-Z][a-zA-Z' -]*[!?]?")
_ARTICLE = re.compile(r"(?:an?|the) ", re.IGNORECASE)
_LETTER_RUN = re.compile(r"[a-zA-Z]{3,}")
_CHOICE = re.compile(r"\(?([A-Z])[).:]*")
_CHOSEN = re.compile(r"(?:(?:option|choice)\s+)?\(?(?P<letter>[A-Z])(?P<mark>[).:]*)(?P<said>\s.*)?", re.IGNORECASE)
_ANOTHER_CHOICE = re.compile(r"(?<![a-zA-Z])(?:[A-Z]|or|and|not)(?![a-zA-Z])")
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
    number, true_number = read_plain_number(answer.strip()), read_plain_number(ground_truth.strip())
    if number is not None and true_number is not None:
        return same_number(number, true_number)
    return _agree(answer, ground_truth)


def _agree(answer: str, ground_truth: str) -> bool | None:
    given, truth = comparable(answer, ground_truth)
    return _values_agree(given.value, truth.value) if same_unit(given.unit, truth.unit) else False


def comparable(answer: str, ground_truth: str) -> tuple[Measured, Measured]:
    """Return both answers in one spelling and as values with their units.

    ``x = 5`` becomes ``5`` where the other one names nothing or the same, and an inequality becomes an interval where
    the other one is one too. Signs of degrees are dropped, except in arguments of angle functions.
    """
    given, truth = as_intervals(*_without_names(normalise(answer), normalise(ground_truth)))
    return _value(given), _value(truth)


def _without_names(given: str, truth: str) -> tuple[str, str]:
    if "=" not in given and "=" not in truth:
        return given, truth
    ours, theirs = (_NAMED.fullmatch(text) or _NAMED_BEHIND.fullmatch(text) for text in (given, truth))
    if ours and theirs and ours["name"] == theirs["name"]:
        return ours["value"].strip(), theirs["value"].strip()
    if ours and "=" not in truth:
        return ours["value"].strip(), truth
    if theirs and "=" not in given:
        return given, theirs["value"].strip()
    return given, truth


def _value(text: str) -> Measured:
    value, unit = take_off_unit(text)
    based = _based(value)
    if based is not None and based[1] == 10:
        value = based[0]
    return Measured(value if _ANGLE_TAKEN.search(value) else value.replace(DEGREE, "").strip(), unit)


def _values_agree(given: str, truth: str) -> bool | None:
    if not given or not truth:
        return False
    if _squeezed(given) == _squeezed(truth):
        return True
    based, true_base = _based(given), _based(truth)
    if based or true_base:
        return based == true_base
    number, true_number = read_number(given), read_number(truth)
    if number is not None and true_number is not None:
        return same_number(number, true_number)
    one_is_a_number = number is not None or true_number is not None
    chosen = _choices_agree(given, truth)
    if chosen is not None:
        return chosen
    ours, theirs = split_parts(given), split_parts(truth)
    if ours and theirs:
        return False if one_is_a_number else _parts_agree(ours, theirs)
    if _is_words(given) or _is_words(truth):
        return _word(given) == _word(truth)
    return False if one_is_a_number and (ours or theirs) else None


def _squeezed(text: str) -> str:
    return _NEEDLESS_SPACE.sub("", text)


def _based(text: str) -> tuple[str, int] | None:
    return read_based(text) if "_" in text or "base" in text else None


def _choices_agree(given: str, truth: str) -> bool | None:
    """Return whether two answers choose the same letter, as ``C``, ``(C)``, ``C. 12`` and ``Option C`` do.

    None where neither is a letter alone, or the other one is no choice.
    """
    if letter := _CHOICE.fullmatch(truth):
        other = given
    elif letter := _CHOICE.fullmatch(given):
        other = truth
    else:
        return None
    if split_parts(other):
        return False
    chosen = _CHOSEN.fullmatch(other)
    if chosen is None or (chosen["letter"].islower() and len(other) == 1):
        return None
    if chosen["said"] and (not chosen["mark"] or _ANOTHER_CHOICE.search(chosen["said"])):
        return None
    return letter[1] == chosen["letter"]


def _is_words(text: str) -> bool:
    """Whether a text is made of words, which algebra would read as products of letters."""
    runs = _LETTER_RUN.findall(text)
    return bool(runs) and _WORDS.fullmatch(text) is not None and not _NAMES_IN_FORMULAS.intersection(runs)


def _word(text: str) -> str:
    return _squeezed(_ARTICLE.sub("", text.rstrip("!?"), count=1)).casefold()


class Parts(NamedTuple):
    """A list, set, tuple or interval: its brackets (``{}`` for a set, none for a bare list) and what stands in it."""

    brackets: str
    parts: tuple[str, ...]


def split_parts(text: str) -> Parts | None:
    r"""Return the parts of ``(1, 2)``, ``[0, 1)``, ``\{1, 2\}`` or ``1, 2``; None where there are less than two."""
    text = text.replace(r"\{", "\x01").replace(r"\}", "\x02")
    brackets, inside = "", text
    if text.startswith(("(", "[", "\x01")) and text[-1] in ")]\x02" and _closed_by(text) == len(text) - 1:
        brackets, inside = (text[0] + text[-1]).replace("\x01\x02", "{}"), text[1:-1]
    if brackets in UNORDERED:
        inside = separate_parts(inside)
    if "," not in inside:
        return None
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


def _parts_agree(ours: Parts, theirs: Parts) -> bool | None:
    if ours.brackets in UNORDERED and theirs.brackets in UNORDERED:
        return _agree_unordered(ours.parts, theirs.parts)
    if ours.brackets == theirs.brackets:
        return _agree_in_order(ours.parts, theirs.parts)
    if "" not in (ours.brackets, theirs.brackets):
        return False
    listed, point = (ours, theirs) if ours.brackets == "" else (theirs, ours)
    coordinates = _named_coordinates(listed.parts)
    if coordinates is None:
        return None
    return point.brackets == "()" and _agree_in_order(coordinates, point.parts)


def _named_coordinates(parts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the values of ``x=3, y=4`` in the order of their names; None where they are not named, each once."""
    named = [_NAMED.fullmatch(part) for part in parts]
    values = {found["name"]: found["value"] for found in named if found is not None}
    return tuple(values[name] for name in sorted(values)) if len(values) == len(parts) else None


def _agree_in_order(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool | None:
    if len(ours) != len(theirs):
        return False
    verdicts = [_agree(one, other) for one, other in zip(ours, theirs, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _agree_unordered(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool | None:
    """Match each part with an equal one; None as soon as a pair needs algebra."""
    if len(ours) != len(theirs):
        return False
    left = list(theirs)
    for part in ours:
        verdicts = [_agree(part, other) for other in left]
        if True in verdicts:
            del left[verdicts.index(True)]
        elif None in verdicts:
            return None
        else:
            return False
    return True
