"""Runs a scenario: its blocks, the points of its sweep in each, and at the end the comparison."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from harness.core.checkpoints import LATEST
from harness.core.errors import Interrupted, RunStopped, UserError
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
from harness.run.continuation import SWEEP, find_continuation, find_sweep, is_of_several
from harness.run.engine import Engine, Failures, Runs, Sweep, Tries
from harness.run.factory import PartsFactory
from harness.run.inputs import InputsNow
from harness.run.interleaving import Group, groups_of, points_of
from harness.run.parts import Build
from harness.run.points import Continuation, Point, Resume, survey
from harness.run.preflight import check_before_start
from harness.run.recorded import CommandRuns
from harness.run.session import Experiment
from harness.run.standing import say_changes, standing, what_failed
from harness.scenario.axes import Variant, expand
from harness.scenario.load import scenario_hash
from harness.scenario.schema import Scenario

NOTHING_YET = "nothing had been measured yet"
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
    command = _Command(scenario, out, quiet, build, show or partial(show_results, amount=amount), amount)
    return command.run(going) if tries is None else command.sweep(tries, sweep)


@dataclass(frozen=True)
class _Command:
    """One command's runs of a scenario; for the fields see ``run_scenario``."""

    scenario: Scenario
    out: Path
    quiet: bool
    build: Build | None
    show: Callable[[Path], object]
    amount: Amount
    console: Console = field(default_factory=lambda: Console(stderr=True))

    def run(self, going: Continuation | None) -> int:
        """Start each run once."""
        scenario, variants, headlines = self.scenario, expand(self.scenario), list[str]()
        if scenario.transport_sweep is None:
            groups = groups_of(points_of(variants))
            check_before_start(points_of(variants), self._say)
        else:
            groups = [Group([variant], None) for variant in variants]
        has_own_file = going is None and len(variants) > 1 and scenario.transport_sweep is None
        with (
            signals_as_interrupts(),
            self._experiment(variants, folder=going and going.folder, whole=scenario if has_own_file else None) as made,
            self._runs(groups, made) as runs,
        ):
            engine = Engine(made, groups, runs, going)
            try:
                if scenario.blocks > 1:
                    say = self._say if self.amount != "everything" else lambda line: None
                    headlines = run_blocks(groups, scenario.stop_at_half_width, made, engine, say)
                else:
                    engine.run()
            except (KeyboardInterrupt, Interrupted):
                where = f"what was measured so far is in {made.folder}{how_to_go_on(made.folder, scenario)}"
                raise Interrupted(where if made.folder else NOTHING_YET) from None
        if made.folder is not None:
            try:
                self.show(made.folder)
                if self.amount == "everything":
                    print_list(Output(), "Verdict", headlines)
            except UserError as error:
                engine.failures.append(("showing the results", error))
        _raise_first(engine.failures, made.folder, scenario)
        return 0

    def sweep(self, tries: Tries, folder: Path | None) -> int:
        """Go on with the newest sweep of the same scenario, or begin one, until each point has a result."""
        scenario, variants = self.scenario, variants_of(self.scenario)
        points = points_of(variants) if scenario.interleaving == "step" else [[variant] for variant in variants]
        groups = groups_of(points, by_itself="run" if len(variants) > 1 else None)
        check_before_start(points, self._say)
        folder = folder or find_sweep(self.out, scenario)
        if folder is None:
            say_changes(self.out, scenario, self._say)
        with (
            signals_as_interrupts(),
            nullcontext() if folder is None else held(folder / SWEEP),
            self._experiment(
                variants,
                folder=folder,
                durable=True,
                whole=scenario if folder is None else None,
                whole_file=SWEEP,
            ) as made,
        ):
            if folder is None:
                going = Continuation(made.home, {variant.name: Point(variant, made.home) for variant in variants})
            else:
                going = survey(
                    folder, groups, InputsNow(), together=False, anew="begin anew in another folder: --out DIR"
                )
            self._say_what_there_is(going, folder)
            with self._runs(groups, made) as runs:
                engine = Sweep(made, groups, runs, going, tries, self._say)
                try:
                    engine.run()
                    if made.folder is not None:
                        self.show(made.folder)
                except (KeyboardInterrupt, Interrupted):
                    so_far = f"{standing(engine.points)}; the same command continues from there"
                    where = f"{so_far}\n  results: {made.folder}" if made.folder else NOTHING_YET
                    raise Interrupted(where) from None
        if failed := what_failed(engine.points):
            again = f"python -m harness run --resume {shlex.quote(str(made.folder))}"
            more = f"the same command tries again; also what was tried often enough: {again}"
            raise RunStopped(f"{failed}\n  {more}\n  results: {made.folder}")
        return 0

    def _say_what_there_is(self, going: Continuation, folder: Path | None) -> None:
        scenario, points = self.scenario, list(going.points.values())
        if folder is None:
            self._say(f"a new sweep of {scenario.name} ({scenario_hash(scenario)})")
        if scenario.stop_at_half_width is not None:
            self._say(
                f"stop_at_half_width plays no part in a sweep: all {scenario.blocks} blocks are run. "
                f"To stop early: python -m harness run {scenario.name}"
            )
        self._say(f"{len(points)} points: {standing(points)}; results: {going.folder}")
        made_with = {point.manifest.commit for point in points if point.state.is_result and point.manifest}
        if made_with - {code_state().commit}:
            self._say(
                "the code has changed since the finished points were run: another --out DIR runs all of them again"
            )

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _experiment(self, variants: Sequence[Variant], **how: Any) -> AbstractContextManager[Experiment]:
        echo = None
        if self.amount == "everything":

            def echo(run: str, line: str) -> None:
                text = f"{plain(run)}: {line}" if len(variants) > 1 else line
                self.console.print(text, markup=False, highlight=False, soft_wrap=True)

        return closing(Experiment(self.out, self.scenario.name, planned=variants, echo=echo, **how))

    @contextmanager
    def _runs(self, groups: Sequence[Group], made: Experiment) -> Iterator[Runs]:
        """Have what makes the runs of a group, and all that it starts ended at the end."""
        own = [[each.scenario for each in group.variants if not each.scenario.command] for group in groups]
        with PartsFactory(list(filter(None, own))) as factory:
            if self.scenario.transport_sweep is None:
                quiet = self.quiet or self.amount == "everything"
                arms = ArmRunner(made, self.build or factory, self.console, quiet)
                yield _EachAsItIs(arms, CommandRuns(made, self.console, quiet))
                return
            from harness.run.transport_sweep import TransportSweeps

            yield TransportSweeps(made, factory.session, self.console, self.quiet)


@dataclass(frozen=True)
class _EachAsItIs:
    """Makes the runs of the harness' own loop, and those of programs."""

    own: Runs
    programs: Runs

    def run(self, group: Group, resumes: Mapping[str, Resume], place: str) -> Failures:
        """Make the runs of a group; see ``Runs``."""
        runs = self.programs if group.variants[0].scenario.command else self.own
        return runs.run(group, resumes, place)


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


def how_to_go_on(folder: Path | None, scenario: Scenario) -> str:
    """Return the line that says how an experiment goes on; empty where its one run has no checkpoint.

    One of programs is named again, since no path of a command is written down whole.
    """
    if folder is None or not (is_of_several(folder) or (folder / CHECKPOINTS / LATEST).exists()):
        return ""
    if any(variant.scenario.command for variant in expand(scenario)):
        return f"\n  to go on: the same command with --resume {shlex.quote(str(folder))}"
    return f"\n  to go on: python -m harness run --resume {shlex.quote(str(folder))}"


def _raise_first(failures: Failures, folder: Path | None, scenario: Scenario) -> None:
    if not failures:
        return
    label, error = failures[0]
    if folder is None:
        raise error
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    if isinstance(error, UserError):
        raise UserError(f"{label} failed{others}: {error.what}", error.where, error.fix) from error
    raise RunStopped(
        f"{label} stopped{others}: {error}\n  results: {folder}{how_to_go_on(folder, scenario)}"
    ) from error
