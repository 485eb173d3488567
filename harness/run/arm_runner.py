"""Runs the arms of one point: builds their parts, lets them take turns, and closes the books however it ends."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from rich.console import Console

from harness.core.errors import HarnessError, RunStopped, UserError
from harness.core.progress import RunProgress
from harness.core.trace import RecordingTracer, Stage
from harness.loop import NoThrottle, Throttle, first_error, run_loop
from harness.probes.clock import PausableClock
from harness.probes.device_memory import Peak
from harness.probes.load import load_profile
from harness.probes.main_memory import forget_own_peak, main_memory_peak, with_children
from harness.probes.profile import ProbeProfile
from harness.probes.run_probes import RunProbes
from harness.results.trackers.streams import open_streams
from harness.results.writer import POLICY, PROFILES
from harness.run.errors import full_gpu_as_user_error
from harness.run.interleaving import Turnstile, alternating_order, order_in_block
from harness.run.memory.outcome import memory_line, planned_bytes
from harness.run.parts import Build, RunningParts
from harness.run.session import Books, Experiment
from harness.run.watchdog import stack_dumps, watch
from harness.scenario import Scenario, Variant

Row = dict[str, Any]
Listener = Callable[[Row, float], None]
AS_THE_SCENARIO_SAYS = "as the scenario says"


@dataclass
class Arm:
    """One run on its way: its clock, and in turn its parts, its books and its probes."""

    variant: Variant
    clock: PausableClock
    tracer: RecordingTracer
    parts: RunningParts | None = None
    books: Books | None = None
    probes: RunProbes | None = None
    listeners: list[Listener] = field(default_factory=list)

    @cached_property
    def profile(self) -> ProbeProfile:
        """The probes that the scenario names."""
        return load_profile(self.variant.scenario.profile)

    @property
    def steps(self) -> int:
        """Training steps to make."""
        return self.variant.scenario.steps

    @property
    def label(self) -> str:
        """Name to show."""
        return self.variant.name or self.variant.scenario.name

    def hear(self, row: Row, train_s: float) -> None:
        """Pass a row on to all listeners."""
        for listener in self.listeners:
            listener(row, train_s)

    @property
    def is_one_of_many(self) -> bool:
        """Whether the run is part of a block."""
        return self.variant.block is not None


class Conductor:
    """Runs the points of a scenario one after the other, and the arms of a point in turns.

    Args:
        experiment: makes the folders.
        build: makes the parts of one run.
        console: where progress is shown.
        quiet: show none.
        place: shown before each run's name, where it is one of many whose bars go away: ``3/10``.
    """

    def __init__(self, experiment: Experiment, build: Build, console: Console, quiet: bool, place: str = "") -> None:
        self._experiment, self._build, self._console, self._quiet = experiment, build, console, quiet
        self._place = place
        self._stop = threading.Event()
        self.failures: list[tuple[str, HarnessError]] = []

    def run_point(
        self,
        variants: Sequence[Variant],
        listeners: Sequence[Listener] | None = None,
        interleaving: str | None = AS_THE_SCENARIO_SAYS,
    ) -> None:
        """Run the arms of one point; what fails is remembered in ``failures``.

        Args:
            variants: the arms.
            listeners: for each arm, what hears of its rows beside the progress; None: nobody.
            interleaving: how they take turns, by ``step`` or by ``run``, or None for a single run.

        Raises:
            KeyboardInterrupt, Interrupted: the user asked to stop.
        """
        if interleaving == AS_THE_SCENARIO_SAYS:
            interleaving = interleaving_of(variants)
        arms = [self._new_arm(variant) for variant in variants]
        for arm, listener in zip(arms, listeners or (), strict=False):
            arm.listeners.append(listener)
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

    def say(self, line: str) -> None:
        """Print a line beside the progress."""
        if not self._quiet:
            self._console.print(line, markup=False, highlight=False)

    def _say_memory(self, together: Sequence[Arm], label: str) -> None:
        """Say what runs side by side held at most, as the last of them found it; not for runs whose bars go away."""
        found = [arm.books.memory for arm in together if arm.books is not None and arm.books.memory]
        if found and not self._passing(together):
            self.say(label + memory_line(max(found, key=lambda memory: memory["main"]["peak_bytes"])))

    def _passing(self, arms: Sequence[Arm]) -> bool:
        """Whether the bars of these runs go away: each is one of many."""
        return bool(self._place) or all(arm.is_one_of_many for arm in arms)

    def _new_arm(self, variant: Variant) -> Arm:
        clock = PausableClock()
        return Arm(variant, clock, RecordingTracer(clock, clock.at))

    def _prepare(self, arm: Arm) -> bool:
        """Build an arm's parts; return whether that went well."""
        arm.clock.resume()
        try:
            with full_gpu_as_user_error(arm.variant.scenario), arm.tracer.underway("run", Stage.STARTUP):
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
            arm.listeners.append(progress.listener(number))
            try:
                self._open_one(arm, interleaving)
            except UserError as error:
                self.failures.append((arm.label, error))
                for opened in arms:
                    if opened.books is not None:
                        opened.books.close_after(error)
                return False
        return True

    def _open_one(self, arm: Arm, interleaving: str | None) -> None:
        scenario = arm.variant.scenario
        profiled = arm.profile.touched_steps(scenario.max_lag)
        books = self._experiment.open_books(arm.variant, arm.tracer, _parts(arm), interleaving, arm.hear, profiled)
        arm.books = books
        books.streams = open_streams(scenario.trackers, books.folder.folder, arm.label, note=books.folder.log)
        arm.listeners.append(lambda row, train_s: books.streams.on_row(row))

    def _progress(self, arms: Sequence[Arm]) -> RunProgress:
        labels = [f"{self._place} {arm.label}".lstrip() for arm in arms]
        steps = [arm.steps for arm in arms]
        return RunProgress(self._console, labels, steps, self._quiet, self._passing(arms))

    def _end(self, arm: Arm) -> None:
        """End an arm's parts."""
        if arm.parts is not None:
            arm.parts.close()
            arm.parts = None

    def _run_in_turns(self, arms: Sequence[Arm]) -> None:
        """Run all arms at once, one training step each in turn. One that cannot start ends the point: arms compare."""
        forget_own_peak()
        if not all(self._prepare(arm) for arm in arms):
            return
        with self._progress(arms) as progress:
            if self._open_books(arms, "step", progress):
                asyncio.run(self._alternate(arms, _turnstile(arms)))
        self._say_memory(arms, "")

    def _run_one_by_one(self, arms: Sequence[Arm], interleaving: str | None) -> None:
        """Run one arm after the other, in an order drawn from the seed; each has the machine to itself."""
        block = arms[0].variant.block or 0
        for number in order_in_block(len(arms), block, arms[0].variant.scenario.seed - block):
            arm = arms[number]
            forget_own_peak()
            if self._prepare(arm):
                with self._progress([arm]) as progress:
                    if self._open_books([arm], interleaving, progress):
                        arm.clock.resume()
                        asyncio.run(self._run_arm(arm, NoThrottle(), [arm]))
                        arm.clock.pause()
            self._end(arm)
            self._say_memory([arm], f"{arm.label}: " if len(arms) > 1 else "")

    async def _alternate(self, arms: Sequence[Arm], turnstile: Turnstile) -> None:
        """Let the arms take turns; one that fails drops out."""

        async def take_turns(number: int, arm: Arm) -> None:
            pace = turnstile.lane(number)
            books = _books(arm)
            # The turn of the last step is passed on only when the run is saved, so that saving costs nobody else time.
            books.recorder.on_step_done = lambda step: pace.finished(step) if step < arm.steps - 1 else None
            await pace.acquire(0)
            if await self._run_arm(arm, pace, arms):
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

    async def _run_arm(self, arm: Arm, pace: Throttle, together: Sequence[Arm]) -> bool:
        """Run one arm to its end and close its books; return whether it got there.

        Args:
            together: the arms whose parts are alive at the same time, itself among them.
        """
        books, parts, profiles = _books(arm), _parts(arm), _books(arm).folder.folder / PROFILES
        books.measure_memory = partial(_measure_memory, together, self._experiment.has_gpu)
        tasks: list[asyncio.Future[None]] = []
        try:
            elsewhere = parts.sample_elsewhere(arm.profile.sampler_hz)
            probes = RunProbes(arm.profile, arm.clock, parts.processes, parts.drain_device_figures, profiles, elsewhere)
            arm.probes = probes
            _hand_to_recorder(probes, books)
            parts.save_to(books.folder.folder / POLICY)
            probes.start()
            books.recorder.loop_starts(parts.lanes)
            loop = run_loop(
                parts.generators, parts.scorers, parts.learner, parts.plan, arm.tracer, books.recorder, pace
            )
            tasks += [asyncio.ensure_future(loop), asyncio.ensure_future(self._watch(arm))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            with full_gpu_as_user_error(arm.variant.scenario):
                for task in done:
                    await task
            tasks.pop().cancel()  # the watchdog: what follows has bounds of its own
            books.recorder.loop_ends()
            await asyncio.to_thread(parts.keep_profiles, profiles)
            probes.close()
            books.log_lines(parts.drain_log())
            books.complete()
            return True
        except (UserError, RunStopped) as error:
            self.failures.append((arm.label, error))
            books.log_lines(parts.drain_log())
            books.close_after(error)
            return False
        finally:
            for task in tasks:
                task.cancel()

    async def _watch(self, arm: Arm) -> None:
        """Stop the arm when nothing moves; see ``harness.run.watchdog``."""
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


def _measure_memory(arms: Sequence[Arm], has_gpu: bool) -> dict[str, Any]:
    """Return what the runs side by side have held at most so far, beside what was planned; see ``memory_plan.outcome``.

    Empty where main memory cannot be read.
    """
    pids, on_gpus = {os.getpid()}, dict[int, Peak]()
    for arm in arms:
        if arm.parts is not None:
            pids |= set(arm.parts.processes().values())
        for pid, peak in arm.probes.device_peaks.items() if arm.probes is not None else ():
            on_gpus[pid] = peak.or_higher(on_gpus.get(pid, peak))
    main = main_memory_peak(with_children(pids))
    if main is None:
        return {}
    found: dict[str, dict[str, int]] = {"main": {"peak_bytes": main.num_bytes, "processes": main.processes}}
    if on_gpus:
        allocated, reserved = (sum(sizes) for sizes in zip(*on_gpus.values(), strict=True))
        found["gpu"] = {"peak_bytes": allocated, "reserved_bytes": reserved, "processes": len(on_gpus)}
    planned = planned_bytes([arm.variant.scenario for arm in arms], has_gpu)
    return {
        memory: figures | ({"planned_bytes": planned[memory]} if memory in planned else {})
        for memory, figures in found.items()
    }


def _hand_to_recorder(probes: RunProbes, books: Books) -> None:
    """Have the recorder write what the probes see, and the probes hear of each step, before the turn is passed on."""
    books.recorder.probes = probes
    pass_on = books.recorder.on_step_done

    def step_done(step: int) -> None:
        probes.after_step(step)
        pass_on(step)
        probes.before_next_step()

    books.recorder.on_step_done = step_done


def _parts(arm: Arm) -> RunningParts:
    assert arm.parts is not None
    return arm.parts


def _books(arm: Arm) -> Books:
    assert arm.books is not None
    return arm.books


def interleaving_of(variants: Sequence[Variant]) -> str | None:
    """How the arms take turns: as asked for, else by ``step`` where all are synchronous; None for a single arm."""
    if len(variants) == 1:
        return None
    asked = variants[0].scenario.interleaving
    if asked != "auto":
        return asked
    return "step" if all(variant.scenario.max_lag == 0 for variant in variants) else "run"


def side_by_side(variants: Sequence[Variant]) -> list[list[Scenario]]:
    """The scenarios of a point's arms whose parts are alive at the same time, group by group."""
    scenarios = [variant.scenario for variant in variants]
    return [scenarios] if interleaving_of(variants) == "step" else [[scenario] for scenario in scenarios]


def _turnstile(arms: Sequence[Arm]) -> Turnstile:
    order = alternating_order(len(arms), [arm.steps for arm in arms], arms[0].variant.scenario.seed)
    return Turnstile(order, [arm.clock for arm in arms])
