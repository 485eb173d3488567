"""The watchdog: when it stops a run on the virtual clock, what it says, and real stacks of a real process."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import RunStopped
from harness.core.trace import OpenSpan, RecordingTracer, Span, Stage
from harness.run.watchdog import likely_culprit, stack_dumps, waiting_chain, watch
from harness.simulate.clock import run_virtual

S = 1_000_000_000


Work = Callable[[RecordingTracer], Coroutine[Any, Any, None]]


class Watched:
    """What happened to a run beside the watchdog on the virtual clock, until one of them ended."""

    def __init__(self, work: Work, stall_after_s: float, poll_s: float = 1.0, clock: Callable[[], int] | None = None):
        self.said, self.dumped_at_s = list[str](), list[float]()
        self.error: str | None = None
        self.stopped_at_s: float | None = None

        async def watched(tracer: RecordingTracer) -> None:
            try:
                await watch(tracer, stall_after_s, self.dumps, self.said.append, poll_s)
            except RunStopped as error:
                self.error, self.stopped_at_s = str(error), asyncio.get_running_loop().time()

        async def main(tracer: RecordingTracer) -> None:
            traced = RecordingTracer(clock) if clock else tracer
            tasks = [asyncio.ensure_future(each(traced)) for each in (work, watched)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        run_virtual(main)

    def dumps(self) -> str:
        self.dumped_at_s.append(asyncio.get_running_loop().time())
        return "the stacks"


def stages_of(*seconds: float) -> Work:
    async def work(tracer: RecordingTracer) -> None:
        for step, duration_s in enumerate(seconds):
            with tracer.span("learner", Stage.UPDATE, step, step):
                await asyncio.sleep(duration_s)

    return work


def test_a_run_that_moves_is_left_alone() -> None:
    # Each stage ends within 10 s of the one before, though 36 s pass in all.
    result = Watched(stages_of(9.0, 9.0, 9.0, 9.0), stall_after_s=10.0)
    assert (result.said, result.error, result.dumped_at_s) == ([], None, [])


def test_a_stage_that_hangs_is_reported_with_all_that_waits() -> None:
    async def work(tracer: RecordingTracer) -> None:
        await asyncio.sleep(2.4)
        with tracer.span("generator", Stage.GENERATE, 6, 6):
            await asyncio.sleep(0.5)
        with tracer.span("scorer", Stage.WAIT_FOR_ROLLOUTS, 7), tracer.span("generator", Stage.GENERATE, 7, 6):
            await asyncio.sleep(0.5)
            with tracer.span("learner", Stage.WAIT_FOR_BATCH, 7, 7):
                await asyncio.sleep(1000)

    # The last span ends at 2.4 + 0.5 = 2.9 s; the looks are 0.25 s apart, so 3.0 s sees it, and 15.0 s is 12 s later.
    result = Watched(work, stall_after_s=12.0, poll_s=0.25)
    assert (result.stopped_at_s, result.dumped_at_s) == (15.0, [15.0])
    headline, *lines = result.said[0].splitlines()
    assert result.error == headline
    for said in ("12.0 s", "faults.stall_after_s is 12", "generator has been in generate for 12.1 s: everyone else"):
        assert said in headline
    assert lines == [
        "generator: generate for step 7 since 2.9 s (12.1 s so far), at policy version 6",
        "scorer: wait_for_rollouts for step 7 since 2.9 s (12.1 s so far), waits for a Generator",
        "learner: wait_for_batch for step 7 since 3.4 s (11.6 s so far), at policy version 7, waits for a Scorer",
        "the stacks",
    ]


async def begins_waits(tracer: RecordingTracer) -> None:
    with tracer.span("generator", Stage.GENERATE, 0, 0):
        for version in range(100):  # waits begin all the time; nothing ends
            tracer.span("learner", Stage.WAIT_FOR_BATCH, version).__enter__()
            await asyncio.sleep(1.0)


async def hears_of_another_process(tracer: RecordingTracer) -> None:
    with tracer.span("generator", Stage.WAIT_FOR_WEIGHTS, 0):
        await asyncio.sleep(4.5)
        tracer.record_elsewhere([Span("scorer", Stage.SCORE, 0, 4 * S, 0, 0)])
        tracer.drain()  # written to the run's folder: it has ended all the same
        await asyncio.sleep(1000)


async def hangs_beside_another(tracer: RecordingTracer) -> None:
    with tracer.underway("generator1", Stage.GENERATE, 7):
        while True:
            with tracer.span("generator0", Stage.GENERATE):
                await asyncio.sleep(1.5)


def paused_from_2_to_100_s() -> int:
    now_s = asyncio.get_running_loop().time()
    return round(S * (now_s if now_s < 2 else max(2.0, now_s - 98)))


@pytest.mark.parametrize(
    ("work", "stall_after_s", "clock", "stopped_at_s"),
    [
        (begins_waits, 5.0, None, 5.0),  # counted from the last end, not from the last beginning
        # a clock that stands still while another arm works: 2 s before it does, and 1 s after it goes on at 100 s
        (stages_of(1000.0), 3.0, paused_from_2_to_100_s, 101.0),
        (hears_of_another_process, 6.0, None, 11.0),  # recorded at 4.5 s and seen at 5 s
        (hangs_beside_another, 6.0, None, 6.0),
    ],
    ids=["waits begin", "paused", "elsewhere", "one of two"],
)
def test_when_a_stall_is_one(
    work: Work, stall_after_s: float, clock: Callable[[], int] | None, stopped_at_s: float
) -> None:
    result = Watched(work, stall_after_s, clock=clock)
    assert result.stopped_at_s == stopped_at_s
    if work is hangs_beside_another:
        assert "generator1 has been in generate for 6.0 s" in (result.error or "")
        assert "generator0" not in (result.error or "")


def test_the_culprits_are_those_who_do_not_wait() -> None:
    waits = [OpenSpan("scorer", Stage.WAIT_FOR_ROLLOUTS, 0, 1, -1), OpenSpan("learner", Stage.WAIT_FOR_BATCH, 0, 1, 1)]
    generates = OpenSpan("generator.1", Stage.GENERATE, S, 1, 1)
    loads = OpenSpan("generator.0", Stage.WEIGHT_TRANSFER, 4 * S, 1, 1)
    first = "generator.1 has been in generate for 9.0 s"
    second = "generator.0 has been in weight_transfer for 6.0 s"
    for spans, said in (
        (waits, "every lane waits: a deadlock"),
        ([*waits, generates], f"{first}: everyone else waits for it"),
        ([loads, *waits, generates], f"{first} and {second}: everyone else waits for them"),
        ([loads], second),
        ([], "no stage and no wait is under way"),
    ):
        assert likely_culprit(spans, 10 * S).partition(": the loop")[0] == said


def test_waits_are_followed_to_a_circle_to_whoever_is_stuck_or_to_nobody() -> None:
    learner = OpenSpan("learner", Stage.WAIT_FOR_BATCH, 3 * S, 1, 1)
    scorers = [OpenSpan(f"scorer{i}", Stage.WAIT_FOR_ROLLOUTS, (5 - i) * S, 1, -1) for i in range(2)]
    held = [OpenSpan(f"generator{i}", Stage.WAIT_FOR_WEIGHTS, (6 + i) * S, 2, 1) for i in range(3)]
    assert waiting_chain([*held, *scorers, learner]) == [
        "learner waits for a Scorer, such as scorer1, in wait_for_rollouts",
        "scorer1 waits for a Generator, such as generator0, in wait_for_weights",
        "generator0 waits for the Learner, such as learner, in wait_for_batch",
    ]
    stuck = OpenSpan("generator2", Stage.GENERATE, 9 * S, 1, 1)  # began last, and is the only one that works
    assert waiting_chain([*held[:2], stuck, *scorers, learner])[1:] == [
        "scorer1 waits for a Generator, such as generator2, in generate"
    ]
    assert waiting_chain([learner, stuck]) == ["learner waits for a Scorer, and none has anything to do"]
    assert waiting_chain([OpenSpan("learner", Stage.WAIT_FOR_RECORDER, 0, 1, 1)]) == ["learner waits for the recorder"]
    assert waiting_chain([stuck]) == waiting_chain([]) == []


# ---- stacks of real processes

SLEEPER = "import time\ndef waits_for_ever():\n    print('here', flush=True)\n    time.sleep(600)\nwaits_for_ever()\n"


def test_stacks_of_a_process_of_this_one_and_of_one_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    with subprocess.Popen([sys.executable, tmp_path / "sleeper.py"], stdout=subprocess.PIPE, text=True) as sleeper:
        try:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == "here\n"
            dumps = stack_dumps({"generator": sleeper.pid, "driver": os.getpid()}, limit_s=60.0)
        finally:
            sleeper.kill()
    assert stack_dumps({"scorer": sleeper.pid}).endswith(f"(process {sleeper.pid}): the process has ended")
    if "py-spy may not look into it" in dumps:
        pytest.skip("py-spy is not permitted to read other processes here")
    sleeping, own = dumps.split(f"\nstacks of driver (process {os.getpid()}): \n")
    head, thread, *frames = map(str.strip, sleeping.splitlines())
    assert (head, thread.split()[1]) == (f"stacks of generator (process {sleeper.pid}):", str(sleeper.pid))
    assert frames == ["waits_for_ever (sleeper.py:4)", "<module> (sleeper.py:5)"]
    assert "test_stacks_of_a_process_of_this_one" in own
    assert "Process " not in dumps


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1", "--cap-add SYS_PTRACE"),
        ("echo 'Error: first' >&2; echo 'Reason: EPERM: Operation not permitted' >&2; exit 1", "--cap-add SYS_PTRACE"),
        ("echo 'Error: Failed to find python' >&2; echo more >&2; exit 1", "failed: Error: Failed to find python"),
        ("exit 1", "py-spy failed: no reason given"),
        ("exec sleep 600", "py-spy was not done within 0.1 s"),
        (None, "install py-spy"),
    ],
    ids=["permission", "ptrace", "no python", "silent", "slow", "not there"],
)
def test_stacks_that_cannot_be_had_are_told_why(tmp_path: Path, body: str | None, says: str) -> None:
    spy, pid = tmp_path / "spy", os.getpid()
    if body is not None:
        spy.write_text(f"#!/bin/sh\n{body}\n")
        spy.chmod(0o700)
    said = stack_dumps({"learner": pid}, spy, 0.1 if body == "exec sleep 600" else 600.0)
    assert said.startswith(f"stacks of learner (process {pid}): ")
    assert said.endswith((says, f"{says})"))
