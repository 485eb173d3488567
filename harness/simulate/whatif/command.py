"""``python -m harness simulate --from RUN``, or ``whatif RUN``: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.compare.gates import read_limit
from harness.core.arguments import file_argument, json_argument, out_argument, quiet_argument, set_argument
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.simulate.whatif import ERROR_BOUND

EXAMPLES = """\
examples:
  python -m harness whatif results/reference/async_lag1 --run lag1,block=00 --scale update=0.5
  python -m harness whatif results/reference/paced_overlap --run sync --set max_lag=1 -o before_and_after.png

`whatif RESULTS ...` is short for `simulate --from RESULTS ...`. The run is replayed by the real loop on a virtual
clock, with its own times, lengths, rewards and order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "source", metavar="RESULTS", type=Path, help="a run's folder, or one with the runs of a scenario"
    )
    set_argument(parser)
    parser.add_argument(
        "--machine",
        metavar="PROFILE",
        help="costs and contention (default: the profile of the run's machine and versions)",
    )
    add_own_arguments(parser)
    out_argument(parser, None, "folder for both replays as runs, for compare, report and trace")
    shown = parser.add_mutually_exclusive_group()
    quiet_argument(shown, "with the seconds of a step")
    json_argument(shown)


def add_own_arguments(parser: argparse._ActionsContainer) -> None:
    """Add what a forecast from a run takes and one from a scenario does not."""
    parser.add_argument("--run", metavar="NAME", help="which run, if there are several: its folder or its arm")
    parser.add_argument(
        "--scale",
        action="append",
        default=[],
        metavar="STAGE=FACTOR",
        help="multiply a stage's seconds: update=0.5; `call` is the transit of a call; may be repeated",
    )
    parser.add_argument(
        "--error-bound",
        metavar="SHARE",
        help=f"predict although the run's own replay is off by up to this share (default: {100 * ERROR_BOUND:g}%%)",
    )
    file_argument(parser, None, "draw the timelines before and after, as a .png file")


def run(options: argparse.Namespace) -> int:
    """Replay a recorded run with something changed, and say what comes of it; return the exit code."""
    from harness.results.rows import with_nulls
    from harness.simulate.recorded_run import choose_run
    from harness.simulate.whatif.answer import what_if
    from harness.simulate.whatif.report import draw_picture, figures, sentences, show, write_runs

    bound = ERROR_BOUND if options.error_bound is None else read_limit(options.error_bound, "--error-bound")
    if options.output is not None and options.output.suffix.lower() != ".png":
        fix = f"write -o {options.output.with_suffix('.png')}"
        raise UserError(f"the picture {str(options.output)!r} must end in .png", "-o", fix)
    recorded = choose_run(options.source, options.run)
    answer = what_if(recorded, options.set, options.scale, options.machine, bound)
    written = []  # before anything is printed: whoever reads may leave early
    if options.output is not None:
        written.append(f"picture: {draw_picture(answer, options.output)}")
    if options.out is not None:
        written.append(f"runs: {write_runs(answer, options.out)}")
    if options.json:
        print(json.dumps(with_nulls(figures(answer)), indent=2))
    elif options.quiet:
        print(plain(next(sentences(answer))))
    else:
        show(answer, written)
    return 0
