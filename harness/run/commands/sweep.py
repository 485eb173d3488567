"""``python -m harness sweep``: a short name of ``run``, for many runs that may be stopped at any time."""

from __future__ import annotations

import argparse

from harness.run.commands import run as named

DESCRIPTION = "Run every arm, point and block of a scenario once, or continue where it was stopped."
EXAMPLES = """examples:
  python -m harness sweep learning_rates
  python -m harness sweep learning_rates --status
  python -m harness sweep baselines --set steps=20 --set 'sweep={"seed": [0, 1]}'

It can be stopped at any time (Ctrl-C, a power cut); the same command continues, and one with another setting is another
sweep. Points that have a result are not run again; one that diverged has one. Points that were cut short are kept in
.attempts in the experiment's folder and run again.
"""
SHORT_FOR = "run"
run = named.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    named.add_arguments(parser)
    parser.set_defaults(short_name="sweep")
