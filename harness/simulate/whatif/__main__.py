"""The command ``python -m harness whatif RESULTS``. Exit codes: 0 fine; 2 bad input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.compare.gates import read_limit
from harness.core.errors import UserError
from harness.core.terminal_text import plain, plain_lines, silence_output
from harness.simulate.whatif.changes import choose_run
from harness.simulate.whatif.effects import ERROR_BOUND, Answer, what_if

EXAMPLE = """examples:
  python -m harness whatif results/reference/async_lag1 --run lag1,seed=0 --scale update=0.5
  python -m harness whatif results/reference/async_lag1 --run sync,seed=0 --set max_lag=1 -o before_and_after.png

The run is replayed by the real loop on a virtual clock, with its own times, lengths, rewards and order."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay a recorded run with something changed; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _answer(options)
    except UserError as error:
        print(plain_lines(f"error: {error}"), file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        silence_output()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness whatif",
        description="Replay a recorded run with one thing changed.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "results", metavar="RESULTS", type=Path, help="a run's folder, or one with the runs of a scenario"
    )
    parser.add_argument("--run", metavar="NAME", help="which run, where there are several: its folder or its arm")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting of the scenario: dotted key, YAML value; may be repeated",
    )
    parser.add_argument(
        "--scale",
        action="append",
        default=[],
        metavar="STAGE=FACTOR",
        help="make a stage take so many times its seconds: update=0.5; `call` is the way of a call; may be repeated",
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
    parser.add_argument("-o", "--output", metavar="FILE.png", type=Path, help="draw the timelines before and after")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write both replays there as runs, for compare, report and trace"
    )
    return parser


def _answer(options: argparse.Namespace) -> None:
    bound = ERROR_BOUND if options.error_bound is None else read_limit(options.error_bound, "--error-bound")
    _check_output(options.output)
    run = choose_run(options.results, options.run)
    answer = what_if(run, options.set, options.scale, options.machine, bound)
    written = list(_write(answer, options))  # before anything is printed: whoever reads may leave early
    _print(answer, written)


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
    from harness.report.text import print_list, print_table
    from harness.simulate.whatif.report import cautions, sentences, tables

    console = Output()
    manifest = answer.run.manifest
    title = f"What if: {manifest.scenario} / {manifest.experiment} / {answer.run.folder.name} (simulated)"
    console.print(Text(plain(title), style="bold underline"))
    for table in tables(answer):
        print_table(console, table)
    print_list(console, "What the figures say", list(sentences(answer)))
    print_list(console, "Mind", list(cautions(answer)))
    print_list(console, "Written", written)


def _check_output(path: Path | None) -> None:
    if path is not None and path.suffix.lower() != ".png":
        raise UserError(f"the picture {str(path)!r} must end in .png", "-o", f"write -o {path.with_suffix('.png')}")


if __name__ == "__main__":
    sys.exit(main())
