"""The event loop on a virtual clock: time is exact, order is that of asking, and waiting for nothing is an error."""

import asyncio
import contextvars
import gc
import math
import os
import pickle
import re
import subprocess
import sys

import pytest

from harness.core.trace import OpenSpan, RecordingTracer, Span, Stage
from harness.simulate.clock import Deadlock, VirtualClockLoop, run_virtual
from tests.loop.conftest import simulate_run


def elapsed() -> float:
    return asyncio.get_running_loop().time()


# ---- time


def test_sleeping_ten_days_takes_no_time_and_the_clock_says_so() -> None:
    async def main(tracer: RecordingTracer) -> float:
        await asyncio.sleep(10 * 24 * 3600)  # asyncio's own loops poll at least once a day
        await asyncio.gather(asyncio.sleep(5), asyncio.sleep(7))
        return elapsed()

    assert run_virtual(main)[0] == 864007.0  # 864000 + max(5, 7)


def test_decimals_add_up_as_they_do_on_paper() -> None:
    async def main(tracer: RecordingTracer) -> tuple[list[str], float]:
        order: list[str] = []

        async def thrice() -> None:
            for _ in range(3):
                await asyncio.sleep(0.1)
            order.append("three times 0.1")  # 0.30000000000000004 in floating point

        async def once() -> None:
            await asyncio.sleep(0.3)
            order.append("0.3")

        await asyncio.gather(thrice(), once())
        return order, elapsed()

    # Both at 0.3 s, so the timer that was set first comes first.
    assert run_virtual(main)[0] == (["0.3", "three times 0.1"], 0.3)


def test_spans_carry_virtual_time() -> None:
    async def main(tracer: RecordingTracer) -> None:
        await asyncio.sleep(1)
        with tracer.span("learner", Stage.UPDATE, step=4, version=4):
            await asyncio.sleep(0.25)

    tracer = run_virtual(main)[1]
    assert tracer.drain() == [Span("learner", Stage.UPDATE, 1_000_000_000, 1_250_000_000, 4, 4)]
    assert tracer.drain() == []


def test_a_plain_call_can_take_time_and_what_falls_due_meanwhile_comes_late() -> None:
    async def main(tracer: RecordingTracer) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)

        async def wake(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, elapsed()))

        async def bookkeeping() -> None:
            await asyncio.sleep(1)
            with pytest.raises(ValueError, match="took -1 s, must be at least 0"):
                loop.block(-1)
            loop.block(2.5)
            seen.append(("booked", elapsed()))

        await asyncio.gather(wake("late", 3), wake("first late", 2), wake("in time", 4), bookkeeping())
        return seen

    # 1 + 2.5 = 3.5, when those of 2 and 3 s are due, in that order
    assert run_virtual(main)[0] == [("booked", 3.5), ("first late", 3.5), ("late", 3.5), ("in time", 4.0)]


# ---- order


def test_what_is_due_at_one_time_comes_in_the_order_of_asking() -> None:
    order: list[str] = []

    async def main(tracer: RecordingTracer) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2, order.append, "2 s, first")
        loop.call_at(2.0, order.append, "2 s, second")
        loop.call_later(1, order.append, "1 s")
        loop.call_later(1, loop.call_later, 1, order.append, "2 s, asked for at 1 s")
        loop.call_later(2, order.append, "2 s, third")
        loop.call_soon(order.append, "now, first")
        loop.call_later(0, order.append, "now, second")
        loop.call_at(-5, order.append, "now, third")
        loop.call_soon_threadsafe(order.append, "now, fourth")
        await asyncio.sleep(3)

    run_virtual(main)
    assert order == [
        *(f"now, {place}" for place in ("first", "second", "third", "fourth")),
        "1 s",
        *(f"2 s, {place}" for place in ("first", "second", "third")),
        "2 s, asked for at 1 s",
    ]


def test_a_set_of_tasks_has_the_same_order_in_every_process() -> None:
    async def main(tracer: RecordingTracer) -> list[str]:
        ended: list[str] = []

        async def lane(name: str) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(name)

        async def fails() -> None:
            await asyncio.sleep(1)
            raise ValueError

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:  # keeps its tasks in a set, and cancels them one by one
                for number in range(20):
                    group.create_task(lane(f"lane{number}"))
                group.create_task(fails())

        with pytest.raises(ExceptionGroup):
            await all_of_them()
        return ended

    ended = run_virtual(main)[0]
    assert sorted(ended) == sorted(f"lane{number}" for number in range(20))
    for _ in range(5):
        kept = [object() for _ in range(1000)]  # other addresses
        assert run_virtual(main)[0] == ended
        del kept


def test_what_is_cancelled_or_infinitely_far_is_never_called() -> None:
    async def main(tracer: RecordingTracer) -> float:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(1, pytest.fail, "was cancelled")
        assert (timer.when(), timer.cancelled()) == (1.0, False)
        timer.cancel()
        assert timer.cancelled()
        loop.call_soon(pytest.fail, "was cancelled").cancel()
        loop.call_later(math.inf, pytest.fail, "never comes")
        loop.call_at(math.inf, pytest.fail, "never comes")
        await asyncio.sleep(2)
        return elapsed()

    assert run_virtual(main)[0] == 2.0


def test_a_duration_that_is_no_number_is_an_error() -> None:
    async def main(tracer: RecordingTracer) -> None:
        await asyncio.sleep(math.nan)

    with pytest.raises(ValueError, match="NaN"):
        run_virtual(main)


HASHED = """
import hashlib
from harness.scenario.load import load_scenario
from harness.simulate.cost_model import Draw
from harness.simulate.machine import load_machine
from harness.simulate.simulated_run import simulate_run
changes = ["arms={}", "max_lag=2", "lag_control=drop", "steps=6", "placement.generator.count=2", "blocks=1"]
run = simulate_run(load_scenario("async_lag_sweep", changes), load_machine("cpu-2-cores"), draw=Draw(3))
told = f"{len(run.spans)} {hashlib.sha256(repr((run.spans, run.seconds, run.ledger)).encode()).hexdigest()}"
"""


def test_a_run_is_the_same_in_every_process_whatever_hashes_are() -> None:
    here: dict[str, str] = {}
    exec(HASHED, here)
    assert int(here["told"].split()[0]) > 100
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = [sys.executable, "-c", f"{HASHED}print(told)"]
    assert subprocess.check_output(there, env=environment, text=True).strip() == here["told"]


# ---- asyncio on it


def test_what_asyncio_builds_of_timers_works() -> None:
    async def main(tracer: RecordingTracer) -> list[object]:
        seen: list[object] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await asyncio.sleep(9)
        seen.append(elapsed())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(9), 1)
        seen.append(elapsed())
        done, pending = await asyncio.wait(
            [asyncio.ensure_future(asyncio.sleep(seconds, seconds)) for seconds in (1, 3)], timeout=2
        )
        seen += [elapsed(), [task.result() for task in done]]
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(4), name="four")
            group.create_task(asyncio.sleep(5))
        seen.append(elapsed())
        for task in pending:
            seen.append(await task)
        return seen

    # 1.5; + 1 = 2.5; + 2 = 4.5 with the one of 1 s done; + 5 = 9.5
    assert run_virtual(main)[0] == [1.5, 2.5, 4.5, [1], 9.5, 3]


def test_each_task_keeps_its_context() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")

    async def main(tracer: RecordingTracer) -> list[str]:
        async def lane(mine: str) -> str:
            name.set(mine)
            await asyncio.sleep(1)
            return name.get()

        return [*await asyncio.gather(lane("a"), lane("b")), name.get()]

    assert run_virtual(main)[0] == ["a", "b", "nobody"]


def test_the_error_of_a_plain_callback_ends_the_run() -> None:
    async def main(tracer: RecordingTracer) -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(5)

    with pytest.raises(ZeroDivisionError):
        run_virtual(main)


def test_a_loop_runs_alone_and_not_once_it_is_closed() -> None:
    loop, other = VirtualClockLoop(), VirtualClockLoop()

    async def inner() -> None:
        assert loop.is_running()
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="another loop is running"):
            other.run_forever()
        other.close()

    loop.run_until_complete(inner())
    loop.run_until_complete(asyncio.sleep(2))  # the time goes on
    assert (loop.time(), loop.is_running()) == (3.0, False)
    loop.call_later(1, loop.stop)
    loop.run_forever()
    assert loop.time() == 4.0
    loop.close()
    loop.close()
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_forever()


# ---- what is left at the end


def test_what_has_not_ended_is_cancelled_and_cleans_up_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[tuple[str, float]] = []

    async def background(name: str, cleanup_s: float = 0.0) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(cleanup_s)
            ended.append((name, elapsed()))

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    tasks: list[asyncio.Task[None]] = []

    async def main(tracer: RecordingTracer) -> None:
        tasks.extend(map(asyncio.ensure_future, [background("at once"), background("slowly", 2.0), stubborn()]))
        await asyncio.sleep(1)

    run_virtual(main)
    assert ended == [("at once", 1.0), ("slowly", 3.0)]
    tasks.clear()
    gc.collect()
    assert caplog.records == []


# ---- deadlock


def test_a_deadlock_says_who_waits_for_whom_since_when() -> None:
    async def main(tracer: RecordingTracer) -> None:
        async def wait(after_s: float, lane: str, stage: Stage, version: int) -> None:
            await asyncio.sleep(after_s)
            with tracer.span(lane, stage, 3, version):
                await asyncio.get_running_loop().create_future()

        with tracer.span("learner", Stage.UPDATE, 2, 2):
            await asyncio.sleep(1.0025)
        await asyncio.gather(
            wait(1, "generator0", Stage.WAIT_FOR_WEIGHTS, 3),
            wait(0, "learner", Stage.WAIT_FOR_BATCH, 3),
            wait(0, "scorer", Stage.WAIT_FOR_ROLLOUTS, -1),
        )

    with pytest.raises(Deadlock) as caught:
        run_virtual(main)
    first, culprit, *lines = str(caught.value).splitlines()
    assert ("at 2.002500 s" in first, culprit) == (True, "  every lane waits: a deadlock")
    chain = [re.findall(r"\w+(?= waits)|(?<=as )\w+|(?<=in )\w+", line) for line in lines[:3]]
    assert chain == [
        ["learner", "scorer", "wait_for_rollouts"],
        ["scorer", "generator0", "wait_for_weights"],
        ["generator0", "learner", "wait_for_batch"],
    ]
    assert [re.findall(r"\d\.\d+", line) for line in lines[3:]] == [
        ["1.002500", "1.000000"],
        ["1.002500", "1.000000"],
        ["2.002500", "0.000000"],
    ]
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.spans == (Span("learner", Stage.UPDATE, 0, 1_002_500_000, 2, 2),)
    assert again.waiting[0] == OpenSpan("learner", Stage.WAIT_FOR_BATCH, 1_002_500_000, 3, 3)


def test_a_part_that_is_stuck_in_a_stage_is_named_and_so_is_everyone_who_waits_for_it() -> None:
    with pytest.raises(Deadlock) as caught:
        simulate_run(generate=[lambda step: math.inf if step == 1 else 8], max_lag=0)
    # publish 1, generate 9, score 10, update 15, publish 16: there the second batch begins and does not end
    assert str(caught.value).splitlines()[1] == "  generator has been in generate for 0.0 s: everyone else waits for it"
    assert [(span.stage, span.start_ns / 1e9, span.step) for span in caught.value.waiting] == [
        (Stage.WAIT_FOR_ROLLOUTS, 10, 0),
        (Stage.GENERATE, 16, 1),
        (Stage.WAIT_FOR_BATCH, 16, 1),
    ]


def test_a_deadlock_without_a_span_says_so() -> None:
    async def main(tracer: RecordingTracer) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="no stage and no wait is under way"):
        run_virtual(main)
