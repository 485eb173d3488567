"""``python -m harness whatif RESULTS``: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.compare.gates import read_limit
from harness.core.arguments import file_argument, json_argument, out_argument, set_argument
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.simulate.whatif import ERROR_BOUND

if TYPE_CHECKING:
    from harness.simulate.whatif.effects import Answer

EXAMPLES = """\
examples:
  python -m harness whatif results/reference/async_lag1 --run lag1,block=00 --scale update=0.5
  python -m harness whatif results/reference/paced_overlap --run sync --set max_lag=1 -o before_and_after.png

The run is replayed by the real loop on a virtual clock, with its own times, lengths, rewards and order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "results", metavar="RESULTS", type=Path, help="a run's folder, or one with the runs of a scenario"
    )
    parser.add_argument("--run", metavar="NAME", help="which run, if there are several: its folder or its arm")
    set_argument(parser)
    parser.add_argument(
        "--scale",
        action="append",
        default=[],
        metavar="STAGE=FACTOR",
        help="multiply a stage's seconds: update=0.5; `call` is the transit of a call; may be repeated",
    )
    parser.add_argument(
        "--machine",
        metavar="PROFILE",
        help="costs and contention (default: the profile of the run's machine and versions)",
    )
    parser.add_argument(
        "--error-bound",
        metavar="SHARE",
        help=f"predict although the run's own replay is off by up to this share (default: {100 * ERROR_BOUND:g}%%)",
    )
    file_argument(parser, None, "draw the timelines before and after, as a .png file")
    out_argument(parser, None, "folder for both replays as runs, for compare, report and trace")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Replay a recorded run with something changed, and say what comes of it; return the exit code."""
    from harness.results.rows import with_nulls
    from harness.simulate.whatif.changes import choose_run
    from harness.simulate.whatif.effects import what_if
    from harness.simulate.whatif.report import figures

    bound = ERROR_BOUND if options.error_bound is None else read_limit(options.error_bound, "--error-bound")
    if options.output is not None and options.output.suffix.lower() != ".png":
        fix = f"write -o {options.output.with_suffix('.png')}"
        raise UserError(f"the picture {str(options.output)!r} must end in .png", "-o", fix)
    recorded = choose_run(options.results, options.run)
    answer = what_if(recorded, options.set, options.scale, options.machine, bound)
    written = list(_write(answer, options))  # before anything is printed: whoever reads may leave early
    if options.json:
        print(json.dumps(with_nulls(figures(answer)), indent=2))
    else:
        _print(answer, written)
    return 0


def _write(answer: Answer, options: argparse.Namespace) -> Iterator[str]:
    """Write what was asked for; yield a line about each."""
    if options.output is not None:
        from harness.simulate.whatif.report import draw_picture

        yield f"picture: {draw_picture(answer, options.output)}"
    if options.out is not None:
        from harness.simulate.whatif.report import write_runs

        yield f"runs: {write_runs(answer, options.out)}"


def _print(answer: Answer, written: Sequence[str]) -> None:
    from rich.text import Text

    from harness.report.console import Output
    from harness.report.terminal import print_list, print_table
    from harness.simulate.whatif.report import cautions, sentences, tables

    console = Output()
    manifest = answer.run.manifest
    title = f"What if: {manifest.scenario} / {manifest.experiment} / {answer.run.folder.name} (simulated)"
    console.print(Text(plain(title), style="bold underline"))
    for table in tables(answer):
        print_table(console, table)
    print_list(console, "What the figures say", list(sentences(answer)))
    print_list(console, "Caveats", list(cautions(answer)))
    print_list(console, "Written", written)
