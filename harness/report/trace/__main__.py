"""The command ``python -m harness trace RUN_OR_EXPERIMENT [-o trace.json.gz] [--nsys FILE.sqlite ...]``.

Exit codes: 0 fine; 2 bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import UserError
from harness.core.terminal_text import plain, plain_lines, silence_output

EXAMPLE = """examples:
  python -m harness trace results/reference/inflight -o inflight.json.gz
  python -m harness trace RUN --nsys RUN/profiles/learner.sqlite   # from: nsys export --type=sqlite learner.nsys-rep

Open the file at https://ui.perfetto.dev (Open trace file). It is read in the browser and not uploaded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a trace of a run or an experiment; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _write(options.folder, options.output, options.nsys)
    except UserError as error:
        print(plain_lines(f"error: {error}"), file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        silence_output()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness trace",
        description="Write a run, or all runs of an experiment side by side, as a trace for ui.perfetto.dev.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="RUN_OR_EXPERIMENT", type=Path, help="folder of a run or of an experiment")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="default: trace.json.gz in that folder; .json: not compressed"
    )
    told = "sqlite export of a report by Nsight Systems on this run, to be shown with it; may be given several times"
    parser.add_argument("--nsys", metavar="FILE", type=Path, action="append", default=[], help=told)
    return parser


def _write(folder: Path, output: Path | None, nsight: Sequence[Path]) -> None:
    from harness.report.trace.export import write_trace

    written = write_trace(folder, output, nsight)
    for item in written.left_out:
        print(plain(f"warning: left out {str(item.folder)!r}: {item.error.what}"), file=sys.stderr)
    print(plain(f"trace: {written.path}"))
    counts = f"{written.slices:,} slices, {written.arrows:,} arrows, {written.samples:,} counter values"
    per_steps = f", {written.num_bytes / written.steps / 1e4:.2f} MB per 100 steps" if written.steps else ""
    runs = "1 run" if len(written.runs) == 1 else f"{len(written.runs)} runs"
    print(f"{runs}, {written.steps:,} training steps, {counts}; {written.num_bytes / 1e6:.2f} MB{per_steps}")
    if written.reports:
        from harness.report.console import Output
        from harness.report.text import print_table
        from harness.report.trace.nsight import nsight_table

        print_table(Output(), nsight_table(written.reports))
    print("open it at https://ui.perfetto.dev (Open trace file); it is read in the browser and not uploaded")


if __name__ == "__main__":
    sys.exit(main())
