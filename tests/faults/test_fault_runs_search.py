"""Drawing, shrinking, searching and the command."""

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from harness.core.errors import UserError
from harness.core.types import Purpose
from harness.loop.replay import ReplayOptions
from tests.faults import Fault, FaultKind, Schedule, Unrewarded, Wiring, draw, run_schedule, search, shrink
from tests.faults.__main__ import main
from tests.faults.schedule import Timing
from tests.faults.shrinking import simpler

BIG = Schedule(
    seed=7,
    steps=8,
    generators=4,
    scorers=3,
    prompts=8,
    group_size=3,
    max_lag=3,
    lag_control="in_flight",
    epochs=4,
    validates=True,
    evaluate_every=3,
    replay=ReplayOptions(16, 6, "uniform", 5, 2),
    proof=True,
    max_replacements=2,
    restart_s=7.3,
    timings=(Timing("generator2", "generate", (1.7, 3.2)), Timing("scorer0", "score", (2.0,))),
    faults=(
        Fault(FaultKind.SLOW, "generator0", "load", 2, 100.0),
        Fault(FaultKind.KILLED, "generator1", "generate", 5, 12.5),
        Fault(FaultKind.KILLED, "scorer2", "score", 1, 0.5),
    ),
    unrewarded=(Unrewarded(Purpose.TRAIN, 1, 0), Unrewarded(Purpose.TRAIN, 4, 2)),
)


def test_a_drawn_schedule_is_the_same_every_time_and_others_differ():
    assert draw(5) == draw(5)
    schedules = [draw(seed) for seed in range(50)]
    assert len(set(schedules)) == 50
    for schedule in schedules:
        assert schedule.prompts >= schedule.generators
        assert schedule.max_lag > 0 or schedule.lag_control == "wait"
        assert {fault.lane for fault in schedule.faults} <= set(schedule.lanes)


def test_shrinking_leaves_exactly_what_breaks():
    def breaks(schedule: Schedule) -> bool:
        deaths = [fault for fault in schedule.faults if fault.kind is FaultKind.KILLED and fault.lane == "generator1"]
        return schedule.steps >= 3 and bool(deaths) and deaths[0].amount > 1

    # A death on the second Generator needs two of them, so two prompts; 12.5 s cannot be 0 or 1, and 12 is rounder.
    death = Fault(FaultKind.KILLED, "generator1", "generate", 1, 12.0)
    assert shrink(BIG, breaks) == Schedule(seed=7, steps=3, generators=2, prompts=2, faults=(death,))


def test_shrinking_keeps_what_breaks_only_together():
    def breaks(schedule: Schedule) -> bool:
        return len(schedule.faults) >= 2 and schedule.replay is not None and len(schedule.timings) == 1

    shrunk = shrink(BIG, breaks)
    assert (len(shrunk.faults), shrunk.replay, len(shrunk.timings), shrunk.steps) == (2, BIG.replay, 1, 1)
    assert not any(breaks(schedule) for schedule in simpler(shrunk))


def test_every_simpler_schedule_can_be_run():
    ends = [run_schedule(schedule).broken for schedule in simpler(replace(BIG, steps=2))]
    assert len(ends) > 50
    assert set(ends) == {None}


def test_a_run_repeats_event_by_event():
    first, second = run_schedule(draw(3)), run_schedule(draw(3))
    assert first == second
    assert all(before.time_s <= after.time_s for before, after in pairwise(first.events))


def test_how_many_processes_there_are_changes_nothing():
    assert search(100, 120, jobs=2) == search(100, 120)


def test_processes_leave_ctrl_c_to_the_command_that_started_them():
    def interrupt(more: int) -> None:
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGINT)

    assert search(0, 200, jobs=2, told=interrupt) == search(0, 200)


def test_a_killed_process_ends_the_search_with_what_to_do():
    def kill(more: int) -> None:
        for process in multiprocessing.active_children()[:1]:
            process.kill()

    with pytest.raises(UserError, match="killed from outside"):
        search(0, 1000, jobs=2, told=kill)


@pytest.mark.parametrize("seed", [3, 12])
def test_the_replay_command_prints_the_same_bytes_in_another_process(seed):
    def printed(hashing: str) -> bytes:
        command = [sys.executable, "-m", "harness", "faults", "--seed", str(seed), "--schedules", "1", "--trace"]
        return subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": hashing}, stdout=subprocess.PIPE, check=True
        ).stdout

    first = printed("1")
    assert f"schedule {seed}".encode() in first
    assert first == printed("2")


def test_the_command_says_what_happened_and_is_fine(capsys):
    assert main(["--schedules", "20", "--seed", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    summary = search(30, 20)
    assert lines[0] == (f"20 schedules (30 to 49), {summary.events:,} events, {summary.most_events:,} in the longest")
    assert f"{summary.ends['finished']:>9}  finished" in lines
    assert lines[-1] == "no invariant was broken (18 are checked)"


def test_the_command_fails_and_shows_the_smallest_schedule_where_an_invariant_breaks(capsys):
    off_by_one = Wiring(plan=lambda plan: replace(plan, max_lag=plan.max_lag + 1))
    assert main(["--seed", "0", "--schedules", "1"], off_by_one) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  again: python -m harness faults --seed 0 --schedules 1 --trace" in lines
    assert "  lag at first use: step 2 trains on (2, 2): age 2, at most 1" in lines
    assert "  3 steps, 1 Generator, 1 Scorer, 1 prompt of 1 rollout, 1 epoch" in lines


def test_a_trace_is_of_one_schedule():
    with pytest.raises(UserError) as caught:
        main(["--trace", "--schedules", "5"])
    assert str(caught.value) == (
        "--trace shows one schedule, and --schedules is 5\n  where: --trace\n  fix:   add --schedules 1"
    )


@pytest.mark.parametrize("arguments", [["--schedules", "0"], ["--seed", "-1"], ["--jobs", "x"]])
def test_numbers_out_of_bounds_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "must be a whole number of at least" in capsys.readouterr().err
