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
from harness.build import Parts, StopSignal, build_parts
from harness.errors import HarnessError, Interrupted, RunStopped, UserError
from harness.loop import FullSpeed, Pace, first_error, run_loop
from harness.progress import RunProgress
from harness.results.writer import PICTURES, POLICY
from harness.scenario import Scenario, Variant, expand
from harness.trace import RecordingTracer, Tracer

Build = Callable[[Scenario, Tracer, StopSignal], Parts]


@dataclass
class Arm:
    """One run on its way: its parts, its clock and, once it is about to start, its books."""

    variant: Variant
    clock: PausableClock
    tracer: RecordingTracer
    parts: Parts
    books: Books | None = None

    @property
    def steps(self) -> int:
        """Training steps to make."""
        return self.parts.plan.steps

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
    build: Build = build_parts,
    show: Callable[[Path], None] = show_results,
) -> int:
    """Run every arm and point of a scenario, then print the comparison and draw its pictures.

    An arm or point that fails does not stop the others.

    Args:
        scenario: as loaded; arms and sweep are expanded here.
        out: the results folder.
        quiet: show no progress.
        build: makes the parts of one run.
        show: called with the campaign's folder at the end.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the scenario names something that cannot be used.
        RunStopped: a run had to stop; its folder says why.
        Interrupted: Ctrl-C or SIGTERM; the folders say so.
    """
    campaign = Campaign(out, scenario.name)
    conductor = Conductor(campaign, build, Console(stderr=True), quiet)
    with _signals_as_interrupts():
        try:
            for variants in _points(expand(scenario)):
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
        arms: list[Arm] = []
        try:
            for variant in variants:
                arms.append(self._prepare(variant))
            self._run_arms(arms)
        except (UserError, RunStopped) as error:  # before any arm ran
            failed = variants[len(arms)] if len(arms) < len(variants) else variants[0]
            self.failures.append((failed.name or failed.scenario.name, error))
        except BaseException:
            self._stop.set()
            raise
        finally:
            for arm in arms:
                arm.parts.close()

    def _prepare(self, variant: Variant) -> Arm:
        clock = PausableClock()
        clock.resume()
        tracer = RecordingTracer(clock)
        parts = self._build(variant.scenario, tracer, self._stop.is_set)
        clock.pause()
        return Arm(variant, clock, tracer, parts)

    def _run_arms(self, arms: Sequence[Arm]) -> None:
        interleaving = _interleaving(arms)
        turnstile = _turnstile(arms) if interleaving == "step" else None
        names, steps = [arm.label for arm in arms], [arm.steps for arm in arms]
        with RunProgress(self._console, names, steps, self._quiet) as progress:
            for number, arm in enumerate(arms):
                arm.books = self._campaign.open_books(
                    arm.variant, arm.tracer, arm.parts, interleaving, progress.listener(number)
                )
            try:
                asyncio.run(self._alternate(arms, turnstile) if turnstile else self._one_by_one(arms))
            except BaseException as error:
                self._stop.set()
                for arm in arms:
                    if arm.books is not None:
                        arm.books.close_after(error)
                raise

    async def _alternate(self, arms: Sequence[Arm], turnstile: Turnstile) -> None:
        """Run all arms at once, one training step each in turn; one that fails drops out."""

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

    async def _one_by_one(self, arms: Sequence[Arm]) -> None:
        """Run one arm after the other, in an order drawn from the seed."""
        for arm in random.Random(arms[0].variant.scenario.seed).sample(arms, len(arms)):
            arm.clock.resume()
            await self._run_arm(arm, FullSpeed())
            arm.clock.pause()

    async def _run_arm(self, arm: Arm, pace: Pace) -> bool:
        """Run one arm to its end and close its books; return whether it got there."""
        books, parts = _books(arm), arm.parts
        parts.policy_folder.append(books.folder.folder / POLICY)
        books.recorder.loop_starts(parts.lanes)
        try:
            await run_loop(parts.generators, parts.scorers, parts.learner, parts.plan, arm.tracer, books.recorder, pace)
            books.complete()
            return True
        except (UserError, RunStopped) as error:
            self.failures.append((arm.label, error))
            books.close_after(error)
            return False


def _books(arm: Arm) -> Books:
    assert arm.books is not None
    return arm.books


def _interleaving(arms: Sequence[Arm]) -> str | None:
    """How the arms take turns: by ``step`` where all are synchronous, else by ``run``; None for a single arm."""
    if len(arms) == 1:
        return None
    return "step" if all(arm.parts.plan.max_lag == 0 for arm in arms) else "run"


def _turnstile(arms: Sequence[Arm]) -> Turnstile:
    order = alternating_order(len(arms), [arm.steps for arm in arms], arms[0].variant.scenario.seed)
    return Turnstile(order, [arm.clock for arm in arms])
