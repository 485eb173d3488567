"""``python -m harness simulate --from RUN``, or ``whatif RUN``: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.core.arguments import json_argument, out_argument, quiet_argument, set_argument
from harness.core.terminal_text import plain

EXAMPLES = """\
examples:
  python -m harness whatif results/reference/async_lag1 --run lag1,block=00 --scale update=0.5
  python -m harness whatif results/reference/paced_overlap --run sync --set max_lag=1 --out before_and_after

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
    out_argument(parser, None, "folder for both replays as runs, for compare, report and trace, and their timelines")
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


def run(options: argparse.Namespace) -> int:
    """Replay a recorded run with something changed, and say what comes of it; return the exit code."""
    from harness.results.rows import with_nulls
    from harness.simulate.recorded_run import choose_run
    from harness.simulate.whatif.answer import what_if
    from harness.simulate.whatif.report import PICTURE, draw_picture, figures, sentences, show, write_runs

    recorded = choose_run(options.source, options.run)
    if recorded.manifest.outcome.get("recorded") is not None:
        from harness.simulate.whatif import others

        return others.run(recorded, options)
    answer = what_if(recorded, options.set, options.scale, options.machine)
    written = []  # before anything is printed: whoever reads may leave early
    if options.out is not None:
        runs = write_runs(answer, options.out)
        written = [f"runs: {runs}", f"picture: {draw_picture(answer, runs / PICTURE)}"]
    if options.json:
        print(json.dumps(with_nulls(figures(answer)), indent=2))
    elif options.quiet:
        print(plain(next(sentences(answer))))
    else:
        show(answer, written)
    return 0
