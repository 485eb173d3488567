"""The command ``python -m harness.compare PATH...``.

Exit codes: 0 fine, also where single runs are damaged (they are named); 2 bad input; and with ``--fail-on`` those of
``harness.compare.gates``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.compare.completeness import gaps, newer_than
from harness.compare.environment import DIFFERENCES, SETTINGS, is_allowed
from harness.compare.experiment import Experiment, arm_named, gather, gather_newest, is_called
from harness.compare.gates import FINE, GateResult, Judge, gate, read_limit, refusals_of
from harness.compare.numbers import plural
from harness.compare.occasions import read_occasions
from harness.compare.stats.verdicts import STEP_THRESHOLD
from harness.core.arguments import json_argument
from harness.core.errors import UserError
from harness.core.removed import removed
from harness.core.spawn_pool import usable_cores
from harness.core.terminal_text import plain, silence_output
from harness.report.console import Output, warn_of_left_out
from harness.report.document import Document
from harness.results import DamagedRun
from harness.results.anonymous import safe_name
from harness.results.manifest import MADE_OF
from harness.results.reader import flat_settings

DESCRIPTION = "Compare runs from their folders."
EXAMPLES = (
    "examples:\n  python -m harness compare results/\n"
    "  python -m harness compare results/reference/sync_k --baseline k2\n"
    "  python -m harness run noise --out baseline    # one occasion of a baseline: five on several days\n"
    "  python -m harness compare results/ --against baseline/noise/* --fail-on 15%\n"
    "with --fail-on, exit codes: 0 not worse, 1 worse, 3 not comparable, 4 cannot tell"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        type=Path,
        help="results folder, experiment or run folder",
    )
    parser.add_argument("--all", action="store_true", help="show every experiment in detail, not only the newest")
    forms = parser.add_mutually_exclusive_group()
    json_argument(forms)
    forms.add_argument("--md", action="store_true", help="print tables to paste, in Markdown")
    parser.add_argument("--full", action="store_true", help="all tables and sentences, not only the answer")
    parser.add_argument("--baseline", metavar="ARM", help="compare with this arm (default: the first one)")
    parser.add_argument(
        "--against",
        metavar="FOLDER",
        nargs="+",
        type=Path,
        help="compare with the experiments in these folders: a baseline, each of them one occasion of it",
    )
    parser.add_argument(
        "--fail-on",
        metavar="SHARE",
        help="exit with 1 if the primary endpoint (a step's time) is this much worse, such as 5%%",
    )
    parser.add_argument(
        "--allow-difference",
        action="append",
        default=[],
        metavar="WHAT",
        help="give a verdict although the runs differ in this; may be repeated: "
        f"{', '.join(DIFFERENCES)}, settings, or one setting such as group_size",
    )
    parser.add_argument("--plots", metavar="DIR", type=Path, help="folder for pictures of the detailed experiments")


def run(options: argparse.Namespace) -> int:
    """Compare the runs below the given folders, show what was asked for and return the exit code.

    Raises:
        UserError: a wrong argument, or nothing that can be compared.
    """
    for path in options.paths:
        if path.suffix == ".json" and path.is_file():
            raise removed(".json", str(path), str(path))
    for kind in ("stored:", "arm:"):
        if (options.baseline or "").startswith(kind):
            raise removed(kind, options.baseline, "--baseline")
    limit = None if options.fail_on is None else read_limit(options.fail_on)
    if options.all or len(options.paths) > 1 or options.json:
        experiments, damaged = gather(options.paths, processes=usable_cores())
        detailed = experiments
    else:
        experiments, newest, damaged = gather_newest(options.paths, processes=usable_cores())
        detailed = [newest]
    newest = detailed[-1]
    warn_of_left_out(damaged, options.paths)
    against = None if options.against is None else read_occasions(options.against, options.baseline)
    if against is None and options.baseline is not None:
        _check_arm(options.baseline, detailed if len(options.paths) > 1 else [newest], damaged)
    _check_allowed(options.allow_difference, [*experiments, *(against.occasions if against else ())])
    judge = Judge(options.baseline, against, limit or STEP_THRESHOLD, options.allow_difference)
    refusal, result = judge.refusal(newest), None
    if limit is not None:  # the newest has to be whole, and there may be none that is newer and cannot be read
        refusals = refusals_of(newer_than(newest, experiments, damaged, options.paths), gaps(newest, damaged))
        judged = judge(newest) if refusal is None else []
        result = gate(judged, limit, [*([refusal] if refusal else []), *refusals])
    elif against is not None and refusal is not None:
        raise UserError(refusal.text, "--against", "run it anew, or leave its folder out")
    try:
        _show(options, experiments, detailed, damaged, judge, result)
    except BrokenPipeError:  # the reader of our output has left, as `| head` does; a gate still has its say
        silence_output()
    for sentence in result.sentences if result else ():
        Console(stderr=True).print(Text(plain(sentence)), soft_wrap=True)
    return result.code if result else FINE


def _check_allowed(names: Sequence[str], experiments: Sequence[Experiment]) -> None:
    """Refuse a difference to allow that is none: it would be a slip of the pen, and allow nothing."""
    others = [name for name in names if name not in (*DIFFERENCES, SETTINGS)]
    runs = [member for experiment in experiments for member in experiment.members] if others else []
    settings = {key for run in runs for key in flat_settings(run.settings)} | {f"inputs.{name}" for name in MADE_OF}
    for name in others:
        if not any(is_allowed(key, [name]) for key in settings):
            fix = f"one of {', '.join(DIFFERENCES)}, {SETTINGS}, or a setting's dotted key"
            raise UserError(f"{name!r} is nothing that runs differ in", "--allow-difference", fix)


def _check_arm(name: str, experiments: Sequence[Experiment], damaged: Sequence[DamagedRun]) -> None:
    """Refuse a baseline that is no arm of the newest of the experiments that are to be compared, or of another."""
    *others, newest = experiments
    arms = [*newest.arms, *gaps(newest, damaged).lost]
    if not any(is_called(arm, name) for arm in arms):
        fix = f"name one of its arms ({', '.join(arms)}); another experiment is named by --against FOLDER"
        what = f"the newest experiment, {newest.scenario}/{newest.name}, has no arm called {name!r}"
        raise UserError(what, "--baseline", fix)
    for experiment in others:
        arm_named(experiment, name)


def _show(
    options: argparse.Namespace,
    experiments: Sequence[Experiment],
    detailed: Sequence[Experiment],
    damaged: Sequence[DamagedRun],
    judge: Judge,
    result: GateResult | None,
) -> None:
    """Print the comparison in the form that was asked for, and draw its charts where that was."""
    from harness.report.build import document

    plots = options.plots
    if options.json:
        from harness.report.as_json import comparison

        print(json.dumps(comparison(experiments, damaged, judge, result), indent=2, allow_nan=False))
    brief = not options.full and plots is None
    shown = [] if options.json and plots is None else detailed
    documents = [document(experiment, judge(experiment), brief) for experiment in shown]
    if options.md:
        from harness.report.markdown import markdown

        print("\n".join(markdown(each, options.full) for each in documents), end="")
    elif not options.json:
        _print(documents, experiments, options.full)
    if plots is not None:
        from harness.report.files import save_charts

        for made, experiment in zip(documents, detailed, strict=True):
            names = (safe_name(experiment.scenario), safe_name(experiment.name)) if len(detailed) > 1 else ()
            for path in save_charts(made, plots.joinpath(*names)):
                print(f"picture: {path}", file=sys.stderr if options.json or options.md else sys.stdout)


def _print(documents: Sequence[Document], experiments: Sequence[Experiment], full: bool) -> None:
    from harness.report.tables import overview_table
    from harness.report.terminal import print_document, print_table

    output = Output()
    for place, document in enumerate(documents):
        if place:
            output.print()
        print_document(output, document, full)
    if len(experiments) > len(documents) and not full:
        others = plural(len(experiments) - len(documents), "older experiment")
        output.print(Text(f"{others}: listed with --full, shown with --all."), soft_wrap=True)
    elif len(experiments) > 1:
        print_table(output, overview_table(experiments))
