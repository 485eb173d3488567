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
from harness.build import Parts, StopSignal, build_parts
from harness.errors import Interrupted
from harness.loop import FullSpeed, Pace, run_loop
from harness.progress import RunProgress
from harness.provenance import code_state, machine_facts, package_versions
from harness.recorder import RunRecorder
from harness.results import Manifest, RunFolder, campaign_name
from harness.results.writer import PICTURES, POLICY, utc_now
from harness.scenario import Scenario, Variant, expand, resolved_yaml
from harness.trace import RecordingTracer, Tracer

Build = Callable[[Scenario, Tracer, StopSignal], Parts]


@dataclass
class Arm:
    """One run on its way: its parts, its clock and its files."""

    variant: Variant
    clock: PausableClock
    tracer: RecordingTracer
    parts: Parts
    recorder: RunRecorder | None = None
    finished: bool = False

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
    variants = expand(scenario)
    console = Console(stderr=True)
    campaign = campaign_name(out, scenario.name, utc_now())
    folder = out / scenario.name / campaign
    stop = threading.Event()
    with _sigterm_as_interrupt():
        try:
            for point in _points(variants):
                _run_point(point, scenario.name, campaign, out, console, quiet, build, stop)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(_what_is_kept(folder)) from None
    show(folder)
    return 0


def _points(variants: Sequence[Variant]) -> Iterator[list[Variant]]:
    """The variants of one point of the sweep side by side: those are the arms that take turns."""
    for _, group in itertools.groupby(variants, key=lambda variant: variant.point):
        yield list(group)


def _what_is_kept(folder: Path) -> str:
    return f"what was measured so far is in {folder}" if folder.exists() else "nothing had been measured yet"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, where signals can be set (the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_point(
    variants: list[Variant],
    name: str,
    campaign: str,
    out: Path,
    console: Console,
    quiet: bool,
    build: Build,
    stop: threading.Event,
) -> None:
    arms: list[Arm] = []
    try:
        arms += (_prepare(variant, build, stop) for variant in variants)
        interleaving = _interleaving(arms)
        with RunProgress(console, [arm.label for arm in arms], [arm.steps for arm in arms], quiet) as progress:
            turnstile = _turnstile(arms) if interleaving == "step" else None
            for number, arm in enumerate(arms):
                pass_turn = turnstile.lane(number).finished if turnstile else lambda step: None
                folder = RunFolder.create(out, name, campaign, arm.variant.name or None)
                _open_books(arm, folder, name, campaign, interleaving)
                arm.recorder = RunRecorder(folder, arm.tracer, progress.listener(number), pass_turn)
            asyncio.run(_alternate(arms, turnstile) if turnstile else _one_by_one(arms))
            for arm in arms:
                _save_policy(arm)
    except BaseException as error:
        stop.set()
        _close_books(arms, error)
        raise
    finally:
        for arm in arms:
            arm.parts.close()


def _prepare(variant: Variant, build: Build, stop: threading.Event) -> Arm:
    clock = PausableClock()
    clock.resume()
    tracer = RecordingTracer(clock)
    parts = build(variant.scenario, tracer, stop.is_set)
    clock.pause()
    return Arm(variant, clock, tracer, parts)


def _interleaving(arms: Sequence[Arm]) -> str | None:
    """How the arms take turns: by ``step`` where all are synchronous, else by ``run``; None for a single arm."""
    if len(arms) == 1:
        return None
    return "step" if all(arm.parts.plan.max_lag == 0 for arm in arms) else "run"


def _turnstile(arms: Sequence[Arm]) -> Turnstile:
    order = alternating_order(len(arms), [arm.steps for arm in arms], arms[0].variant.scenario.seed)
    return Turnstile(order, [arm.clock for arm in arms])


async def _alternate(arms: Sequence[Arm], turnstile: Turnstile) -> None:
    """Run all arms at once, one training step each in turn."""

    async def when_let_in(number: int, arm: Arm) -> None:
        pace = turnstile.lane(number)
        await pace.admit(0)
        await _run_arm(arm, pace)

    await asyncio.gather(*(when_let_in(number, arm) for number, arm in enumerate(arms)))


async def _one_by_one(arms: Sequence[Arm]) -> None:
    """Run one arm after the other, in an order drawn from the seed."""
    order = random.Random(arms[0].variant.scenario.seed).sample(arms, len(arms))
    for arm in order:
        arm.clock.resume()
        await _run_arm(arm, FullSpeed())
        arm.clock.pause()


async def _run_arm(arm: Arm, pace: Pace) -> None:
    assert arm.recorder is not None
    parts = arm.parts
    arm.recorder.loop_starts(parts.lanes)
    await run_loop(parts.generators, parts.scorers, parts.learner, parts.plan, arm.tracer, arm.recorder, pace)
    arm.recorder.loop_ends()


def _save_policy(arm: Arm) -> None:
    assert arm.recorder is not None
    if arm.parts.save_policy is not None:
        arm.clock.resume()
        arm.parts.save_policy(arm.recorder.folder.folder / POLICY)
        arm.clock.pause()
    arm.recorder.folder.append_spans(arm.tracer.drain())
    arm.recorder.folder.finish("completed", None, arm.recorder.outcome())
    arm.finished = True


def _open_books(arm: Arm, folder: RunFolder, name: str, campaign: str, interleaving: str | None) -> None:
    code = code_state()
    folder.write_scenario(resolved_yaml(arm.variant.scenario))
    folder.write_manifest(
        Manifest(
            scenario=name,
            campaign=campaign,
            started_at=utc_now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            arm=arm.variant.arm,
            point=arm.variant.point,
            startup_s=arm.clock() / 1e9,
            seed=arm.variant.scenario.seed,
            interleaving=interleaving,
            versions=dict(package_versions()),
            machine=machine_facts(),
            threads=arm.parts.threads,
            commit=code.commit,
            dirty=code.dirty,
            parameters=arm.parts.num_parameters,
        )
    )


def _close_books(arms: Sequence[Arm], error: BaseException) -> None:
    """Say in every folder how its run ended; what was flushed stays readable."""
    interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | Interrupted)
    status = "interrupted" if interrupted else "failed"
    for arm in arms:
        if arm.recorder is None or arm.finished:
            continue
        arm.recorder.folder.append_spans(arm.tracer.drain())
        arm.recorder.folder.finish(status, None if interrupted else str(error), arm.recorder.outcome())
