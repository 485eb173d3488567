"""Runs arms: builds their parts, lets them take turns, and records how each of them ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import cast

from rich.console import Console

from harness.core.errors import HarnessError, RunStopped, UserError
from harness.core.progress import minutes_told
from harness.core.protocols import Learner
from harness.core.trace import RecordingTracer, Stage
from harness.loop import Throttle, first_error, run_loop
from harness.loop.state import with_data
from harness.models.chat import on_date
from harness.probes.clock import PausableClock
from harness.probes.load import load_profile
from harness.probes.machine_speed import SpeedProbe
from harness.probes.memory import forget_own_peak
from harness.results import EvaluationRow, StepRow
from harness.results.recorder import RowListener
from harness.results.writer import PROFILES
from harness.run.checkpoints import RunCheckpoints, SavingLearner
from harness.run.errors import full_gpu_as_user_error
from harness.run.handles import LearnerHandle
from harness.run.interleaving import Alone, Group, RoundRobinSchedule, Slot, alternating_order
from harness.run.interrupts import holding_interrupts
from harness.run.kept_steps import KeptSteps
from harness.run.memory.check import memory_line
from harness.run.parts import Build
from harness.run.points import Resume
from harness.run.progress import RunProgress
from harness.run.session import Arm, Experiment, RunSession, run_label
from harness.run.watchdog import stack_dumps, watch
from harness.run.workers import DROPPED_SPECIAL
from harness.scenario.axes import Variant
from harness.scenario.lanes import lane_groups


def dropped_special_line(row: StepRow | EvaluationRow) -> str | None:
    """Return what a row tells of texts for rewards that leave special tokens out; None where there are none."""
    is_step = isinstance(row, StepRow)
    share = row.metric(DROPPED_SPECIAL if is_step else f"validation/{DROPPED_SPECIAL}")
    if share is None:
        return None
    where = f"in training step {row.step}" if is_step else "in validation"
    return (
        f"{round(share.value * share.count)} of {share.count} responses {where} hold special tokens that their texts "
        "leave out, so no reward function sees them; sampling.skip_special_tokens: false keeps them"
    )


class ArmRunner:
    """Builds the parts of runs, lets arms take turns, and records how each of them ends.

    Args:
        experiment: makes the folders.
        build: makes the parts of one run.
        console: where progress is shown.
        quiet: show none.
    """

    def __init__(self, experiment: Experiment, build: Build, console: Console, quiet: bool) -> None:
        self._experiment, self._build, self._console, self._quiet = experiment, build, console, quiet
        self._said = set[str]()
        self._failures: list[tuple[str, HarnessError]] = []

    def run(
        self,
        group: Group,
        resumes: Mapping[str, Resume] = MappingProxyType({}),
        place: str = "",
        listeners: Sequence[RowListener] = (),
    ) -> list[tuple[str, HarnessError]]:
        """Run arms whose parts are alive at the same time. One that cannot start ends them all, since arms compare.

        Args:
            group: the arms.
            resumes: where those go on that have a folder, by the runs' names.
            place: shown before the name of a run that is one of many, whose bars go away: ``3/10``.
            listeners: take the rows of each arm, beside the progress.

        Returns:
            what ended runs before their last step: each run's name and the error.

        Raises:
            KeyboardInterrupt, Interrupted: the user asked to stop.
        """
        forget_own_peak()
        self._failures = []
        variants, sessions, stop = group.variants, list[RunSession](), threading.Event()
        passing = bool(place) or all(variant.block is not None for variant in variants)
        label = f"{run_label(variants[0])}: " if group.interleaving == "run" else ""
        with ExitStack() as alive:
            try:
                with minutes_told(self._console, f"starting {label.removesuffix(': ') or 'the parts'}", self._quiet):
                    arms = self._build_arms(variants, resumes, stop, alive)
                if len(arms) == len(variants):
                    labels = [f"{place} {arm.label}".lstrip() for arm in arms]
                    steps = [variant.scenario.steps for variant in variants]
                    done = [0 if arm.resume is None else arm.resume.checkpoint.step for arm in arms]
                    progress = alive.enter_context(
                        RunProgress(self._console, labels, steps, self._quiet, passing, done)
                    )
                    heard_by = [
                        [*listeners, progress.listener(number), self._listen_for_special(sessions, number)]
                        for number in range(len(arms))
                    ]
                    schedule = _schedule(arms, group.interleaving)
                    if self._open_runs(arms, heard_by, schedule, group.interleaving, sessions):
                        asyncio.run(self._take_turns(sessions, schedule))
            except BaseException as error:
                stop.set()
                with holding_interrupts():  # a second signal may come while the first run is written down
                    for session in sessions:
                        session.finish(error)
                raise
        memories = [session.memory for session in sessions if session.memory]
        if memories and not passing:  # of what runs side by side, the last one has the highest peak
            self.say(label + memory_line(max(memories, key=lambda memory: memory["main"]["peak_bytes"])))
        return self._failures

    def say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(line, markup=False, highlight=False)

    def _say_once(self, session: RunSession, line: str) -> None:
        """Write a line into a run's log, and print it if no arm before has said it."""
        session.log_lines([line])
        if line not in self._said:
            self.say(line)
            self._said.add(line)

    def _listen_for_special(self, sessions: Sequence[RunSession], number: int) -> RowListener:
        """Return what says once that texts for rewards leave special tokens out."""
        heard = False

        def listen(row: StepRow | EvaluationRow) -> None:
            nonlocal heard
            line = None if heard else dropped_special_line(row)
            if line is not None:
                heard = True
                self._say_once(sessions[number], line)

        return listen

    def _build_arms(
        self, variants: Sequence[Variant], resumes: Mapping[str, Resume], stop: threading.Event, alive: ExitStack
    ) -> list[Arm]:
        """Build the parts of arms up to the first that cannot be built; ``alive`` closes them."""
        arms = list[Arm]()
        for variant in variants:
            clock = PausableClock()
            tracer = RecordingTracer(clock, clock.at, lane_groups(variant.scenario))
            clock.resume()
            resume = resumes.get(variant.name)
            date = self._experiment.today if resume is None else resume.date
            try:
                with full_gpu_as_user_error(variant.scenario), tracer.underway("run", Stage.STARTUP), on_date(date):
                    parts = self._build(variant.scenario, tracer, stop.is_set)
            except (UserError, RunStopped) as error:
                self._failures.append((run_label(variant), error))
                break
            finally:
                clock.pause()
            alive.callback(parts.close)
            can_time = parts.plan.is_synchronous and not parts.learner_on_gpu  # no part is at work between steps
            speed = SpeedProbe() if can_time and load_profile(variant.scenario.profile).speed_probe else None
            arms.append(Arm(variant, clock, tracer, parts, speed, resume))
        return arms

    def _open_runs(
        self,
        arms: Sequence[Arm],
        listeners: Sequence[Sequence[RowListener]],
        schedule: RoundRobinSchedule | Alone,
        interleaving: str | None,
        sessions: list[RunSession],
    ) -> bool:
        """Add the arms' runs to ``sessions``; return whether that went well."""
        for number, arm in enumerate(arms):
            try:
                with holding_interrupts():  # between the run's folder and the session that says how it ended
                    opened = self._experiment.open_run(
                        arm,
                        interleaving=interleaving,
                        row_listeners=listeners[number],
                        pass_turn=schedule.slot(number).finished,
                        beside=sessions,
                    )
                    sessions.append(opened)
                for note in arm.parts.notes:
                    self._say_once(opened, note)
            except UserError as error:
                self._failures.append((arm.label, error))
                for opened in sessions:
                    opened.finish(error)
                return False
        return True

    async def _take_turns(self, sessions: list[RunSession], schedule: RoundRobinSchedule | Alone) -> None:
        async def run(number: int, slot: Slot | Alone) -> None:
            await slot.acquire(0)
            await self._run_arm(sessions[number], slot)
            slot.leave()

        schedule.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(len(sessions)):
                    tasks.create_task(run(number, schedule.slot(number)))
        except BaseExceptionGroup as group:
            error = first_error(group)
            raise error from error.__cause__

    async def _run_arm(self, session: RunSession, throttle: Throttle) -> None:
        arm = session.arm
        parts = arm.parts
        tasks = [asyncio.ensure_future(_train(session, throttle)), asyncio.ensure_future(self._watch(session))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            with full_gpu_as_user_error(arm.variant.scenario):
                for task in done:
                    await task
            tasks.pop().cancel()  # the watchdog: what follows has bounds of its own
            session.recorder.loop_ends()
            await asyncio.to_thread(parts.keep_profiles, session.folder.folder / PROFILES)
            session.probes.close()
            session.log_lines(parts.drain_log())
            session.finish()
        except (UserError, RunStopped) as error:
            self._failures.append((arm.label, error))
            session.log_lines(parts.drain_log())
            session.finish(error)
        finally:
            for task in tasks:
                task.cancel()

    async def _watch(self, session: RunSession) -> None:
        arm = session.arm

        def say(report: str) -> None:
            session.log_lines(report.splitlines())
            self._console.print(report, markup=False, highlight=False)

        stall_after_s = arm.variant.scenario.faults.stall_after_s

        def dumps() -> str:
            return "\n".join(filter(None, (stack_dumps(arm.parts.processes()), arm.parts.flight_records())))

        await watch(arm.tracer, stall_after_s, dumps, say)


async def _train(session: RunSession, throttle: Throttle) -> None:
    """Make the training steps, from the start or from where the run goes on."""
    arm, recorder, folder = session.arm, session.recorder, session.folder.folder
    parts, settings = arm.parts, arm.variant.scenario.checkpoint
    checkpoints = RunCheckpoints(folder, settings, parts, recorder, arm.tracer)
    parts.save_to(folder)
    state = None
    if (resume := arm.resume) is not None:
        await cast(LearnerHandle, parts.learner).load_state(resume.checkpoint.folder.resolve())
        arm.clock.go_on_from(resume.recorded.clock_ns)
        recorder.goes_on(parts.lanes, resume.recorded)
        session.log_lines([*resume.warnings, f"continues from {resume.checkpoint.folder.name}"])
        state = with_data(resume.state, parts.handle_of)
    session.probes.start()
    if state is None:
        recorder.loop_starts(parts.lanes)
    kept = KeptSteps(folder, arm.variant.scenario, parts, checkpoints, arm.tracer) if settings.keeps_any else None
    saves = settings.asynchronous or settings.keeps_any
    learner: Learner = SavingLearner(parts.learner, checkpoints, kept) if saves else parts.learner
    await run_loop(
        parts.generators,
        parts.scorers,
        learner,
        parts.plan,
        arm.tracer,
        recorder,
        throttle,
        resume=state,
        checkpoints=checkpoints,
    )


def _schedule(arms: Sequence[Arm], interleaving: str | None) -> RoundRobinSchedule | Alone:
    if interleaving != "step":
        (arm,) = arms
        measure = arm.speed.measure if arm.speed and len(arm.parts.generators) == 1 else None
        return Alone(arm.clock, measure, is_busy=arm.parts.plan.is_evaluated)  # the Scorer, with what was evaluated

    def between(arm: int) -> None:
        speed = arms[arm].speed
        if speed is not None:
            speed.measure()

    scenarios = [arm.variant.scenario for arm in arms]
    order = alternating_order(len(arms), [scenario.steps for scenario in scenarios], scenarios[0].seed)
    return RoundRobinSchedule(order, [arm.clock for arm in arms], between)
