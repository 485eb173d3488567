"""The speed probe: what it keeps, and that it works while every arm's clock stands still."""

import asyncio
import itertools

from harness.core.types import Metric
from harness.probes.clock import PausableClock
from harness.probes.machine_speed import SpeedProbe
from harness.results.rows import SPEED_PROBE
from harness.run.interleaving import Alone, RoundRobinSchedule


def test_it_tells_the_seconds_of_each_kind_of_work_and_keeps_the_mean_of_all() -> None:
    # a clock whose n-th reading is n squared; a measurement reads it 8 times: before, 3 x (start, end), after
    readings = (float(number * number) for number in itertools.count())
    probe = SpeedProbe(lambda: next(readings))
    # readings 0 to 7: product 2^2 - 1^2, copy 4^2 - 3^2, calls 6^2 - 5^2, all 7^2 - 0
    assert probe.measure() == {"product": 3.0, "copy": 7.0, "calls": 11.0, "all": 49.0}
    assert probe.measure()["all"] == 15**2 - 8**2
    assert probe.drain() == {SPEED_PROBE: Metric((49.0 + 161.0) / 2, count=2)}
    assert probe.drain() == {}


def test_real_work_takes_time() -> None:
    assert all(seconds > 0 for seconds in SpeedProbe().measure().values())


def test_between_turns_no_clock_runs() -> None:
    """The probe before was taken once before a block; this one runs through it, at no arm's cost."""
    clocks = [PausableClock(), PausableClock()]
    seen: list[tuple[int, bool, bool]] = []

    def between(arm: int) -> None:
        seen.append((arm, clocks[0].is_running, clocks[1].is_running))

    schedule = RoundRobinSchedule([(0, 0), (1, 0), (1, 1), (0, 1)], clocks, between)
    schedule.start()
    asyncio.run(schedule.acquire(0, 0))
    for arm, step in ((0, 0), (1, 0), (1, 1)):
        schedule.advance(arm, step)
    assert seen == [(0, False, False), (1, False, False), (1, False, False)]
    assert [clock.is_running for clock in clocks] == [True, False]


def test_a_run_alone_stands_still_too_once_before_each_batch_but_the_first() -> None:
    clock = PausableClock()
    seen: list[bool] = []
    alone = Alone(clock, lambda: seen.append(clock.is_running), is_busy=lambda step: step == 9)
    alone.start()

    async def main() -> list[int]:
        counts = []
        for step in (7, 8, 8, 9, 10):  # 7: where a run goes on that was interrupted; 8 twice: groups sampled again
            await alone.acquire(step)
            counts.append(len(seen))
        return counts

    assert asyncio.run(main()) == [0, 1, 1, 1, 2]
    assert seen == [False, False]
    assert clock.is_running
