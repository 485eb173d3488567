"""Runs a scenario: its blocks, the points of its sweep in each, and at the end the comparison."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from harness.core.checkpoints import LATEST
from harness.core.errors import HarnessError, Interrupted, RunStopped, UserError
from harness.core.extras import as_typed
from harness.core.interrupts import signals_as_interrupts
from harness.core.terminal_text import plain
from harness.probes.provenance import code_state
from harness.report.console import Output, shown_path
from harness.report.terminal import print_list
from harness.results.experiment_plan import held
from harness.results.writer import CHECKPOINTS, PICTURES, REPORT, SCENARIO
from harness.run.arm_runner import ArmRunner
from harness.run.blocks import run_blocks
from harness.run.continuation import SWEEP, begin_sweep, find_continuation, find_sweep, is_of_several
from harness.run.engine import Engine, Tries
from harness.run.errors import full_gpu_as_user_error
from harness.run.factory import PartsFactory
from harness.run.inputs import InputsNow
from harness.run.interleaving import Group, groups_of, points_of
from harness.run.parts import Build
from harness.run.points import Continuation, survey
from harness.run.preflight import check_before_start
from harness.run.session import Experiment
from harness.run.standing import say_changes, standing, what_failed
from harness.scenario.axes import Variant, expand
from harness.scenario.load import scenario_hash
from harness.scenario.schema import Scenario

ALONE = "run"
"""Folder of the run of a sweep that has neither arms, axes nor blocks."""
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
    tries: Tries | None = None,
    sweep: Path | None = None,
) -> int:
    """Run every arm and point of a scenario, then print the comparison and draw its pictures.

    An arm or point that fails does not stop the others.

    Args:
        scenario: as loaded; arms, axes and blocks are expanded here.
        out: the results folder.
        quiet: show no progress.
        build: makes the parts of one run; None takes a ``PartsFactory``.
        show: called with the experiment's folder at the end; None takes ``show_results``.
        amount: how much is shown; with ``everything`` also the log of each run as it is written, in place of progress.
        going: what of it there is already, and where it goes on; None begins it.
        tries: make it a sweep: go on with the newest one of the same scenario, or begin it, each run by itself.
        sweep: its folder, of the same scenario; None looks for it.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the scenario names something that cannot be used, or another command is at work in the sweep.
        RunStopped: a run had to stop; its folder says why. Or points of a sweep are left that failed too often.
        Interrupted: Ctrl-C or SIGTERM; the folders say so.
    """
    verbose, console = amount == "everything", Console(stderr=True)
    is_sweep = tries is not None
    variants = variants_of(scenario) if is_sweep else expand(scenario)
    points = points_of(variants)
    if is_sweep and scenario.interleaving != "step":  # each is finished by itself
        points = [[variant] for variant in variants]
    groups = groups_of(points, by_itself="run" if is_sweep and len(variants) > 1 else None)

    def say(line: str) -> None:
        if not quiet:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    if scenario.transport_sweep is None:
        check_before_start(points, say)
    several = len(variants) > 1 and scenario.transport_sweep is None
    headlines, draw = list[str](), show or partial(show_results, amount=amount)
    with signals_as_interrupts(), ExitStack() as stack:
        if is_sweep:
            going = _sweep_of(scenario, out, groups, sweep, stack, say)
        experiment = Experiment(
            out,
            scenario.name,
            folder=None if going is None else going.folder,
            durable=is_sweep,
            planned=variants,
            whole=scenario if several and not is_sweep else None,
            echo=_printed(console, named=len(variants) > 1) if verbose else None,
        )
        stack.enter_context(closing(experiment))
        factory = stack.enter_context(PartsFactory([[each.scenario for each in group.variants] for group in groups]))
        arms = ArmRunner(experiment, build or factory, console, quiet or verbose)
        engine = Engine(experiment, groups, arms, say, going, tries)
        try:
            if scenario.transport_sweep is not None:
                engine.failures += _sweep_transports(variants, experiment, factory, console, quiet)
            elif scenario.blocks > 1 and not is_sweep:
                headlines = run_blocks(groups, scenario.stop_at_half_width, experiment, engine, arms.say)
            else:
                engine.run()
            if is_sweep and experiment.folder is not None:
                draw(experiment.folder)
        except (KeyboardInterrupt, Interrupted):
            folder = experiment.folder
            if is_sweep:
                where = f"{standing(engine.points)}; the same command continues from there\n  results: {folder}"
            else:
                where = f"what was measured so far is in {folder}{how_to_go_on(folder)}"
            raise Interrupted(where if folder else "nothing had been measured yet") from None
    if is_sweep:
        if failed := what_failed(engine.points):
            again = f"python -m harness run --resume {shlex.quote(str(experiment.folder))}"
            more = f"the same command tries again; also what was tried often enough: {again}"
            raise RunStopped(f"{failed}\n  {more}\n  results: {experiment.folder}")
        return 0
    if experiment.folder is not None:
        try:
            draw(experiment.folder)
            if verbose:
                print_list(Output(), "Verdict", headlines)
        except UserError as error:
            engine.failures.append(("showing the results", error))
    _raise_first(engine.failures, experiment.folder)
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
        UserError: see ``find_continuation``; or another command is at work in the experiment.
    """
    if len(folder.parts) < 2 or ".." in folder.parts:
        folder = folder.resolve()
    with held(folder / SCENARIO) if is_of_several(folder) else nullcontext():
        going = find_continuation(folder, scenario)
        warnings = [warning for resume in going.resumes.values() for warning in resume.warnings]
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if warnings or not quiet:
            print(going.line, file=sys.stderr)
        return run_scenario(scenario, folder.parent.parent, quiet, build, show, amount, going)


def variants_of(scenario: Scenario) -> list[Variant]:
    """Return the runs that a sweep makes, each with a folder name of its own.

    Raises:
        UserError: the scenario measures weight syncs, whose transports must take turns.
    """
    if scenario.transport_sweep is not None:
        what = f"{scenario.name} is a transport sweep: its transports take turns in one process, from start to end"
        raise UserError(what, "transport_sweep", f"run it with: python -m harness run {scenario.name}")
    return [replace(variant, name=variant.name or ALONE) for variant in expand(scenario)]


def _sweep_of(
    scenario: Scenario,
    out: Path,
    groups: Sequence[Group],
    folder: Path | None,
    stack: ExitStack,
    say: Callable[[str], None],
) -> Continuation:
    """Return the sweep to go on with, or a new one, kept from other commands until ``stack`` is closed."""
    folder = folder or find_sweep(out, scenario)
    if folder is None:
        say_changes(out, scenario, say)
        folder = begin_sweep(out, scenario)
        say(f"a new sweep of {scenario.name} ({scenario_hash(scenario)})")
    stack.enter_context(held(folder / SWEEP))
    going = survey(folder, groups, InputsNow(), together=False, anew="begin anew in another folder: --out DIR")
    points = list(going.points.values())
    if scenario.stop_at_half_width is not None:
        say(
            f"stop_at_half_width plays no part in a sweep: all {scenario.blocks} blocks are run. "
            f"To stop early: python -m harness run {scenario.name}"
        )
    say(f"{len(points)} points: {standing(points)}; results: {folder}")
    made_with = {point.manifest.commit for point in points if point.state.is_result and point.manifest}
    if made_with - {code_state().commit}:
        say("the code has changed since the finished points were run: another --out DIR runs all of them again")
    return going


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
