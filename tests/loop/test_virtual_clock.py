"""The event loop on a virtual clock: time is exact, and waiting for nothing is an error."""

import asyncio

import pytest

from harness.sim.clock import Deadlock, run_virtual
from harness.trace import RecordingTracer, Span, Stage


def test_sleeping_an_hour_takes_no_time_and_the_clock_says_so() -> None:
    async def main(tracer: RecordingTracer) -> float:
        await asyncio.sleep(3600)
        await asyncio.gather(asyncio.sleep(5), asyncio.sleep(7))
        return asyncio.get_running_loop().time()

    assert run_virtual(main)[0] == 3607.0  # 3600 + max(5, 7)


def test_timers_longer_than_asyncio_waits_at_a_time_are_kept() -> None:
    async def main(tracer: RecordingTracer) -> float:
        await asyncio.sleep(10 * 24 * 3600)  # asyncio polls at least once a day
        return asyncio.get_running_loop().time()

    assert run_virtual(main)[0] == 864000.0


def test_spans_carry_virtual_time() -> None:
    async def main(tracer: RecordingTracer) -> None:
        await asyncio.sleep(1)
        with tracer.span("learner", Stage.UPDATE, step=4, version=4):
            await asyncio.sleep(0.25)

    tracer = run_virtual(main)[1]
    assert tracer.drain() == [Span("learner", Stage.UPDATE, 1_000_000_000, 1_250_000_000, 4, 4)]
    assert tracer.drain() == []


def test_a_deadlock_says_who_waits_for_what_since_when() -> None:
    async def main(tracer: RecordingTracer) -> None:
        await asyncio.sleep(2)
        with tracer.span("learner", Stage.WAIT_FOR_BATCH, step=3):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match=r"learner: wait_for_batch for step 3 since 2 s \(0 s\)"):
        run_virtual(main)


def test_errors_of_the_coroutine_pass_through() -> None:
    async def main(tracer: RecordingTracer) -> None:
        await asyncio.sleep(1)
        raise RuntimeError("from inside")

    with pytest.raises(RuntimeError, match="from inside"):
        run_virtual(main)
