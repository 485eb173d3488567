"""The command ``python -m harness faults``. Exit codes: 0 fine; 1 an invariant was broken; 2 bad input."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import islice

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.core.arguments import from_1
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.probes.provenance import usable_cores
from tests.faults.draws import draw
from tests.faults.running import Wiring, run_schedule
from tests.faults.search import Summary, search
from tests.faults.show import broken_lines, summary_lines, trace_lines
from tests.faults.shrinking import smallest_run

WORTH_A_PROCESS = 200
"""Schedules that take longer than a process takes to start."""

EXAMPLES = """\
examples:
  python -m harness faults --schedules 10000
  python -m harness faults --seed 12345 --schedules 1 --trace
schedules are numbered: --seed 100 --schedules 50 runs those from 100 to 149, the same ones on every machine"""


def main(arguments: Sequence[str] | None = None, wiring: Wiring | None = None) -> int:
    """Run seeded faults and check the invariants; return the exit code. ``harness.cli`` tells what is raised.

    Args:
        arguments: the command line.
        wiring: what the loop is put together from, where it is not the loop as it is.
    """
    options = _parser().parse_args(arguments)
    if options.trace and options.schedules != 1:
        raise UserError(
            f"--trace shows one schedule, and --schedules is {options.schedules}", "--trace", "add --schedules 1"
        )
    if options.trace:
        _say(trace_lines(run_schedule(draw(options.seed), wiring)))
        _say([""])
    jobs = 1 if wiring is not None else min(options.jobs, 1 + options.schedules // WORTH_A_PROCESS)
    began = time.monotonic()
    summary = _search(options, jobs, wiring)
    _say(summary_lines(summary, options.seed))
    took = f"took {time.monotonic() - began:.1f} s in {jobs} {'process' if jobs == 1 else 'processes'}"
    print(took, file=sys.stderr)
    for seed in islice(sorted(summary.broken), options.first):
        _say([""])
        outcome = run_schedule(draw(seed), wiring)
        _say(broken_lines(outcome, smallest_run(outcome, wiring)))
    return 1 if summary.broken else 0


def _search(options: argparse.Namespace, jobs: int, wiring: Wiring | None) -> Summary:
    console = Console(stderr=True)
    columns = TextColumn("fault schedules"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=options.schedules)
        return search(options.seed, options.schedules, jobs, wiring, lambda more: progress.advance(task, more))


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(plain(line))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness faults",
        description="Run the training loop through seeded faults on a virtual clock, and check its invariants after "
        "each event.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--schedules", type=from_1, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--seed", type=_from_0, default=0, metavar="S", help="number of the first one (default: 0)")
    parser.add_argument(
        "--first", type=from_1, default=1, metavar="N", help="shrink and show the first N that break (default: 1)"
    )
    parser.add_argument("--jobs", type=from_1, default=usable_cores(), metavar="N", help="processes (default: cores)")
    parser.add_argument("--trace", action="store_true", help="show every event; with --schedules 1")
    return parser


def _from_0(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 0")
    return int(text)
