"""What a message says beside its words: the names in backquotes and the numbers, in their order."""

from __future__ import annotations

import re


def facts(text: str | None) -> str:
    """Return the names and numbers of a message, separated by spaces."""
    return " ".join(found.strip("`") for found in re.findall(r"`[^`]*`|\d+(?:[.,]\d+)*", text or ""))
