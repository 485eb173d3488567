"""Units behind a number, and currency before it: taken off for the comparison of values, and compared themselves.

A unit may be left out on one side. Two units that are both named must be the same one, however they are spelt.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from harness.tasks.maths.numbers import NUMBER_WORDS, POWERS_OF_TEN, read_number

DEGREE = "\x03"
"""Stands for a sign of degrees."""
MAX_UNIT_CHARS = 60
"""What is longer, behind a number, is no unit."""

_SPELLINGS = (
    "inch in inches", "foot ft feet", "yard yd yds yards", "mile mi miles", "meter m metre meters metres",
    "second s sec secs seconds", "minute min mins minutes", "hour h hr hrs hours", "day days", "week wk wks weeks",
    "month mo months", "year yr yrs years", "gram g grams", "liter l litre liters litres", "ounce oz ounces",
    "lb lbs", "ton tons", "gallon gal gals gallons", "quart qt quarts", "pint pt pints", "cup cups",
    "dollar dollars usd buck bucks", "cent cents", "euro euros eur", "gbp", "degree deg degrees",
    "radian rad rads radians", "unit units", "celsius", "fahrenheit", "kelvin", "pm", "am", "acre ac acres",
    "byte bytes", "kilobyte kb kilobytes", "megabyte mb megabytes", "gigabyte gb gigabytes", "ex exes",
    "volt volts", "watt watts", "joule joules", "newton newtons", "hertz hz", "person people persons",
)  # fmt: skip
_METRIC = {"milli": "m", "centi": "c", "kilo": "k"}
_KNOWN = {spelling: line.split()[0] for line in _SPELLINGS for spelling in line.split()} | {
    spelling: f"{prefix}{unit}"
    for prefix, short in _METRIC.items()
    for unit, spellings in {"meter": "meters metre metres", "gram": "grams", "liter": "liters litre litres"}.items()
    for spelling in (f"{short}{unit[0]}", f"{prefix}{unit}", *(prefix + other for other in spellings.split()))
}
"""The one name of each unit by its spellings. Any other noun is a unit too, and its own name."""
_POUNDS = frozenset({"pound", "pounds"})
"""Of weight or of money."""
_SHORT_FOR = {"mph": "mile/hour", "kph": "kilometer/hour", "kmh": "kilometer/hour", "bpm": "beat/minute"}
_CURRENCIES = {"US$": "dollar", "$": "dollar", "USD": "dollar", "€": "euro", "EUR": "euro", "£": "gbp", "GBP": "gbp"}
_SIGNS = {"$": " dollar ", "€": " euro ", "£": " gbp ", "¢": " cent ", DEGREE: " degree "}
_TEMPERATURES = {"c": "celsius", "f": "fahrenheit", "k": "kelvin"}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3, "^2": 2, "^3": 3}
_SURE = frozenset({*_KNOWN, *_SHORT_FOR, *_POWERS, "per", "as"})
"""Short words that are no product of variables."""
_COMPARING = frozenset({"as", "more", "larger", "greater", "bigger", "faster", "longer", "older", "heavier", "taller"})

_CHANGES_THE_VALUE = re.compile(
    r"(?:and|or|to|of|by|plus|minus|over|mod|modulo|not|but|than|th|st|nd|rd|bn|mn|mil|maybe|perhaps|versus|"
    r"negative|below|doubled|tripled|twice|inverse|reciprocal|"
    r"squared?|cubed?|factorial|roots?|base|half|halves|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten)ths?|"
    r"(?:ten-?)?(?:hundred|thousand|million|billion|trillion)(?:s|ths?)?|dozens?|score|times|"
    r"pi|inf|infinity|sin|cos|tan|cot|csc|log|ln|exp|sqrt|[a-eknx-z]{2,3}|[a-z]{1,2})"
)
"""Words behind a number that change it, and short runs of the letters that variables are called by."""

_MAY_HAVE_A_UNIT = re.compile(rf"[a-zA-Z$€£¢{DEGREE}]|%$")
_VALUE = re.compile(
    r"(?:[\d\s.,:+\-*/^()\[\]{}|!%]|\\(?:frac|sqrt|pi|cdot|times|pm|infty|cup)(?![a-zA-Z])|\\[{}]|"
    r"(?<=\d)[eE](?=[-+]?\d)|x(?=\s*10\s*\^))*"
)
_VALUE_ENDS = re.compile(r".*(?:[\d})\]|!%.]|\\pi|\\infty)", re.DOTALL)
_CURRENCY_IN_FRONT = re.compile(rf"([-+]?)\s*({'|'.join(map(re.escape, _CURRENCIES))})\s*(?=[-+.\d\\(])")
_WORD = re.compile(r"[a-zA-Z][a-zA-Z.]*")
_TOKEN = re.compile(r"[a-z][a-z.]*|\^\s*\d|[/-]|\S")
_ARTICLE_IN_FRONT = re.compile(r"of (?:an?|the) ")


class Factor(NamedTuple):
    """Nouns and the power that they are taken to: ``square inches`` is ``({"inch"}, 2)``."""

    nouns: frozenset[str]
    power: int


class Unit(NamedTuple):
    """A unit, or a rate: what is counted, and what it is divided by."""

    counted: Factor | None
    divided_by: tuple[Factor, ...] = ()


class Measured(NamedTuple):
    """An answer without its unit, and the unit."""

    value: str
    unit: Unit | None


def take_off_unit(text: str) -> Measured:
    r"""Return a normalised answer without currency and unit, which may stand behind numbers, surds, pi and points.

    ``5 million`` becomes ``5\times 10^{6}``. A text that is no such value, or has other words behind it, stays whole.
    """
    if not _MAY_HAVE_A_UNIT.search(text):
        return Measured(text, None)
    currency = _CURRENCY_IN_FRONT.match(text)
    bare = text if currency is None else currency[1] + text[currency.end() :]
    found = _VALUE.match(bare)
    end = found.end() if found else 0
    value, behind = bare[:end].rstrip(), bare[end:].strip()
    if value.endswith("/"):
        value, behind = value[:-1].rstrip(), "/" + behind
    if value.endswith("%") and not behind:
        return Measured(text, Unit(Factor(frozenset({"percent"}), 1)))
    if currency is not None and not behind:
        return Measured(bare, _currency(currency[2]))
    if not value or not behind or not _VALUE_ENDS.fullmatch(value):
        return Measured(text, None)
    scaled, behind = _with_power_of_ten(value, behind)
    number = read_number(value)
    if not behind:
        return Measured(scaled, _currency(currency[2]) if currency else None)
    if not _may_stand_behind(value, number is not None, behind, spaced=bare[end - 1].isspace()):
        return Measured(text, None)
    unit = read_unit(behind)
    if unit is None:
        return Measured(text, None)
    return Measured(scaled, unit if currency is None else _with_currency(_currency(currency[2]), unit))


def _with_power_of_ten(value: str, behind: str) -> tuple[str, str]:
    """Return the value with its words of scale carried out, and what is left behind it."""
    power = 0
    while True:
        word, _, rest = behind.partition(" ")
        scale = POWERS_OF_TEN.get(word.casefold())
        if scale is None:
            return (rf"{value}\times 10^{{{power}}}" if power else value), behind
        power, behind = power + scale, rest.strip()


def _may_stand_behind(value: str, is_number: bool, behind: str, spaced: bool) -> bool:
    """Return whether what is behind a value can be a unit, and not a factor: a lone letter only behind a number."""
    words = [word.replace(".", "") for word in _WORD.findall(behind)]
    if words and behind[0].isalpha() and len(words[0]) == 1 and not (is_number and spaced and words[0] in "mgshlLCFK"):
        return False
    if is_number:
        return True
    is_list = "," in value and value[0] not in r"([\{"
    return not is_list and all(len(word) > 3 or word.casefold() in _SURE for word in words)


@lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit | None:
    """Return the unit that a text is; None where it holds a word that changes the number, or is none."""
    text = _ARTICLE_IN_FRONT.sub("", text, count=1) if text.startswith("of ") else text
    if len(text) > MAX_UNIT_CHARS:
        return None
    text = text.casefold()
    for sign, name in _SIGNS.items():
        text = text.replace(sign, name)
    for short, long in _SHORT_FOR.items():
        text = re.sub(rf"\b{short}\b", long, text)
    parts: list[list[str]] = [[]]
    for token in _TOKEN.findall(text):
        word = token.replace(".", "").replace(" ", "")
        if word in ("/", "per") or (word in ("a", "an") and parts[-1]):
            parts.append([])
        elif word != "-":
            parts[-1].append(word)
    factors = [_factor(words) for words in parts]
    counted, divided_by = factors[0], factors[1:]
    if any(factor is None for factor in divided_by) or (counted is None and (parts[0] or not divided_by)):
        return None
    return Unit(counted, tuple(factor for factor in divided_by if factor is not None))


def _factor(words: list[str]) -> Factor | None:
    """Return the nouns among some words and their power; None where the words are no unit."""
    if words[:1] == ["times"] and (len(words) == 1 or words[1] in _COMPARING) and all(map(str.isalpha, words)):
        return Factor(frozenset({"times"}), 1)
    power, nouns = 1, set[str]()
    for place, word in enumerate(words):
        if word in _POWERS and (nouns or (word not in ("squared", "cubed") and place + 1 < len(words))):
            power = _POWERS[word]
        elif word in _TEMPERATURES and nouns == {"degree"}:
            nouns.add(_TEMPERATURES[word])
        elif word in _POUNDS:
            nouns |= {"lb", "gbp"}
        elif word in _KNOWN:
            nouns.add(_KNOWN[word])
        elif not word.isalpha() or not word.isascii() or word in NUMBER_WORDS or _CHANGES_THE_VALUE.fullmatch(word):
            return None
        else:
            nouns.add(word.removesuffix("s"))
    return Factor(frozenset(nouns), power) if nouns and len(words) <= 5 else None


def _currency(sign: str) -> Unit:
    return Unit(Factor(frozenset({_CURRENCIES[sign]}), 1))


def _with_currency(currency: Unit, unit: Unit) -> Unit:
    """Return the unit of ``$5 per hour``: the currency is what is counted."""
    return Unit(currency.counted, unit.divided_by) if unit.counted is None else unit


def same_unit(one: Unit | None, other: Unit | None) -> bool:
    """Return whether two units agree: one is left out, or both are the same.

    What is counted may be left out of a rate (``60 per hour``). ``units`` are of any kind. Of several nouns one must
    be shared: ``red marbles`` are ``marbles``.
    """
    if one is None or other is None:
        return True
    if len(one.divided_by) != len(other.divided_by):
        return False
    pairs = [*zip(one.divided_by, other.divided_by, strict=True)]
    if one.counted is not None and other.counted is not None:
        pairs.append((one.counted, other.counted))
    return all(_same_factor(*pair) for pair in pairs)


def _same_factor(one: Factor, other: Factor) -> bool:
    if one.power != other.power:
        return False
    if "unit" in one.nouns | other.nouns:
        return True
    narrow, other_narrow = one.nouns - {"degree"}, other.nouns - {"degree"}
    if narrow and other_narrow:
        return bool(narrow & other_narrow)
    return "degree" in one.nouns & other.nouns
