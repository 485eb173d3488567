"""Arms alternate step by step in a seeded ABBA order, and only the arm whose turn it is uses time."""

import asyncio
import time

import pytest

from harness.probes.clock import PausableClock
from harness.run.interleaving import RoundRobinSchedule, alternating_order, order_in_block


def test_each_round_gives_every_arm_one_step_and_the_next_runs_it_backwards() -> None:
    order = alternating_order(3, [4, 4, 4], seed=1)
    rounds = [order[start : start + 3] for start in range(0, 12, 3)]
    assert [{step for _, step in one} for one in rounds] == [{0}, {1}, {2}, {3}]
    arms = [[arm for arm, _ in one] for one in rounds]
    assert all(sorted(one) == [0, 1, 2] for one in arms)
    assert [arms[1], arms[3]] == [arms[0][::-1], arms[2][::-1]]
    assert order == alternating_order(3, [4, 4, 4], seed=1)
    assert sorted(alternating_order(2, [1, 3], seed=0)) == [(0, 0), (1, 0), (1, 1), (1, 2)]  # one has fewer steps


def test_arms_of_consecutive_blocks_run_in_mirrored_order() -> None:
    orders = [order_in_block(3, block, seed=4) for block in range(6)]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert [orders[1], orders[3], orders[5]] == [order[::-1] for order in (orders[0], orders[2], orders[4])]
    assert order_in_block(1, 5, seed=4) == [0]


@pytest.mark.parametrize(
    ("order", "drops", "expected"),
    [
        # a run is saved (-1) in its last turn, which is passed on then
        ([(0, 0), (1, 0), (1, 1), (0, 1)], None, [(0, 0), (1, 0), (1, 1), (1, -1), (0, 1), (0, -1)]),
        # the others go on when an arm drops out
        ([(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (0, 2)], (0, 1), [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (1, -1)]),
    ],
)
def test_arms_begin_in_order(
    order: list[tuple[int, int]], drops: tuple[int, int] | None, expected: list[tuple[int, int]]
) -> None:
    story = list[tuple[int, int]]()

    async def arm(schedule: RoundRobinSchedule, number: int) -> None:
        turn = schedule.slot(number)
        for step in [step for arm, step in order if arm == number]:
            await turn.acquire(step)
            story.append((number, step))
            await asyncio.sleep(0)
            if (number, step) == drops:
                return schedule.drop(number)
            turn.finished(step)
        story.append((number, -1))
        turn.leave()

    async def main() -> None:
        schedule = RoundRobinSchedule(order, [PausableClock(), PausableClock()])
        schedule.start()
        await asyncio.gather(arm(schedule, 0), arm(schedule, 1))

    asyncio.run(main())
    assert story == expected


def test_finishing_out_of_turn_is_an_error() -> None:
    schedule = RoundRobinSchedule([(0, 0), (1, 0)], [PausableClock(), PausableClock()])
    with pytest.raises(ValueError, match=r"arm 1 finished step 0 out of turn; expected \(0, 0\)"):
        schedule.advance(1, 0)


def test_a_clock_stands_still_while_another_arm_works() -> None:
    clocks = [PausableClock(), PausableClock()]
    schedule = RoundRobinSchedule([(0, 0), (1, 0)], clocks)
    assert clocks[0]() == clocks[0]() == 0  # nothing runs before the start
    schedule.start()
    assert clocks[1]() == 0
    schedule.advance(0, 0)
    frozen = clocks[0]()
    assert frozen > 0
    while clocks[1]() == 0:
        pass
    assert clocks[0]() == frozen
    schedule.advance(1, 0)
    assert clocks[1]() == clocks[1]() > 0


def test_a_reading_of_the_machines_clock_keeps_its_place_after_later_turns() -> None:
    clock = PausableClock()
    before = time.perf_counter_ns()
    clock.resume()
    first = time.perf_counter_ns()
    clock.pause()
    in_between, first_turn = time.perf_counter_ns(), clock()
    clock.resume()
    second = time.perf_counter_ns()
    clock.pause()
    assert clock.at(before) == 0
    assert 0 <= clock.at(first) <= first_turn
    assert clock.at(in_between) == first_turn
    assert first_turn <= clock.at(second) <= clock()
    assert clock.at(second) - clock.at(first) < second - first or second - first == 0
    assert clock.at(time.perf_counter_ns()) == clock()
