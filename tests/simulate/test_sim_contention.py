"""Processor sharing on cores, and devices of one's own; every time is worked out by hand."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.simulate.clock import run_virtual
from harness.simulate.timeline import OwnDevice, Piece, SharedCores


def run_at(place, *jobs):
    """Run jobs of (start in seconds, thread, pieces); return their times and when each was heard of."""

    async def one(start, thread, pieces):
        await asyncio.sleep(start)
        times = await place.run(thread, [Piece(*piece) for piece in pieces])
        return times, asyncio.get_running_loop().time()

    async def main(tracer):
        return await asyncio.gather(*(one(*job) for job in jobs))

    answers, _ = run_virtual(main)
    return answers


def flat(times):
    return [moment for pair in times for moment in pair]


@pytest.mark.parametrize("place", [OwnDevice(), SharedCores(2, 0.5)])
def test_alone_a_call_takes_just_its_seconds(place):
    ((times, heard),) = run_at(place, (0.25, "a", [(0.1, 0), (2.0,), (0.0,), (0.4, 0)]))
    # 0.25 + 0.1 = 0.35, + 2 = 2.35, + 0, + 0.4 = 2.75
    assert flat(times) == pytest.approx([0.25, 0.35, 0.35, 2.35, 2.35, 2.35, 2.35, 2.75], abs=1e-12)
    assert heard == pytest.approx(2.75, abs=1e-12)


@pytest.mark.parametrize(
    ("cores", "slowdown", "jobs", "expected"),
    [
        # two at work: until 1 s a does 1 of its 2 s; then both go at 1 / 1.25 = 0.8: a needs 1.25 s for the rest, until
        # 2.25 s; b has done 1.25 x 0.8 = 1 s by then, and does the other one alone, until 3.25 s
        (2, 0.25, [(0, "a", [(2.0,)]), (1, "b", [(2.0,)])], [[0, 2.25], [1, 3.25]]),
        # 4 threads on 2 cores: both at 1/2, so a is done after 2 s; b has done 1 s and takes 2 s more alone
        (2, 0.0, [(0, "a", [(1.0, 2)]), (0, "b", [(3.0, 2)])], [[0, 2], [0, 4]]),
        (1, 1.0, [(0, "a", [(2.0,)]), (0, "b", [(5.0, 0), (1.0,)])], [[0, 2], [0, 5, 5, 6]]),  # waiting slows nobody
        # a brief piece slows nobody down; beside one other: 3 cores wanted of 2, and 1 / 1.5: at 4/9, so 0.5 s take
        # 1.125 s; the second half: until 3 s 0.875 x 4/9 = 0.3889 of its 0.5 s, the rest alone
        (2, 0.5, [(0, "a", [(3.0,)]), (1, "b", [(0.5, 2, True), (0.5, 2, True)])],
         [[0, 3], [1, 2.125, 2.125, 3 + 0.5 - 0.875 * 4 / 9]]),
    ],
)  # fmt: skip
def test_who_shares_cores_goes_on_as_fast_as_the_others_leave(cores, slowdown, jobs, expected):
    answers = run_at(SharedCores(cores, slowdown), *jobs)
    assert [flat(times) for times, _ in answers] == [pytest.approx(each, abs=1e-9) for each in expected]


@pytest.mark.parametrize("place", [OwnDevice(), SharedCores(4, 0.5)])
def test_calls_of_one_thread_take_turns(place):
    (first, _), (second, heard) = run_at(place, (0, "parts", [(2.0,)]), (1, "parts", [(3.0,)]))
    assert flat(first) == pytest.approx([0, 2], abs=1e-9)
    assert flat(second) == pytest.approx([2, 5], abs=1e-9)
    assert heard == pytest.approx(5, abs=1e-9)


def test_what_ends_while_the_driver_is_held_up_frees_the_cores_at_its_own_time():
    place = SharedCores(2, 1.0)

    async def main(tracer):
        loop = asyncio.get_running_loop()
        short = asyncio.ensure_future(place.run("a", [Piece(1.0)]))
        long = asyncio.ensure_future(place.run("b", [Piece(3.0)]))
        await asyncio.sleep(0.5)
        loop.block(9.5)
        return await short, await long, loop.time()

    (short, long, heard), _ = run_virtual(main)
    # both at 1/2 until 2 s, where the short one has done its second; the long one then has 2 of its 3 s left
    assert (flat(short), flat(long)) == (pytest.approx([0, 2], abs=1e-9), pytest.approx([0, 4], abs=1e-9))
    assert heard == pytest.approx(10.0, abs=1e-9)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 3)), min_size=1, max_size=6),
    st.floats(0, 2),
    st.integers(1, 4),
)
def test_nobody_is_faster_for_company_and_no_work_is_lost(jobs, slowdown, cores):
    answers = run_at(
        SharedCores(cores, slowdown), *((start, f"t{i}", [(work,)]) for i, (start, work) in enumerate(jobs))
    )
    for (start, work), (times, _) in zip(jobs, answers, strict=True):
        assert times[0][0] == pytest.approx(start, abs=1e-9)
        assert times[0][1] - times[0][0] >= work - 1e-9
    if slowdown == 0:  # the cores do all the work there is: nothing ends later than if one core did it in a row
        latest = max(start for start, _ in jobs) + sum(work for _, work in jobs)
        assert max(times[0][1] for times, _ in answers) <= latest + 1e-9
    if len(jobs) == 1:
        assert answers[0][0][0][1] == pytest.approx(sum(jobs[0]), abs=1e-9)
