"""Command-line arguments, and checks of them, that commands of several wings share."""

from __future__ import annotations

import argparse


def from_1(text: str) -> int:
    """Return the whole number that was typed.

    Raises:
        ArgumentTypeError: it is none, or below 1.
    """
    return _whole(text, 1)


def from_0(text: str) -> int:
    """Return the whole number that was typed.

    Raises:
        ArgumentTypeError: it is none, or negative.
    """
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
    return int(text)


def set_argument(parser: argparse.ArgumentParser) -> None:
    """Add changes to settings."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting: dotted key, YAML value; may be repeated",
    )
