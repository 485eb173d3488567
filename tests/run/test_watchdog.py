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
from harness.run.watchdog import likely_culprit, open_lines, stack_dumps, waiting_chain, watch
from harness.simulate.clock import run_virtual

S = 1_000_000_000


class Watched:
    """What happened to a watched run: what was said, and when it was stopped."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.error: str | None = None
        self.stopped_at_s: float | None = None
        self.dumped_at_s: list[float] = []

    def dumps(self) -> str:
        self.dumped_at_s.append(asyncio.get_running_loop().time())
        return "the stacks"

    async def until_stopped(self, tracer: RecordingTracer, stall_after_s: float, poll_s: float) -> None:
        try:
            await watch(tracer, stall_after_s, self.dumps, self.said.append, poll_s)
        except RunStopped as error:
            self.error, self.stopped_at_s = str(error), asyncio.get_running_loop().time()


def watched(
    work: Callable[[RecordingTracer], Coroutine[Any, Any, None]],
    stall_after_s: float,
    poll_s: float = 1.0,
    clock: Callable[[], int] | None = None,
) -> Watched:
    """Run ``work`` beside the watchdog on the virtual clock until one of them has ended."""
    result = Watched()

    async def main(tracer: RecordingTracer) -> None:
        traced = RecordingTracer(clock) if clock else tracer
        tasks = [asyncio.ensure_future(work(traced))]
        tasks.append(asyncio.ensure_future(result.until_stopped(traced, stall_after_s, poll_s)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run_virtual(main)
    return result


def stages_of(seconds: list[float]) -> Callable[[RecordingTracer], Coroutine[Any, Any, None]]:
    async def work(tracer: RecordingTracer) -> None:
        for step, duration_s in enumerate(seconds):
            with tracer.span("learner", Stage.UPDATE, step, step):
                await asyncio.sleep(duration_s)

    return work


def test_a_run_that_moves_is_left_alone() -> None:
    # Each stage ends within 10 s of the one before, though 36 s pass in all.
    result = watched(stages_of([9.0, 9.0, 9.0, 9.0]), stall_after_s=10.0)
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
    result = watched(work, stall_after_s=12.0, poll_s=0.25)
    headline = (
        "no stage has ended for 12.0 s (faults.stall_after_s is 12): generator has been in generate for 12.1 s: "
        "everyone else waits for it"
    )
    assert result.error == headline
    assert result.stopped_at_s == 15.0
    assert result.dumped_at_s == [15.0]
    assert result.said == [
        headline + "\n"
        "generator: generate for step 7 since 2.9 s (12.1 s so far), at policy version 6\n"
        "scorer: wait_for_rollouts for step 7 since 2.9 s (12.1 s so far), waits for a Generator\n"
        "learner: wait_for_batch for step 7 since 3.4 s (11.6 s so far), at policy version 7, waits for a Scorer\n"
        "the stacks"
    ]


def test_a_stall_is_counted_from_the_last_end_and_not_from_the_last_beginning() -> None:
    async def work(tracer: RecordingTracer) -> None:
        with tracer.span("generator", Stage.GENERATE, 0, 0):
            for version in range(100):  # waits begin all the time; nothing ends
                tracer.span("learner", Stage.WAIT_FOR_BATCH, version).__enter__()
                await asyncio.sleep(1.0)

    assert watched(work, stall_after_s=5.0).stopped_at_s == 5.0


def test_time_in_which_the_clock_stands_still_is_no_stall() -> None:
    def paused_from_2_to_100_s() -> int:
        now_s = asyncio.get_running_loop().time()
        return round(S * (now_s if now_s < 2 else max(2.0, now_s - 98)))

    # 3 s on a clock that has run for 2 s when it stops, and for 3 s one second after it goes on at 100 s.
    result = watched(stages_of([1000.0]), stall_after_s=3.0, clock=paused_from_2_to_100_s)
    assert result.stopped_at_s == 101.0


def test_spans_that_other_processes_have_recorded_count_as_ended() -> None:
    async def work(tracer: RecordingTracer) -> None:
        with tracer.span("generator", Stage.WAIT_FOR_WEIGHTS, 0):
            await asyncio.sleep(4.5)
            tracer.record_elsewhere([Span("scorer", Stage.SCORE, 0, 4 * S, 0, 0)])
            tracer.drain()  # written to the run's folder: it has ended all the same
            await asyncio.sleep(1000)

    # Recorded at 4.5 s and seen at 5 s; 6 s later is 11 s.
    assert watched(work, stall_after_s=6.0).stopped_at_s == 11.0


def test_one_stage_that_hangs_is_a_stall_though_others_go_on() -> None:
    async def work(tracer: RecordingTracer) -> None:
        with tracer.underway("generator1", Stage.GENERATE, 7):
            while True:
                with tracer.span("generator0", Stage.GENERATE):
                    await asyncio.sleep(1.5)

    result = watched(work, stall_after_s=6.0)
    assert result.stopped_at_s == 6.0
    assert result.error == (
        "a stage has not ended while others went on (faults.stall_after_s is 6): "
        "generator1 has been in generate for 6.0 s"
    )


def test_open_spans_are_told_longest_first_and_without_what_they_lack() -> None:
    spans = [
        OpenSpan("b", Stage.WAIT_FOR_ROOM, 2 * S, -1, 3),
        OpenSpan("a", Stage.WAIT_FOR_WEIGHTS, 2 * S, 4, -1),
        OpenSpan("driver", Stage.STARTUP, 0, -1, -1),
    ]
    assert open_lines(spans, 14_260_000_000) == [
        "driver: startup since 0.0 s (14.3 s so far)",
        "a: wait_for_weights for step 4 since 2.0 s (12.3 s so far), waits for the Learner",
        "b: wait_for_room since 2.0 s (12.3 s so far), at policy version 3, waits for the Learner",
    ]


def test_the_culprits_are_those_who_do_not_wait() -> None:
    waits = [OpenSpan("scorer", Stage.WAIT_FOR_ROLLOUTS, 0, 1, -1), OpenSpan("learner", Stage.WAIT_FOR_BATCH, 0, 1, 1)]
    generates = OpenSpan("generator.1", Stage.GENERATE, S, 1, 1)
    loads = OpenSpan("generator.0", Stage.WEIGHT_TRANSFER, 4 * S, 1, 1)
    now_ns = 10 * S
    assert likely_culprit(waits, now_ns) == "every lane waits: a deadlock"
    assert likely_culprit([*waits, generates], now_ns) == (
        "generator.1 has been in generate for 9.0 s: everyone else waits for it"
    )
    assert likely_culprit([loads, *waits, generates], now_ns) == (
        "generator.1 has been in generate for 9.0 s and generator.0 has been in weight_transfer for 6.0 s: "
        "everyone else waits for them"
    )
    assert likely_culprit([loads], now_ns) == "generator.0 has been in weight_transfer for 6.0 s"
    assert likely_culprit([], now_ns) == "no stage and no wait is under way: the loop itself does not go on"


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


@pytest.fixture
def sleeper(tmp_path: Path) -> Any:
    """A process that sleeps in a function called ``waits_for_ever``."""
    program = tmp_path / "sleeper.py"
    program.write_text(SLEEPER)
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "here\n"
        yield process
        process.kill()
        process.wait()


def script(folder: Path, body: str) -> Path:
    """Write a program that stands in for py-spy."""
    file = folder / "spy"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o700)
    return file


def test_stacks_of_a_process_and_of_this_one(sleeper: "subprocess.Popen[str]") -> None:
    dumps = stack_dumps({"generator": sleeper.pid, "driver": os.getpid()}, limit_s=60.0)
    if "py-spy may not look into it" in dumps:
        pytest.skip("py-spy is not permitted to read other processes here")
    sleeping, own = dumps.split(f"\nstacks of driver (process {os.getpid()}): \n")
    assert sleeping.splitlines()[0] == f"stacks of generator (process {sleeper.pid}): "
    assert sleeping.splitlines()[1].startswith(f"Thread {sleeper.pid} ")
    assert [line.strip() for line in sleeping.splitlines()[2:]] == [
        "waits_for_ever (sleeper.py:4)",
        "<module> (sleeper.py:5)",
    ]
    assert "test_stacks_of_a_process_and_of_this_one" in own
    assert "Process " not in dumps


def test_a_process_that_has_ended_is_told_so() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert stack_dumps({"scorer": process.pid}) == f"stacks of scorer (process {process.pid}): the process has ended"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "echo 'Permission Denied: Try running again with elevated permissions by going sudo' >&2; exit 1",
            "py-spy may not look into it; allow it with `sysctl kernel.yama.ptrace_scope=0` as root (in a container: "
            "--cap-add SYS_PTRACE)",
        ),
        (
            "echo 'Error: Failed to suspend process' >&2; echo 'Reason: EPERM: Operation not permitted' >&2; exit 1",
            "py-spy may not look into it; allow it with `sysctl kernel.yama.ptrace_scope=0` as root (in a container: "
            "--cap-add SYS_PTRACE)",
        ),
        (
            "echo 'Error: Failed to find python version from target process' >&2; echo more >&2; exit 1",
            "py-spy failed: Error: Failed to find python version from target process",
        ),
        ("exit 1", "py-spy failed: no reason given"),
        ("exec sleep 600", "py-spy was not done within 0.1 s"),
    ],
    ids=["permission", "ptrace", "no python", "silent", "slow"],
)
def test_stacks_that_cannot_be_had_are_told_why(tmp_path: Path, body: str, says: str) -> None:
    spy, pid = script(tmp_path, body), os.getpid()
    limit_s = 0.1 if "sleep" in body else 600.0
    assert stack_dumps({"learner": pid}, spy, limit_s) == f"stacks of learner (process {pid}): {says}"


def test_an_environment_without_py_spy_is_told_so(tmp_path: Path) -> None:
    pid = os.getpid()
    assert stack_dumps({"learner": pid}, tmp_path / "spy") == (
        f"stacks of learner (process {pid}): there is no {tmp_path / 'spy'}; install py-spy"
    )
