"""Drawn fault schedules against the real loop, and four bugs that the same search has to find.

``make faults`` runs ten thousand of them: SCHEDULES says how many.
"""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, event, find, given, settings

from harness.loop import Condition
from harness.loop.batching import InOrder
from harness.loop.loop import new_assembler
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings
from tests.faults.expected_outcome import FINISHED, STALLED, UNNOTICED
from tests.faults.running import Wiring, run_schedule
from tests.faults.schedule import LEARNER, Fault, FaultKind, Schedule, Timing
from tests.faults.strategies import FATAL, SURVIVED, killed_schedules, schedules

SCHEDULES = int(os.environ.get("SCHEDULES", "300"))
KILLED_SCHEDULES = SCHEDULES if "SCHEDULES" in os.environ else 100
"""Of those with checkpoints: each is run several times over."""
MANY = 10_000
"""From so many on, everything that can happen must have happened."""
UNHURRIED = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), max_examples=SCHEDULES
)

HAPPENING = (
    {
        f"{part} {call}: {kind}"
        for kind, part, calls, _ in SURVIVED + FATAL
        for call in calls
        if kind is not FaultKind.KILLED or part == LEARNER
    }
    | {
        f"{part}: killed {when}{new}"
        for part in ("generator load", "generator generate", "scorer score")
        for when in ("at once", "in the middle", "at its end")
        for new in ("", ", and it was new")
        if part != "generator generate" or not new  # a new Generator has loaded before it generates
    }
    | {"a reward never comes", "an evaluation's reward never comes"}
)
ENDS = {
    FINISHED,
    UNNOTICED,
    STALLED,
    "stopped: no reward for a whole batch",
    "stopped: the Learner died",
    "stopped: a part failed",
    "stopped: the proof found lost weights",
    "stopped: too many deaths",
    "stopped: a part answered something else",
}


def test_no_fault_schedule_breaks_an_invariant() -> None:
    happened, ends = Counter[str](), Counter[str]()

    @UNHURRIED
    @given(schedules())
    def check(schedule):
        outcome = run_schedule(schedule)
        assert outcome.broken is None, "\n".join(map(str, (outcome.broken, *outcome.events[-25:])))
        nanosecond = 1e-9  # spans are told in whole ones
        assert all(before.time_s <= after.time_s + nanosecond for before, after in pairwise(outcome.events))
        event(outcome.end)
        ends[outcome.end] += 1
        happened.update(outcome.happened)

    check()
    assert set(happened) <= HAPPENING
    assert set(ends) <= ENDS
    assert ends.total() >= SCHEDULES
    assert ends[FINISHED] > ends.total() / 3
    if SCHEDULES >= MANY:
        assert set(happened) == HAPPENING
        assert set(ends) == ENDS
    print(*(f"{count:>9,}  {name}" for name, count in sorted((ends + happened).items())), sep="\n")


def test_whoever_is_killed_goes_on_and_nothing_is_lost_or_trained_on_twice() -> None:
    """Everything dies at any callback of the event loop, maybe again, and goes on from the newest whole checkpoint."""
    went_on, ends = Counter[str](), Counter[str]()

    @settings(UNHURRIED, max_examples=KILLED_SCHEDULES)
    @given(killed_schedules())
    def check(schedule):
        outcome = run_schedule(schedule)
        assert outcome.broken is None, "\n".join(map(str, (outcome.broken, *outcome.events[-25:])))
        assert all(version % schedule.checkpoint_every == 0 for version in outcome.resumed)
        assert list(outcome.resumed) == sorted(outcome.resumed)
        ends[outcome.end] += 1
        went_on.update("from the beginning" if version == 0 else "from a checkpoint" for version in outcome.resumed)
        went_on["from the last step"] += schedule.steps in outcome.resumed

    check()
    assert set(ends) <= {FINISHED, "stopped: no reward for a whole batch", "stopped: too many deaths"}
    assert ends[FINISHED] > ends.total() / 2
    assert went_on["from a checkpoint"] > 0
    print(*(f"{count:>9,}  {name}" for name, count in sorted((ends + went_on).items())), sep="\n")


@settings(UNHURRIED, max_examples=20)
@given(schedules())
def test_a_run_repeats_event_by_event(schedule):
    assert run_schedule(schedule) == run_schedule(schedule)


EVENTS_OF = """
from harness.settings.replay import ReplaySettings
from tests.faults.running import run_schedule
from tests.faults.schedule import Fault, FaultKind, Schedule, Timing
replay = ReplaySettings(capacity=16, max_age=6, sampling="uniform", sample_groups=5)
faults = (
    Fault(FaultKind.KILLED, "generator1", "generate", 3, 1.5),
    Fault(FaultKind.SLOW, "scorer0", "score", 2, 10.0),
)
timings = (Timing("generator2", "generate", (1.7, 3.2)), Timing("scorer0", "score", (2.0,)))
schedule = Schedule(7, 8, 4, 3, 8, 3, 3, "in_flight", 4, True, 3, replay, True, faults=faults, timings=timings)
print(*run_schedule(schedule).events, sep="\\n")
"""


@pytest.mark.slow
def test_fresh_processes_give_identical_events() -> None:
    """Whatever the order of sets and the addresses of objects in a process are."""
    written = [
        subprocess.run(
            [sys.executable, "-c", EVENTS_OF],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    ]
    assert written[0].count(b"\n") > 100
    assert written[1] == written[0]


# ---- planted bugs


def one_version_too_many(plan):
    """The off-by-one: the loop takes a lag bound for one more than it is."""
    return replace(plan, max_lag=plan.max_lag + 1)


def one_attempt_too_few(plan):
    """The off-by-one: the loop takes the attempts of dynamic sampling for one more than they are."""
    attempts = max(0, plan.dynamic_sampling.attempts - 1)
    return replace(plan, dynamic_sampling=DynamicSamplingSettings(attempts=attempts))


class DeliversTwice(InOrder):
    """The double delivery: a shard that comes before the batch ahead of its own was taken is in its batch twice."""

    def __init__(self, shards):
        super().__init__(shards)
        self._next, self._early = 0, {}

    def add(self, scored, version):
        if scored.item.step > self._next:
            self._early[scored.item.step] = scored
        return super().add(scored, version)

    def take(self, step):
        self._next = step + 1
        again = self._early.pop(step, None)
        return super().take(step) if again is None else (*super().take(step), again)


def delivers_twice(plan, shards):
    return new_assembler(plan, shards) if plan.lag_control == "drop" else DeliversTwice(shards)


class DozesOff(Condition):
    """The lost wake-up: who is woken for nothing dozes off before it listens again, and a ring in between is lost."""

    async def until(self, condition, or_done=None):
        if condition():
            return
        while True:
            ring = iter([False])  # not there when it begins to listen, and there from then on
            await super().until(lambda ring=ring: next(ring, True), or_done)
            if condition():
                return
            await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wiring", "invariant"),
    [
        pytest.param(Wiring(plan=one_version_too_many), "lag at first use", id="an off-by-one in the lag bound"),
        pytest.param(Wiring(plan=one_attempt_too_few), "sampled again", id="an attempt of dynamic sampling too few"),
        pytest.param(
            Wiring(assembler=delivers_twice),
            "uses",
            id="a double delivery",
        ),
        pytest.param(Wiring(new_condition=DozesOff), "no deadlock", id="a lost wake-up"),
    ],
)
def test_a_planted_bug_is_found_and_shrunk(wiring, invariant):
    def breaks(schedule) -> bool:
        broken = run_schedule(schedule, wiring).broken
        return broken is not None and broken.invariant == invariant

    smallest = find(schedules(), breaks, settings=settings(UNHURRIED, max_examples=1000))
    assert smallest.faults == ()  # the bug needs none
    assert smallest.steps <= 3
    outcome = run_schedule(smallest, wiring)
    assert len(outcome.events) < 150
    if invariant == "lag at first use":
        assert f"age {smallest.max_lag + 1}, at most {smallest.max_lag}" in str(outcome.broken)


def cursor_ahead_of_training(state):
    """The position in the prompts is saved, and nothing of what was issued and not trained on."""
    return replace(state, pending=(), unscored=(), waiting=(), open_shards=())


def order_of_the_buffer_lost(state):
    """The replay buffer comes back as a set would."""
    if state.replay is None:
        return state
    entries = sorted(state.replay.entries, key=lambda entry: (entry.uses, entry.group.prompt_id))
    return replace(state, replay=replace(state.replay, entries=tuple(entries)))


def order_under_way_forgotten(state):
    """One order that a Generator works on is not saved."""
    return replace(state, pending=state.pending[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "invariants"),
    [
        (cursor_ahead_of_training, {"no deadlock", "none lost", "in flight"}),
        (order_of_the_buffer_lost, {"draws"}),
        (order_under_way_forgotten, {"no deadlock", "none lost"}),
    ],
)
def test_a_bug_in_what_is_saved_is_found_and_shrunk(planted, invariants):
    wiring = Wiring(saved=planted)

    def breaks(schedule) -> bool:
        broken = run_schedule(schedule, wiring).broken
        return broken is not None and broken.invariant in invariants

    smallest = find(killed_schedules(fatal=()), breaks, settings=settings(UNHURRIED, max_examples=300))
    assert smallest.faults == ()
    assert len(smallest.kills) == 1
    assert smallest.steps <= 3
    assert run_schedule(smallest).broken is None


def learner_dies_in_its_third_update(**settings):
    """Three Generators of 8, 9 and 10 s; the Learner makes a checkpoint after each step of 5 s."""
    seconds = [Timing(f"generator{number}", "generate", (8.0 + number,)) for number in range(3)]
    timings = (*seconds, Timing(LEARNER, "update", (4.0,)), Timing(LEARNER, "publish", (1.0,)))
    usual = {"steps": 5, "generators": 3, "prompts": 3, "group_size": 2, "timings": timings, "checkpoint_every": 1}
    usual["faults"] = (Fault(FaultKind.KILLED, LEARNER, "update", 3),)
    return Schedule(0, **(usual | settings))


@pytest.mark.parametrize(
    ("planted", "lag_control", "invariant"),
    [
        (cursor_ahead_of_training, "wait", "no deadlock"),
        (cursor_ahead_of_training, "drop", "in flight"),
        (order_under_way_forgotten, "wait", "no deadlock"),
        (order_under_way_forgotten, "drop", "none lost"),
    ],
)
def test_an_order_lost_is_found_whether_or_not_somebody_waits_for_it(planted, lag_control, invariant):
    schedule = learner_dies_in_its_third_update(max_lag=1, lag_control=lag_control)
    right, wrong = run_schedule(schedule), run_schedule(schedule, Wiring(saved=planted))
    assert (right.broken, right.end, right.resumed) == (None, FINISHED, (2,))
    assert wrong.broken is not None
    assert wrong.broken.invariant == invariant


def test_an_order_of_the_buffer_lost_is_found():
    replay = ReplaySettings(capacity=6, max_age=4, sampling="uniform", sample_groups=3)
    schedule = learner_dies_in_its_third_update(replay=replay)
    assert run_schedule(schedule).broken is None
    broken = run_schedule(schedule, Wiring(saved=order_of_the_buffer_lost)).broken
    assert broken is not None
    assert broken.invariant == "draws"
