"""Runs a scenario: its blocks, the points of its sweep in each, and at the end the comparison."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from harness.core.checkpoints import LATEST
from harness.core.errors import HarnessError, Interrupted, RunStopped, UserError
from harness.core.extras import as_typed
from harness.core.interrupts import signals_as_interrupts
from harness.core.terminal_text import plain
from harness.report.console import Output, shown_path
from harness.report.terminal import print_list
from harness.results.experiment_plan import held
from harness.results.writer import CHECKPOINTS, PICTURES, REPORT, SCENARIO
from harness.run.arm_runner import ArmRunner
from harness.run.blocks import run_blocks
from harness.run.errors import full_gpu_as_user_error
from harness.run.factory import PartsFactory
from harness.run.interleaving import interleaving_of, points_of, side_by_side
from harness.run.parts import Build
from harness.run.points import set_aside
from harness.run.preflight import check_before_start
from harness.run.resume import Continuation, find_continuation, find_resume, is_of_several
from harness.run.session import Experiment
from harness.scenario.axes import Variant, expand
from harness.scenario.schema import Scenario

Amount = Literal["line", "brief", "everything", "json"]
"""How much of an experiment is shown at its end: one line, a screen, all tables and sentences, or figures as JSON."""


def show_results(folder: Path, amount: Amount = "brief") -> None:
    """Draw the pictures of an experiment, write its page, and print what it says.

    Args:
        folder: the experiment's folder.
        amount: how much is printed.
    """
    from harness.compare.experiment import gather
    from harness.compare.judging import judgements
    from harness.report.build import document
    from harness.report.files import save_charts, write_page
    from harness.report.terminal import print_document

    experiments, damaged = gather([folder])
    documents = [document(experiment, judgements(experiment)) for experiment in experiments]
    left_out = [f"left out {str(item.folder)!r}: {item.error.what}" for item in damaged]
    page = folder / REPORT
    write_page(page, documents, left_out)
    for each in documents:
        save_charts(each, folder / PICTURES)
    if amount == "json":
        from harness.report.as_json import comparison

        print(json.dumps(comparison(experiments, damaged), indent=2, allow_nan=False))
        return
    output = Output()
    for each in documents:
        if amount == "line":
            answer = " ".join(remark.text for remark in each.answer) or "nothing was measured."
            print(plain(f"{each.title}: {answer} report: {shown_path(page)}"))
            continue
        output.print()
        print_document(output, each, full=amount == "everything")
        output.print(plain(f"report: {shown_path(page)}"), markup=False, soft_wrap=True)
        tables = as_typed(f"python -m harness compare {shown_path(folder)} --full")
        output.print(plain(f"all tables: {tables}"), markup=False, soft_wrap=True)
    for sentence in left_out:
        output.print(plain(sentence), style="yellow", markup=False)


def run_scenario(
    scenario: Scenario,
    out: Path,
    quiet: bool,
    build: Build | None = None,
    show: Callable[[Path], object] | None = None,
    amount: Amount = "brief",
    going: Continuation | None = None,
) -> int:
    """Run every arm and point of a scenario, then print the comparison and draw its pictures.

    An arm or point that fails does not stop the others.

    Args:
        scenario: as loaded; arms and sweep are expanded here.
        out: the results folder.
        quiet: show no progress.
        build: makes the parts of one run; None takes a ``PartsFactory``.
        show: called with the experiment's folder at the end; None takes ``show_results``.
        amount: how much is shown; with ``everything`` also the log of each run as it is written, in place of progress.
        going: what of it there is already, and where it goes on; None begins it.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the scenario names something that cannot be used.
        RunStopped: a run had to stop; its folder says why.
        Interrupted: Ctrl-C or SIGTERM; the folders say so.
    """
    points = points_of(expand(scenario))
    if scenario.transport_sweep is None:
        check_before_start(points, lambda line: None if quiet else print(line, file=sys.stderr))
    console, planned = Console(stderr=True), [variant for variants in points for variant in variants]
    verbose = amount == "everything"
    echo = _printed(console, named=len(planned) > 1) if verbose else None
    several = len(planned) > 1 and scenario.transport_sweep is None
    experiment = Experiment(
        out,
        scenario.name,
        folder=None if going is None else going.folder,
        planned=planned,
        whole=scenario if several else None,
        echo=echo,
    )
    with (
        signals_as_interrupts(),
        closing(experiment),
        PartsFactory([group for variants in points for group in side_by_side(variants)]) as factory,
    ):
        if going is not None:
            for point in going.again:
                set_aside(going.folder, point)
        runner = ArmRunner(experiment, build or factory, console, quiet or verbose, going=going)
        headlines: list[str] = []
        try:
            if scenario.blocks > 1:
                headlines = run_blocks(points, scenario, experiment, runner).headlines()
            for variants in points if scenario.blocks == 1 else ():
                if scenario.transport_sweep is not None:
                    runner.failures += _sweep_transports(variants, experiment, factory, console, quiet)
                else:
                    runner.run_point(variants, interleaving_of(variants))
        except (KeyboardInterrupt, Interrupted):
            kept = f"what was measured so far is in {experiment.folder}"
            kept += how_to_go_on(experiment.folder)
            raise Interrupted(kept if experiment.folder else "nothing had been measured yet") from None
    if experiment.folder is not None:
        try:
            (show or partial(show_results, amount=amount))(experiment.folder)
            if verbose:
                print_list(Output(), "Verdict", headlines)
        except UserError as error:
            runner.failures.append(("showing the results", error))
    _raise_first(runner.failures, experiment.folder)
    return 0


def go_on_with(
    folder: Path,
    scenario: Scenario,
    quiet: bool,
    build: Build | None = None,
    show: Callable[[Path], object] | None = None,
    amount: Amount = "brief",
) -> int:
    """Go on with a run from its checkpoint, or with an experiment of several runs; see ``run_scenario``.

    Args:
        folder: of the run, or of the experiment.
        scenario: as it stands in the folder, or one that differs from it in what may be another.

    Raises:
        UserError: see ``find_resume`` and ``find_continuation``; or another command is at work in the experiment.
    """
    if len(folder.parts) < 2 or ".." in folder.parts:
        folder = folder.resolve()
    with ExitStack() as holding:
        if is_of_several(folder):
            holding.enter_context(held(folder / SCENARIO))
            going = find_continuation(folder, scenario)
        else:
            going = Continuation(folder, resumes={"": find_resume(folder, scenario)})
        warnings = [warning for resume in going.resumes.values() for warning in resume.warnings]
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if warnings or not quiet:
            print(going.line, file=sys.stderr)
        return run_scenario(scenario, folder.parent.parent, quiet, build, show, amount, going)


def how_to_go_on(folder: Path | None) -> str:
    """Return the line that says how an experiment goes on; empty where its one run has no checkpoint."""
    if folder is None or not (is_of_several(folder) or (folder / CHECKPOINTS / LATEST).exists()):
        return ""
    return f"\n  to go on: python -m harness run --resume {shlex.quote(str(folder))}"


def _printed(console: Console, named: bool) -> Callable[[str, str], None]:
    """Return what prints a line of a run's log; ``named``: behind the run's name."""

    def echo(run: str, line: str) -> None:
        text = f"{plain(run)}: {line}" if named else line
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return echo


def _sweep_transports(
    variants: Sequence[Variant], experiment: Experiment, factory: PartsFactory, console: Console, quiet: bool
) -> list[tuple[str, HarnessError]]:
    """Measure weight syncs alone, for each variant; return what failed."""
    from harness.run.transport_sweep import run_transport_sweep

    failures: list[tuple[str, HarnessError]] = []
    for variant in variants:
        try:
            with full_gpu_as_user_error(variant.scenario):
                run_transport_sweep(variant, experiment, factory.session(variant.scenario), console, quiet)
        except (UserError, RunStopped) as error:
            failures.append((variant.name or variant.scenario.name, error))
    return failures


def _raise_first(failures: Sequence[tuple[str, HarnessError]], folder: Path | None) -> None:
    if not failures:
        return
    label, error = failures[0]
    if folder is None:
        raise error
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    if isinstance(error, UserError):
        raise UserError(f"{label} failed{others}: {error.what}", error.where, error.fix) from error
    raise RunStopped(f"{label} stopped{others}: {error}\n  results: {folder}{how_to_go_on(folder)}") from error
