"""Runs a scenario: builds the parts of every arm, lets the arms take turns, and closes the books however it ends."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from harness.arms import PausableClock, Turnstile, alternating_order
from harness.books import Books, Campaign
from harness.build import Build, Parts, Workshop
from harness.errors import HarnessError, Interrupted, RunStopped, UserError
from harness.loop import FullSpeed, Pace, first_error, run_loop
from harness.progress import RunProgress
from harness.results.writer import PICTURES, POLICY
from harness.scenario import Scenario, Variant, expand
from harness.trace import RecordingTracer
from harness.watchdog import stack_dumps, watch


@dataclass
class Arm:
    """One run on its way: its clock, and in turn its parts and its books."""

    variant: Variant
    clock: PausableClock
    tracer: RecordingTracer
    parts: Parts | None = None
    books: Books | None = None

    @property
    def steps(self) -> int:
        """Training steps to make."""
        return self.variant.scenario.steps

    @property
    def label(self) -> str:
        """Name to show."""
        return self.variant.name or self.variant.scenario.name


def show_results(folder: Path) -> None:
    """Draw the pictures of a campaign and print its tables."""
    from harness.report.pictures import make_pictures
    from harness.report.summary import print_run_summary

    print_run_summary(folder, pictures=make_pictures(folder, folder / PICTURES))


def run_command(
    scenario: Scenario,
    out: Path,
    quiet: bool,
    build: Build | None = None,
    show: Callable[[Path], None] = show_results,
) -> int:
    """Run every arm and point of a scenario, then print the comparison and draw its pictures.

    An arm or point that fails does not stop the others.

    Args:
        scenario: as loaded; arms and sweep are expanded here.
        out: the results folder.
        quiet: show no progress.
        build: makes the parts of one run; None takes a ``Workshop``.
        show: called with the campaign's folder at the end.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the scenario names something that cannot be used.
        RunStopped: a run had to stop; its folder says why.
        Interrupted: Ctrl-C or SIGTERM; the folders say so.
    """
    campaign = Campaign(out, scenario.name)
    points = list(_points(expand(scenario)))
    with _signals_as_interrupts(), Workshop([_together(variants) for variants in points]) as workshop:
        console = Console(stderr=True)
        conductor = Conductor(campaign, build or workshop, console, quiet)
        try:
            for variants in points:
                if scenario.transport_sweep is not None:
                    conductor.failures += _sweep_transports(variants, campaign, workshop, console, quiet)
                else:
                    conductor.run_point(variants)
        except (KeyboardInterrupt, Interrupted):
            kept = f"what was measured so far is in {campaign.folder}"
            raise Interrupted(kept if campaign.folder else "nothing had been measured yet") from None
    if campaign.folder is not None:
        show(campaign.folder)
    _raise_first(conductor.failures, campaign.folder)
    return 0


def _points(variants: Sequence[Variant]) -> Iterator[list[Variant]]:
    """The variants of one point of the sweep side by side: those are the arms that take turns."""
    for _, group in itertools.groupby(variants, key=lambda variant: variant.point):
        yield list(group)


def _sweep_transports(
    variants: Sequence[Variant], campaign: Campaign, workshop: Workshop, console: Console, quiet: bool
) -> list[tuple[str, HarnessError]]:
    """Measure weight syncs alone, for each variant; return what failed."""
    from harness.transport_sweep import run_transport_sweep

    failures: list[tuple[str, HarnessError]] = []
    for variant in variants:
        try:
            run_transport_sweep(variant, campaign, workshop.session(variant.scenario), console, quiet)
        except (UserError, RunStopped) as error:
            failures.append((variant.name or variant.scenario.name, error))
    return failures


def _together(variants: Sequence[Variant]) -> list[Scenario]:
    """The scenarios whose parts stand side by side."""
    scenarios = [variant.scenario for variant in variants]
    return scenarios if _interleaving(variants) == "step" else scenarios[:1]


def _raise_first(failures: Sequence[tuple[str, HarnessError]], folder: Path | None) -> None:
    if not failures:
        return
    label, error = failures[0]
    if folder is None:
        raise error
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    if isinstance(error, UserError):
        raise UserError(f"{label} failed{others}: {error.what}", error.where, error.fix) from error
    raise RunStopped(f"{label} stopped{others}: {error}\n  results: {folder}") from error


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM raise KeyboardInterrupt, also in a job whose shell had it ignore Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


class Conductor:
    """Runs the points of a scenario one after the other, and the arms of a point in turns.

    Args:
        campaign: makes the folders.
        build: makes the parts of one run.
        console: where progress is shown.
        quiet: show none.
    """

    def __init__(self, campaign: Campaign, build: Build, console: Console, quiet: bool) -> None:
        self._campaign, self._build, self._console, self._quiet = campaign, build, console, quiet
        self._stop = threading.Event()
        self.failures: list[tuple[str, HarnessError]] = []

    def run_point(self, variants: Sequence[Variant]) -> None:
        """Run the arms of one point; what fails is remembered in ``failures``.

        Raises:
            KeyboardInterrupt, Interrupted: the user asked to stop.
        """
        interleaving = _interleaving(variants)
        arms = [self._new_arm(variant) for variant in variants]
        try:
            if interleaving == "step":
                self._run_in_turns(arms)
            else:
                self._run_one_by_one(arms, interleaving)
        except BaseException as error:
            self._stop.set()
            for arm in arms:
                if arm.books is not None:
                    arm.books.close_after(error)
            raise
        finally:
            for arm in arms:
                self._end(arm)

    def _new_arm(self, variant: Variant) -> Arm:
        clock = PausableClock()
        return Arm(variant, clock, RecordingTracer(clock, clock.at))

    def _prepare(self, arm: Arm) -> bool:
        """Build an arm's parts; return whether that went well."""
        arm.clock.resume()
        try:
            arm.parts = self._build(arm.variant.scenario, arm.tracer, self._stop.is_set)
        except (UserError, RunStopped) as error:
            self.failures.append((arm.label, error))
            return False
        finally:
            arm.clock.pause()
        return True

    def _open_books(self, arms: Sequence[Arm], interleaving: str | None, progress: RunProgress) -> bool:
        """Make the arms' folders; return whether that went well."""
        for number, arm in enumerate(arms):
            listener = progress.listener(number)
            try:
                arm.books = self._campaign.open_books(arm.variant, arm.tracer, _parts(arm), interleaving, listener)
            except UserError as error:
                self.failures.append((arm.label, error))
                return False
        return True

    def _progress(self, arms: Sequence[Arm]) -> RunProgress:
        return RunProgress(self._console, [arm.label for arm in arms], [arm.steps for arm in arms], self._quiet)

    def _end(self, arm: Arm) -> None:
        """End an arm's parts."""
        if arm.parts is not None:
            arm.parts.close()
            arm.parts = None

    def _run_in_turns(self, arms: Sequence[Arm]) -> None:
        """Run all arms at once, one training step each in turn. One that cannot start ends the point: arms compare."""
        if not all(self._prepare(arm) for arm in arms):
            return
        with self._progress(arms) as progress:
            if self._open_books(arms, "step", progress):
                asyncio.run(self._alternate(arms, _turnstile(arms)))

    def _run_one_by_one(self, arms: Sequence[Arm], interleaving: str | None) -> None:
        """Run one arm after the other, in an order drawn from the seed; each has the machine to itself."""
        for arm in random.Random(arms[0].variant.scenario.seed).sample(arms, len(arms)):
            if self._prepare(arm):
                with self._progress([arm]) as progress:
                    if self._open_books([arm], interleaving, progress):
                        arm.clock.resume()
                        asyncio.run(self._run_arm(arm, FullSpeed()))
                        arm.clock.pause()
            self._end(arm)

    async def _alternate(self, arms: Sequence[Arm], turnstile: Turnstile) -> None:
        """Let the arms take turns; one that fails drops out."""

        async def take_turns(number: int, arm: Arm) -> None:
            pace = turnstile.lane(number)
            books = _books(arm)
            # The turn of the last step is passed on only when the run is saved, so that saving costs nobody else time.
            books.recorder.on_step_done = lambda step: pace.finished(step) if step < arm.steps - 1 else None
            await pace.admit(0)
            if await self._run_arm(arm, pace):
                pace.finished(arm.steps - 1)
            else:
                turnstile.drop(number)

        turnstile.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, arm in enumerate(arms):
                    tasks.create_task(take_turns(number, arm))
        except BaseExceptionGroup as group:
            error = first_error(group)
            raise error from error.__cause__

    async def _run_arm(self, arm: Arm, pace: Pace) -> bool:
        """Run one arm to its end and close its books; return whether it got there."""
        books, parts = _books(arm), _parts(arm)
        parts.save_to(books.folder.folder / POLICY)
        books.recorder.loop_starts(parts.lanes)
        watcher = asyncio.ensure_future(self._watch(arm))
        loop = asyncio.ensure_future(
            run_loop(parts.generators, parts.scorers, parts.learner, parts.plan, arm.tracer, books.recorder, pace)
        )
        try:
            await asyncio.wait((loop, watcher), return_when=asyncio.FIRST_COMPLETED)
            if watcher.done():
                await watcher
            await loop
            books.log_lines(parts.drain_log())
            books.complete()
            return True
        except (UserError, RunStopped) as error:
            self.failures.append((arm.label, error))
            books.log_lines(parts.drain_log())
            books.close_after(error)
            return False
        finally:
            watcher.cancel()
            loop.cancel()

    async def _watch(self, arm: Arm) -> None:
        """Stop the arm when nothing moves; see ``harness.watchdog``."""
        books, parts = _books(arm), _parts(arm)

        def say(report: str) -> None:
            books.log_lines(report.splitlines())
            self._console.print(report, markup=False, highlight=False)

        await watch(
            arm.tracer,
            arm.variant.scenario.faults.stall_after_s,
            lambda: stack_dumps(parts.processes()),
            say,
        )


def _parts(arm: Arm) -> Parts:
    assert arm.parts is not None
    return arm.parts


def _books(arm: Arm) -> Books:
    assert arm.books is not None
    return arm.books


def _interleaving(variants: Sequence[Variant]) -> str | None:
    """How the arms take turns: by ``step`` where all are synchronous, else by ``run``; None for a single arm."""
    if len(variants) == 1:
        return None
    return "step" if all(variant.scenario.max_lag == 0 for variant in variants) else "run"


def _turnstile(arms: Sequence[Arm]) -> Turnstile:
    order = alternating_order(len(arms), [arm.steps for arm in arms], arms[0].variant.scenario.seed)
    return Turnstile(order, [arm.clock for arm in arms])
