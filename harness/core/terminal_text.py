"""Text for a terminal; what comes from files is made safe to print, since it may hold terminal commands."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata

_INSTEAD = {
    "\u2500": "-", "\u2501": "-", "\u2502": "|", "\u2503": "|", "\u2550": "=", "\u2551": "|",  # lines of boxes
    "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2212": "-",
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2016": "||", "\u2022": "*", "\u2026": "...",
    "\u00a0": " ", "\u202f": " ", "\u00b1": "+-", "\u00d7": "x", "\u00b7": ".", "\u22c5": ".", "\u00b5": "u",
    "\u03bc": "u", "\u00b0": " degrees", "\u00b2": "^2", "\u00b3": "^3", "\u2190": "<-", "\u2192": "->",
    "\u2264": "<=", "\u2265": ">=", "\u2260": "!=", "\u2248": "~", "\u221e": "inf",
}  # fmt: skip
"""What stands for a sign that the encoding of an output lacks."""


def plain(text: str, limit: int | None = None) -> str:
    r"""Return the text on one line, with control and format characters written out (``\n``, ``\x1b``, ``\u202e``).

    Args:
        limit: cut to this many characters, the last of them ``...`` then.
    """
    shown = "".join(_visible(character) for character in (text if limit is None else text[: limit + 1]))
    if limit is not None and len(shown) > limit:
        shown = shown[: max(0, limit - 3)] + "..."
    return shown


def plain_ends(text: str, limit: int) -> str:
    """Return the text as ``plain`` does, and where it is longer than ``limit`` its two ends with ``...`` between.

    For prompts: they begin with instructions, often the same ones, and end with the question.
    """
    if len(text) <= limit:
        return plain(text)
    begin = limit // 4
    return f"{plain(text[:begin])} ... {plain(text[begin - limit :])}"


def plain_lines(text: str) -> str:
    """Return the text with every line made plain and the line breaks kept, as for an error of several lines."""
    return "\n".join(map(plain, text.splitlines()))


def _visible(character: str) -> str:
    kind = unicodedata.category(character)
    if kind[0] != "C" and kind not in ("Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode("ascii")


def write_what_can_be_written() -> None:
    """Have standard output and error take every text, whatever their encoding: signs by ASCII, letters by escapes.

    One that is closed leads nowhere from then on.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (lives as long as the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors=_HANDLER)


def _written_instead(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_INSTEAD.get(character) or _shape(character) for character in lacking), error.end


def _shape(character: str) -> str:
    """Return ``+`` for a corner of a box, ``#`` for a block, and the escape of anything else."""
    if "\u2500" <= character <= "\u257f":
        return "+"
    if "\u2580" <= character <= "\u259f":
        return "#"
    return character.encode("ascii", "backslashreplace").decode("ascii")


_HANDLER = "harness.what_can_be_written"
codecs.register_error(_HANDLER, _written_instead)


def silence_output() -> None:
    """Send what is still written to standard output nowhere, the interpreter's last flush included.

    For commands whose reader leaves early, as ``| head`` does: that is no error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
