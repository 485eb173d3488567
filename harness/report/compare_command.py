"""The command ``python -m harness.compare PATH...``; a PATH may also be a JSON file of pytest-benchmark.

Exit codes: 0 fine, also where single runs are damaged (they are named); 2 bad input; and with ``--fail-on`` those of
``harness.compare.gates``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from harness.compare.benchmarks import (
    benchmark_caveats,
    benchmark_json,
    benchmark_table,
    is_benchmark_file,
    read_benchmark_files,
)
from harness.compare.caveats import DIFFERENCES
from harness.compare.experiments import Experiment, gather, gather_newest, is_called
from harness.compare.gates import FINE, GateResult, Judge, gate, read_limit, save_baseline
from harness.compare.stats import STEP_THRESHOLD
from harness.core.errors import UserError
from harness.core.spawn_pool import usable_cores
from harness.core.terminal_text import plain, plain_lines, silence_output
from harness.report.console import Output
from harness.results import DamagedRun
from harness.results.anonymous import safe_name

DESCRIPTION = "Compare runs from their folders."
EXAMPLES = (
    "examples:\n  python -m harness.compare results/\n"
    "  python -m harness.compare results/ --save-baseline main\n"
    "  python -m harness.compare results/ --baseline main --fail-on 5%\n"
    "with --fail-on, exit codes: 0 not worse, 1 worse, 3 not comparable, 4 inconclusive"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        type=Path,
        help="results folder, experiment or run folder; or JSON files of pytest-benchmark",
    )
    parser.add_argument("--all", action="store_true", help="show every experiment in detail, not the newest only")
    parser.add_argument("--format", choices=("text", "json", "md"), default="text", help="default: text")
    parser.add_argument(
        "--baseline", metavar="NAME", help="set everything against this arm, or against a baseline saved by that name"
    )
    parser.add_argument("--save-baseline", metavar="NAME", help="name the newest experiment's baseline, for later")
    parser.add_argument("--fail-on", metavar="SHARE", help="exit with 1 if a step takes this much longer, such as 5%%")
    parser.add_argument(
        "--allow-difference",
        action="append",
        default=[],
        choices=DIFFERENCES,
        help="come to a verdict although the runs differ in this; may be repeated",
    )
    parser.add_argument("--plots", metavar="DIR", type=Path, help="write pictures of the detailed experiments there")


def run(options: argparse.Namespace) -> int:
    """Compare the runs below the given folders; return the exit code."""
    errors = Console(stderr=True)
    try:
        return _compare(options, errors)
    except UserError as error:
        errors.print(Text(plain_lines(f"error: {error}")), soft_wrap=True)
        return 2
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        silence_output()
    return 0


def _compare(options: argparse.Namespace, errors: Console) -> int:
    """Show what was asked for; return the exit code."""
    if any(map(is_benchmark_file, options.paths)):
        _compare_benchmarks(options)
        return FINE
    limit = None if options.fail_on is None else read_limit(options.fail_on)
    everything = options.all or len(options.paths) > 1 or options.format == "json"
    if everything:
        experiments, damaged = gather(options.paths, processes=usable_cores())
        detailed = experiments
    else:
        experiments, newest, damaged = gather_newest(options.paths, processes=usable_cores())
        detailed = [newest]
    for item in damaged:
        message = f"warning: left out {str(item.folder)!r}: {item.error.what}"
        errors.print(Text(plain(message), style="yellow"), soft_wrap=True)
    arms = {variant.name for experiment in experiments for variant in experiment.variants}
    judge = Judge(options.paths[0], options.baseline, limit or STEP_THRESHOLD, options.allow_difference, arms)
    result = None if limit is None else gate(judge(detailed[-1]), limit)
    try:
        _show(options.format, experiments, detailed, damaged, judge, result)
    except BrokenPipeError:  # the reader of our output has left, as `| head` does; a gate still has its say
        silence_output()
    if options.plots is not None:
        _draw(detailed, options.plots, sys.stdout if options.format == "text" else sys.stderr)
    if options.save_baseline is not None:
        _save(options, detailed[-1], errors)
    for sentence in result.sentences if result else ():
        errors.print(Text(plain(sentence)), soft_wrap=True)
    return result.code if result else FINE


def _show(
    form: str,
    experiments: Sequence[Experiment],
    detailed: Sequence[Experiment],
    damaged: Sequence[DamagedRun],
    judge: Judge,
    result: GateResult | None,
) -> None:
    """Print the comparison in the form that was asked for."""
    if form == "json":
        from harness.compare.as_json import comparison

        print(json.dumps(comparison(experiments, damaged, judge, result), indent=2, allow_nan=False))
    elif form == "md":
        from harness.report.text import markdown

        print(markdown(experiments, detailed, judge), end="")
    else:
        from harness.report.text import print_comparison

        print_comparison(Output(), experiments, detailed, judge)


def _save(options: argparse.Namespace, experiment: Experiment, errors: Console) -> None:
    wanted = options.baseline
    arm = next((item.name for item in experiment.variants if wanted is not None and is_called(item.name, wanted)), None)
    before = save_baseline(options.paths[0], options.save_baseline, experiment, arm)
    message = f"baseline {options.save_baseline!r} is {experiment.scenario}/{experiment.name}"
    errors.print(Text(plain(message + (f"; it was {before}" if before else ""))), soft_wrap=True)


def _compare_benchmarks(options: argparse.Namespace) -> None:
    if not all(map(is_benchmark_file, options.paths)):
        odd = next(path for path in options.paths if not is_benchmark_file(path))
        raise UserError(
            f"{str(odd)!r} is no JSON file, and benchmarks are compared with benchmarks only",
            where=str(odd),
            fix="name JSON files of pytest-benchmark, or folders of runs, not both",
        )
    for_runs = {
        "--plots": options.plots,
        "--format md": options.format == "md" or None,
        "--fail-on": options.fail_on,
        "--baseline": options.baseline,
        "--save-baseline": options.save_baseline,
        "--allow-difference": options.allow_difference or None,
    }
    for option, value in for_runs.items():
        if value is not None:
            raise UserError(f"{option} is for runs, not for benchmarks", where=option, fix="leave it out")
    files = read_benchmark_files(options.paths)
    if options.format == "json":
        print(json.dumps(benchmark_json(files), indent=2, allow_nan=False))
        return
    from harness.report.text import print_list, print_table

    output = Output()
    print_table(output, benchmark_table(files))
    print_list(output, "Mind", benchmark_caveats(files))


def _draw(experiments: Sequence[Experiment], folder: Path, stream: TextIO) -> None:
    from harness.report.pictures import make_pictures

    for experiment in experiments:
        target = (
            folder if len(experiments) == 1 else folder / safe_name(experiment.scenario) / safe_name(experiment.name)
        )
        for path in make_pictures(experiment.folder, target):
            print(f"picture: {path}", file=stream)
