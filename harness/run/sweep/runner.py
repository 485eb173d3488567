"""Runs what is left of a sweep, and shows the comparison when all of it is there."""

from __future__ import annotations

import itertools
import json
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare.signal import divergence
from harness.core.errors import HarnessError, Interrupted, RunStopped, UserError
from harness.core.interrupts import signals_as_interrupts
from harness.core.progress import duration
from harness.core.terminal_text import plain
from harness.probes.provenance import code_state
from harness.report.console import Output
from harness.results import Manifest
from harness.results.experiment_plan import held
from harness.results.frames import read_table
from harness.results.writer import CHECKPOINTS
from harness.run.arm_runner import ArmRunner
from harness.run.experiment import show_results
from harness.run.factory import PartsFactory
from harness.run.inputs import InputsNow, check_inputs
from harness.run.interleaving import points_of
from harness.run.parts import Build
from harness.run.points import Point, State, read_point, read_points, set_aside
from harness.run.preflight import check_before_start
from harness.run.resume import Continuation, Resume, resume_of
from harness.run.session import Experiment
from harness.run.sweep.identity import IDENTITY, begin_experiment, changes_since_newest, find_experiment
from harness.scenario.axes import Variant, expand
from harness.scenario.load import scenario_hash
from harness.scenario.schema import Scenario

ATTEMPTS = 3
MOST_CHANGES = 8
LONGEST_REASON = 300
ALONE = "run"
"""Folder of the run of a scenario that has neither arms, axes nor blocks."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What the command line asks for.

    Attributes:
        attempts: how often a point that fails is started in all.
        retry_failed: give points that used up their attempts as many again.
        fresh: begin a new experiment, whatever there is.
        quiet: show no progress.
    """

    attempts: int = ATTEMPTS
    retry_failed: bool = False
    fresh: bool = False
    quiet: bool = False


def run_sweep(
    scenario: Scenario,
    out: Path,
    options: SweepOptions,
    build: Build | None = None,
    show: Callable[[Path], object] = show_results,
) -> int:
    """Run every point of a scenario that has no result yet, then show the comparison of all of them.

    A run that diverged is a result. Any other failure is tried again, after the other points, up to
    ``options.attempts`` times in all; bad input only by the next command, since nothing would change before.

    Args:
        scenario: as loaded; arms, axes and blocks are expanded here.
        out: the results folder.
        options: see ``SweepOptions``.
        build: makes the parts of one run; None takes a ``PartsFactory``.
        show: called with the experiment's folder at the end.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the scenario names something that cannot be used, or another sweep is at work on it.
        RunStopped: points are left that failed too often.
        Interrupted: Ctrl-C or SIGTERM; the same command continues from there.
    """
    variants = variants_of(scenario)
    together = _side_by_side(scenario, variants)
    console = Console(stderr=True)
    say = _speaker(console, options.quiet)
    check_before_start(together, say)
    with signals_as_interrupts():
        folder = _experiment(out, scenario, options.fresh, say)
        with (
            held(folder / IDENTITY),
            PartsFactory([[variant.scenario for variant in group] for group in together]) as factory,
        ):
            sweep = _Sweep(folder, scenario.name, together, options, build or factory, console)
            _say_all_blocks(scenario, say)
            try:
                sweep.run()
                if any(point.last is not None for point in sweep.points()):
                    show(folder)
            except (KeyboardInterrupt, Interrupted):
                said = standing(sweep.points())
                raise Interrupted(f"{said}; the same command continues from there\n  results: {folder}") from None
    _raise_failed(read_points(folder, variants), folder)
    return 0


def show_status(scenario: Scenario, out: Path, as_json: bool = False) -> int:
    """Print what became of each point so far, without running anything; return the exit code, 0."""
    variants, folder, console = variants_of(scenario), find_experiment(out, scenario), Output()
    if as_json:
        points = [Point(each, Path()) for each in variants] if folder is None else read_points(folder, variants)
        facts = {"experiment": None if folder is None else str(folder), "points": [*map(_as_facts, points)]}
        print(json.dumps(facts, indent=2))
        return 0
    if folder is None:
        _say_changes(out, scenario, _speaker(console, quiet=False))
        print(f"no sweep of this scenario in {out}: {len(variants)} points to run")
        return 0
    points = read_points(folder, variants)
    console.print(status_table(points))
    print(f"{standing(points)}\n  results: {folder}")
    return 0


def variants_of(scenario: Scenario) -> list[Variant]:
    """Return the runs that a sweep makes, each with a folder name of its own.

    Raises:
        UserError: the scenario measures weight syncs, whose transports must take turns.
    """
    if scenario.transport_sweep is not None:
        what = f"{scenario.name} is a transport sweep: its transports take turns in one process, from start to end"
        raise UserError(what, "transport_sweep", f"run it with: python -m harness run {scenario.name}")
    return [replace(variant, name=variant.name or ALONE) for variant in expand(scenario)]


class _Sweep:
    """A sweep on its way."""

    def __init__(
        self,
        folder: Path,
        scenario_name: str,
        together: Sequence[Sequence[Variant]],
        options: SweepOptions,
        build: Build,
        console: Console,
    ) -> None:
        self._folder, self._together, self._options = folder, together, options
        self._build, self._console, self._say = build, console, _speaker(console, options.quiet)
        self._variants = [variant for group in together for variant in group]
        self._results: dict[str, Point] = {}
        self._experiment = Experiment(folder.parent.parent, scenario_name, folder, durable=True, planned=self._variants)
        self._allowed = {point.variant.name: self._allowance(point) for point in self.points()}
        self._now = InputsNow()
        self._refused: set[str] = set()  # points that failed for what the user wrote, in this command
        self._starts: Counter[str] = Counter()  # in this command

    def points(self) -> list[Point]:
        """Return every point as it is on disk now; what has a result does not change while we hold the experiment."""
        unfinished: dict[str, Point] = {}
        for variant in self._variants:
            if variant.name not in self._results:
                point = read_point(self._folder, variant)
                if point.state.is_result:
                    self._results[variant.name] = point
                else:
                    unfinished[variant.name] = point
        return [(self._results | unfinished)[variant.name] for variant in self._variants]

    def run(self) -> None:
        """Run what is left, and what failed again after that.

        Raises:
            UserError: what there is already was made of other inputs than those of now.
        """
        self._say_start()
        self._check_inputs()
        while groups := self._left():
            for group in groups:
                self._run(group)

    def _check_inputs(self) -> None:
        for point in self.points():
            if point.manifest is not None and (point.state.is_result or (point.folder / CHECKPOINTS).is_dir()):
                check_inputs(
                    point.manifest.inputs, self._now, point.variant.scenario, point.folder, "begin anew with --fresh"
                )

    def _allowance(self, point: Point) -> int:
        """How many failures end the trying of a point."""
        used = len(point.failures) if self._options.retry_failed else 0
        return used + self._options.attempts

    def _left(self) -> list[list[Point]]:
        """Return the points that have no result, those side by side that run so, and first those tried least.

        So one that takes the process down with it, again and again, does not keep the others from being run.
        """
        points = {point.variant.name: point for point in self.points()}
        groups = [[points[variant.name] for variant in group] for group in self._together]
        left = [[point for point in group if self._is_left(point)] for group in groups]
        return sorted(filter(None, left), key=lambda group: max(len(point.attempts) for point in group))

    def _is_left(self, point: Point) -> bool:
        name = point.variant.name
        if point.state.is_result or name in self._refused or self._starts[name] >= self._options.attempts:
            return False
        return point.state is not State.FAILED or len(point.failures) < self._allowed[name]

    def _run(self, group: Sequence[Point]) -> None:
        """Run points side by side, and say what came of them. A point by itself goes on from its checkpoint."""
        resume = resume_of(group[0], self._now) if len(group) == 1 and group[0].last is not None else None
        resumes = {} if resume is None else {group[0].variant.name: resume}
        for point in group:
            if point.last is not None and resume is None:
                set_aside(self._folder, point)
        for name, found in resumes.items():
            self._say("; ".join([f"{name} continues from {found.checkpoint.folder.name}", *found.warnings]))
        variants = [point.variant for point in group]
        self._starts.update(variant.name for variant in variants)
        number = 1 + min(self._variants.index(variant) for variant in variants)
        place, going = f"{number}/{len(self._variants)}", Continuation(self._folder, resumes=resumes)
        runner = ArmRunner(self._experiment, self._build, self._console, self._options.quiet, place, going)
        interleaving = ("step" if len(group) > 1 else "run") if len(self._variants) > 1 else None
        try:
            runner.run_point(variants, interleaving)
        except (HarnessError, KeyboardInterrupt, ModuleNotFoundError):
            raise
        except Exception as error:  # a bug in one point must not cost the others
            traceback.print_exc()
            runner.failures += [(variant.name, RunStopped(f"{type(error).__name__}: {error}")) for variant in variants]
        self._record(variants, runner.failures, resumes)
        self._say_points(variants)

    def _record(
        self,
        variants: Sequence[Variant],
        failures: Sequence[tuple[str, HarnessError]],
        resumes: Mapping[str, Resume],
    ) -> None:
        """Remember what the user has to mend, and write down what failed before it had a folder, or went on in it."""
        for variant in variants:
            errors = [error for name, error in failures if name == variant.name]
            if any(isinstance(error, UserError) for error in errors):
                self._refused.add(variant.name)
            point, resume = read_point(self._folder, variant), resumes.get(variant.name)
            went_on = resume is None or point.manifest is None or point.manifest.segments != resume.manifest.segments
            if point.state is State.NEW or not went_on:
                error = errors[0] if errors else RunStopped("an arm beside it could not start")
                self._experiment.record_failure(variant, error, resume)

    def _say_start(self) -> None:
        points = self.points()
        self._say(f"{len(points)} points: {standing(points)}; results: {self._folder}")
        made_with = {point.manifest.commit for point in points if point.state.is_result and point.manifest}
        if made_with - {code_state().commit}:
            self._say("the code has changed since the finished points were run: --fresh runs all of them again")

    def _say_points(self, variants: Sequence[Variant]) -> None:
        points = self.points()
        left_s = seconds_left(points)
        for number, point in enumerate(points, start=1):
            if point.variant in variants:
                self._say(point_line(point, number, len(points), left_s))


def _side_by_side(scenario: Scenario, variants: Sequence[Variant]) -> list[list[Variant]]:
    """Return the variants in groups that run side by side: one each, so that each is finished by itself.

    Arms take turns by step only where the scenario says so; then an interruption costs all arms of a point.
    """
    if scenario.interleaving != "step":
        return _in_turn([[variant] for variant in variants])
    return _in_turn(points_of(variants))


def _in_turn(groups: Sequence[list[Variant]]) -> list[list[Variant]]:
    """Turn the order round in every second block, so that drift of the machine hits the points alike."""
    blocks = itertools.groupby(groups, lambda group: group[0].block)
    return [group for block, members in blocks for group in (reversed([*members]) if (block or 0) % 2 else members)]


def _speaker(console: Console, quiet: bool) -> Callable[[str], None]:
    """Return what prints a line as it is, or nothing."""
    return lambda line: None if quiet else console.print(line, markup=False, highlight=False, soft_wrap=True)


def _experiment(out: Path, scenario: Scenario, fresh: bool, say: Callable[[str], None]) -> Path:
    """Return the experiment to go on with, or a new one."""
    found = None if fresh else find_experiment(out, scenario)
    if found is not None:
        return found
    if not fresh:
        _say_changes(out, scenario, say)
    folder = begin_experiment(out, scenario)
    say(f"a new sweep of {scenario.name} ({scenario_hash(scenario)})")
    return folder


def _say_all_blocks(scenario: Scenario, say: Callable[[str], None]) -> None:
    if scenario.stop_at_half_width is not None:
        say(
            f"stop_at_half_width plays no part in a sweep: all {scenario.blocks} blocks are run. "
            f"To stop early: python -m harness run {scenario.name}"
        )


def _say_changes(out: Path, scenario: Scenario, say: Callable[[str], None]) -> None:
    """Say what the scenario says otherwise than in the newest sweep of its name."""
    found = changes_since_newest(out, scenario)
    if found is None:
        return
    folder, changes = found
    more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
    say(f"the scenario has changed since {folder}, which stays as it is:")
    for change in changes[:MOST_CHANGES]:
        say(f"  {plain(change)}")
    if more:
        say(f" {more}")


def _raise_failed(points: Sequence[Point], folder: Path) -> None:
    failed = [point for point in points if not point.state.is_result]
    if not failed:
        return
    reasons = [
        f"  {point.variant.label}, attempts that failed: {len(point.failures)}; {what_came_of_it(point)}"
        for point in failed
    ]
    said = f"{len(failed)} of {len(points)} points failed:\n" + "\n".join(reasons)
    raise RunStopped(
        f"{said}\n  the same command tries again, with --retry-failed also what was tried often enough"
        f"\n  results: {folder}"
    )


def point_line(point: Point, number: int, count: int, left_s: float | None) -> str:
    """Return what came of a point just run, with the time that the others will take."""
    text = f"{number}/{count} {point.variant.label}: {what_came_of_it(point)}"
    return f"{text}; about {duration(left_s)} left" if left_s else text


def what_came_of_it(point: Point) -> str:
    """Say in a few words what became of a point."""
    if point.manifest is None or point.last is None:
        return str(point.state)
    manifest, seconds = point.manifest, f"in {duration(_seconds(point.manifest))}"
    match point.state:
        case State.FINISHED:
            return f"{_learned(point.folder)} {seconds}"
        case State.DIVERGED:
            return f"diverged at step {manifest.outcome['diverged']['step']} {seconds}"
        case State.FAILED:
            return f"failed: {first_line(point.last.reason)}"
    return str(point.state)


def seconds_left(points: Sequence[Point]) -> float | None:
    """Return the seconds that unfinished points will take at the pace of the finished ones; None before the first."""
    done = [(point.manifest, point.variant) for point in points if point.state.is_result and point.manifest]
    left = [point.variant.scenario.steps for point in points if not point.state.is_result]
    steps = sum(variant.scenario.steps for _, variant in done)
    if not steps:
        return None
    pace = sum(manifest.duration_s or 0.0 for manifest, _ in done) / steps
    startups = [manifest.startup_s or 0.0 for manifest, _ in done]
    startup_s = min(startups) if len(startups) > 1 else 0.0  # the first one may have warmed up a policy
    return pace * sum(left) + startup_s * len(left)


def standing(points: Sequence[Point]) -> str:
    """Say how many points are in which state: ``3 finished, 1 diverged, 6 not run yet``."""
    counts = {state: sum(point.state is state for point in points) for state in State}
    order = (State.FINISHED, State.DIVERGED, State.FAILED, State.CUT_SHORT, State.NEW)
    return ", ".join(f"{counts[state]} {state}" for state in order if counts[state])


def status_table(points: Sequence[Point]) -> Table:
    """Return the table of ``--status``: each point, its attempts, and what came of it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("point", "state", "attempts", "what came of it"):
        table.add_column(name, overflow="fold")
    for point in points:
        said = [what_came_of_it(point)] if point.state.is_result else []
        said += [f"{attempt.state}: {first_line(attempt.reason)}" for attempt in point.attempts if attempt.reason]
        cells = (point.variant.label, str(point.state), str(len(point.attempts)), "\n".join(said))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _as_facts(point: Point) -> dict[str, object]:
    """A row of that table for programs; without a folder where there is none yet."""
    return {
        "point": point.variant.label,
        "state": str(point.state),
        "folder": None if point.last is None else str(point.folder),
        "result": what_came_of_it(point) if point.state.is_result else None,
        "attempts": [{"state": str(attempt.state), "reason": attempt.reason} for attempt in point.attempts],
    }


def first_line(reason: str | None) -> str:
    """Return the first line of a reason, safe to print."""
    return plain((reason or "no reason was given").strip().split("\n")[0], LONGEST_REASON)


def _seconds(manifest: Manifest) -> float:
    return (manifest.startup_s or 0.0) + (manifest.duration_s or 0.0)


def _learned(folder: Path) -> str:
    """Say from where to where the validation reward went, and from which step on it was gone, if it was."""
    table = read_table(folder)
    rewards = table.rewards.reward
    if not len(rewards):
        return "finished"
    reward = f"{rewards[-1]:.3f}" if len(rewards) == 1 else f"from {rewards[0]:.3f} to {rewards[-1]:.3f}"
    lost = divergence(table)
    return (f"diverged at step {lost.step}: " if lost else "") + f"validation reward {reward}"
