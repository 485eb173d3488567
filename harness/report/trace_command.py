"""``python -m harness trace``: write a run or an experiment as a trace for ui.perfetto.dev."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.core.arguments import file_argument

DESCRIPTION = "Write a run, or all runs of an experiment side by side, as a trace for ui.perfetto.dev."
EXAMPLES = """examples:
  python -m harness trace results/reference/paced_overlap -o overlap.json.gz
  python -m harness trace RUN --nsys RUN/profiles/learner.sqlite   # from: nsys export --type=sqlite learner.nsys-rep

Open the file at https://ui.perfetto.dev (Open trace file). It is read in the browser and not uploaded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("folder", metavar="RUN_OR_EXPERIMENT", type=Path, help="folder of a run or of an experiment")
    output = (
        "default: trace.json.gz in that folder, of a reference run here; .json: not compressed; replaces traces only"
    )
    file_argument(parser, None, output)
    nsys = "sqlite export of an Nsight Systems report on this run, shown with it; may be repeated"
    parser.add_argument("--nsys", metavar="FILE", type=Path, action="append", default=[], help=nsys)


def run(options: argparse.Namespace) -> int:
    """Write the trace and say what is in it; return the exit code."""
    from harness.core.terminal_text import plain
    from harness.report.console import file_size
    from harness.report.trace.export import write_trace

    trace = write_trace(options.folder, options.output, options.nsys)
    size, slices, arrows, samples = trace.path.stat().st_size, *(trace.counts[phase] for phase in "BfC")
    for item in trace.left_out:
        print(plain(f"warning: left out {str(item.folder)!r}: {item.error.what}"), file=sys.stderr)
    print(plain(f"trace: {trace.path}"))
    runs = f"{len(trace.runs)} run{'s' if len(trace.runs) > 1 else ''}, {trace.steps:,} training steps"
    print(f"{runs}, {slices:,} slices, {arrows:,} arrows, {samples:,} counter values; {file_size(size)}")
    if trace.reports:
        from harness.report.console import Output
        from harness.report.terminal import print_table
        from harness.report.trace.nsight import nsight_table

        print_table(Output(), nsight_table(trace.reports))
    print("open it at https://ui.perfetto.dev (Open trace file); it is read in the browser and not uploaded")
    return 0
