"""One spelling for what can be written in many ways: delimiters, spacing commands, fractions, signs, Markdown."""

from __future__ import annotations

import re

from harness.tasks.maths.extraction import closing_brace
from harness.tasks.maths.numbers import with_digits_for_a_word, with_fractions_for_repeating_decimals
from harness.tasks.maths.units import DEGREE

MAX_TEXT_COMMANDS = 30
r"""More than so many ``\text{...}`` in one answer stay as they are."""

_CHARACTERS = {
    0x2212: "-", 0x2010: "-", 0x2013: "-", 0x2014: "-",  # minus, hyphen and dashes
    0x00A0: " ", 0x2009: " ", 0x202F: " ", 0x200B: "", 0x2044: "/", 0xFF05: "%",  # spaces, fraction slash, percent
    0x00D7: r"\times ", ord("·"): r"\cdot ", ord("⋅"): r"\cdot ", ord("÷"): "/", ord("√"): r"\sqrt ",
    ord("π"): r"\pi ", ord("∞"): r"\infty ", ord("°"): r"^\circ ", ord("²"): "^2", ord("³"): "^3",
    ord("≤"): r"\le ", ord("≥"): r"\ge ", ord("≠"): r"\ne ", ord("∈"): r"\in ", ord("±"): r"\pm ",
    0x222A: r"\cup ", 0x2229: r"\cap ", ord("½"): r"\frac{1}{2}", ord("…"): "...",
}  # fmt: skip

_WRAPPINGS = (
    *(("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("*", "*"), ("`", "`")),
    *(('"', '"'), ("{", "}")),
)
_TEXT_COMMANDS = ("text", "textbf", "textit", "textrm", "mathrm", "mathbf", "mbox", "boxed", "fbox")
_TEXT = re.compile(rf"\\({'|'.join(_TEXT_COMMANDS)})\s*(?=\{{)")
_UNITS_OF_A_LETTER = {"m": "meters", "g": "grams", "s": "seconds", "h": "hours", "l": "liters", "L": "liters"}
"""What a lone letter in upright type behind a value means: no variable."""

Rewrites = tuple[tuple[re.Pattern[str], str], ...]
"""Patterns with what takes the place of each match, applied in this order."""


def compiled(*pairs: tuple[str, str], ignore_case: bool = False) -> Rewrites:
    """Return pairs of a pattern and its replacement as rewrites."""
    return tuple((re.compile(pattern, re.IGNORECASE if ignore_case else 0), new) for pattern, new in pairs)


def rewritten(text: str, rewrites: Rewrites) -> str:
    """Return a text after one rewrite after the other."""
    for pattern, new in rewrites:
        text = pattern.sub(new, text)
    return text


_GROUP = r"(\{(?:[^{}]|\{[^{}]*\})*\})"
_TOKEN = r"([a-zA-Z0-9]|\\(?!sqrt)[a-zA-Z]+(?![a-zA-Z]))"  # what TeX takes for an argument that has no braces
_OF_COMMANDS = compiled(
    (r"\\(?:left|right|bigg?|Bigg?)(?![a-zA-Z])\.?", ""),
    (r"\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])", ""),
    (r"(?<!\\)\\!", ""),
    (r"(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])", " "),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (rf"\\frac\s*{_TOKEN}\s*{_TOKEN}", r"\\frac{\1}{\2}"),
    (rf"\\frac\s*{_TOKEN}\s*\{{", r"\\frac{\1}{"),
    (rf"\\frac\s*{_GROUP}\s*{_TOKEN}", r"\\frac\1{\2}"),
    (r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\\sqrt\s*([a-zA-Z0-9])", r"\\sqrt{\1}"),
    (r"\\(%|\$|#|&|_)", r"\1"),
    (r"\^\s*(?:\{\s*)?\\(?:circ|degree)(?![a-zA-Z])\s*\}?", DEGREE),
    (r"\\degree(?![a-zA-Z])", DEGREE),
    (r"\\l?dots(?![a-zA-Z])", "..."),
    (r"\\colon(?![a-zA-Z])\s*", ":"),
    (r"\\leq(?:slant)?(?![a-zA-Z])", r"\\le"),
    (r"\\geq(?:slant)?(?![a-zA-Z])", r"\\ge"),
    (r"\\neq(?![a-zA-Z])", r"\\ne"),
    (r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset"),
    (r"\\mathbb\s*\{?\s*R\s*\}?", r"(-\\infty,\\infty)"),
    (r"(?<![\w})\]])\+\s*\\infty(?![a-zA-Z])", r"\\infty"),
)
_OF_ALL = compiled(
    (r"~", " "),
    (r"\{,\}", ","),
    (r"([_^])\{\s*([a-zA-Z0-9])\s*\}(?!\d)", r"\1\2"),
    (r"\s+", " "),
)
_OF_WORDS = compiled(
    (r"(?<=\d)\s*degrees?(?![a-zA-Z])", DEGREE),
    (r"(?<=[\d}])\s*(?:per\s?cent|percentage points?)(?![a-zA-Z])", "%"),
    (r"^(\d+) to (\d+)$", r"\1:\2"),
    (r"^(?:\\text\{)?all real numbers\}?$", r"(-\\infty,\\infty)"),
    ignore_case=True,
)
_RATIO_SPACES = re.compile(r"(?<=\d)\s*:\s*(?=\d)")
_LETTER = re.compile(r"[a-zA-Z]")
_LEAD_IN = re.compile(r"^(?:the\s+)?(?:final\s+)?answer(?:\s+is|\s*[:=])\s*:?\s*", re.IGNORECASE)
_MEMBER_OF = re.compile(r"^[a-zA-Z]\s*\\in(?![a-zA-Z])\s*")


def normalise(text: str) -> str:
    """Return an answer in one spelling. A sign of degrees becomes ``DEGREE``."""
    text = _unwrap(text.translate(_CHARACTERS).strip())
    if "\\" in text:
        text = rewritten(text, _OF_COMMANDS)
        text = _without_text_commands(rewritten(text, _OF_ALL))
    else:
        text = rewritten(text, _OF_ALL)
    text = _unwrap(text.strip())
    if _LETTER.search(text):
        text = _MEMBER_OF.sub("", _unwrap(_LEAD_IN.sub("", text)))
        text = with_digits_for_a_word(rewritten(text, _OF_WORDS))
    if "." in text:
        text = with_fractions_for_repeating_decimals(text)
    return _RATIO_SPACES.sub(":", text.rstrip(" .,;:").strip())


def _unwrap(text: str) -> str:
    """Take off pairs of delimiters around the whole text; single dollar signs are money and stay."""
    if text[-1:].isalnum():
        return text
    for begin, end in _WRAPPINGS * 2:
        inner = text[len(begin) : -len(end)]
        if len(text) > len(begin) + len(end) and text.startswith(begin) and text.endswith(end) and begin not in inner:
            text = inner.strip()
    return text


def _with_whole_units(text: str) -> str:
    """Return ``m/s`` as ``meters/seconds``; what else than such a unit a text is stays as it is."""
    words = text.split("/")
    return "/".join(_UNITS_OF_A_LETTER.get(word, word) for word in words)


def _without_text_commands(text: str) -> str:
    r"""Replace ``\text{...}`` and its like by what they hold, with spaces around."""
    for _ in range(MAX_TEXT_COMMANDS):
        found = _TEXT.search(text)
        end = closing_brace(text, found.end()) if found else None
        if found is None or end is None:
            break
        inside, behind = text[found.end() + 1 : end].strip(), text[end + 1 :]
        if text[: found.start()].strip():
            inside = _with_whole_units(inside)
        text = f"{text[: found.start()]} {inside}{' ' * behind[:1].isalnum()}{behind}"
    return " ".join(text.split())
