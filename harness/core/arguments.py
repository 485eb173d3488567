"""Checks of command-line arguments that several commands share."""

from __future__ import annotations

import argparse


def from_1(text: str) -> int:
    """Return the whole number that was typed.

    Raises:
        ArgumentTypeError: it is none, or below 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)
