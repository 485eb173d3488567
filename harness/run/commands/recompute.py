"""``python -m harness recompute``: compute a kept training step again, and compare every figure.

Exit codes: 0 all agree; 1 one does not; 2 bad input.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.arguments import from_0, set_argument
from harness.run.commands.arguments import scenario_of_run

if TYPE_CHECKING:
    from harness.run.recompute import Check

DESCRIPTION = """Recompute rewards, advantages, loss and gradient norm of a training step that a run has kept
(checkpoint.keep_steps, checkpoint.keep_steps_every), in one process, and say whether they are the recorded ones."""
EXAMPLES = """examples:
  python -m harness run quickstart --set checkpoint.keep_steps=[3] --set steps=5
  python -m harness recompute results/quickstart/20260101-120000 --step 3

Exit codes: 0 all agree; 1 one does not; 2 bad input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path, help="the run's folder")
    parser.add_argument("--step", type=from_0, required=True, metavar="N", help="the training step, counted from 0")
    parser.add_argument(
        "--scenario", metavar="SCENARIO", help="the run's scenario, if the saved one lacks the folders of its files"
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="SHARE", help="relative difference of figures that agree (default: 1e-5)"
    )
    set_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Recompute the step and print what came of it; return the exit code."""
    from harness.run.recompute import TOLERANCE, recompute

    naming = f"recompute {options.folder} --step {options.step} --scenario SCENARIO"
    scenario = scenario_of_run(options.folder, options.scenario, options.set, naming)
    tolerance = TOLERANCE if options.tolerance is None else options.tolerance
    checks, notes = recompute(options.folder, options.step, scenario, tolerance)
    _print(options.step, checks, notes, tolerance)
    return 0 if all(check.agrees for check in checks) else 1


def _print(step: int, checks: Sequence[Check], notes: Sequence[str], tolerance: float) -> None:
    from harness.report.console import Output
    from harness.report.document import Table
    from harness.report.terminal import print_list, print_table
    from harness.run.recompute import MOST_NAMED

    rows = tuple((check.what, _said(check, tolerance), f"{check.values:,}") for check in checks)
    output = Output()
    print_table(
        output, Table(f"Training step {step}", ("recomputed", "and the recorded", "values"), rows, tuple(notes), 2)
    )
    for check in checks:
        more = len(check.differing) - MOST_NAMED
        named = [*check.differing[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
        print_list(output, f"Other {check.what}", named)


def _said(check: Check, tolerance: float) -> str:
    if not check.agrees:
        return f"{len(check.differing)} differ" + (f", by up to {check.largest:.2g} relative" if check.largest else "")
    return f"agree: {check.largest:.2g} relative, tolerance {tolerance:g}" if check.largest else "equal"
