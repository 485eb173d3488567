"""Command-line arguments, and checks of them, that commands of several wings share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from harness.core.errors import UserError


def _whole(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
    return int(text)


from_0: Callable[[str], int] = partial(_whole, 0)
from_1: Callable[[str], int] = partial(_whole, 1)
"""The ``type`` of arguments that are whole numbers from 0 or 1 on."""


class Parser(argparse.ArgumentParser):
    """Refuses wrong usage with a ``UserError`` that names the fix, in place of argparse's lines on usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message, None, f"{self.prog} --help shows what it takes")


def set_argument(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add changes to settings; ``more`` is added to what is said of them."""
    about = f"change a setting: dotted key, YAML value; may be repeated{more}"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about)


def out_argument(parser: argparse._ActionsContainer, default: Path | None, help: str, *old: str) -> None:
    """Add ``--out DIR``, every command's way to name a folder; ``old`` spellings are still taken, and not shown."""
    parser.add_argument("--out", type=Path, default=default, metavar="DIR", help=help)
    if old:
        parser.add_argument(*old, dest="out", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def file_argument(parser: argparse._ActionsContainer, default: Path | None, help: str) -> None:
    """Add ``-o FILE``, ``--output FILE``: every command's way to name a file."""
    parser.add_argument("-o", "--output", type=Path, default=default, metavar="FILE", help=help)


def json_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--json``: every command's way to print its figures for programs."""
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def quiet_argument(parser: argparse._ActionsContainer, result: str) -> None:
    """Add ``--quiet``; ``result`` is what the one line at the end says."""
    parser.add_argument("--quiet", action="store_true", help=f"no progress; at the end one line, {result}")
