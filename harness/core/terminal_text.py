"""Text for a terminal; what comes from files is made safe to print, since it may hold terminal commands."""

from __future__ import annotations

import os
import sys
import unicodedata


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


def silence_output() -> None:
    """Send what is still written to standard output nowhere, the interpreter's last flush included.

    For commands whose reader leaves early, as ``| head`` does: that is no error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
