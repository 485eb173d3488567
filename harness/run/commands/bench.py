"""``python -m harness bench``: a short name of ``run``, for a verdict."""

from __future__ import annotations

import argparse

from harness.run.commands import run as named

DESCRIPTION = "Run scenarios as arms in blocks, for a verdict: the baseline, then what is compared with it."
SHORT_FOR = "run"
run = named.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    named.add_arguments(parser)
    parser.set_defaults(short_name="bench")
