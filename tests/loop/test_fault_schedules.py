"""Drawn fault schedules against the real loop, and planted bugs that the checker has to find.

``make faults`` runs ten thousand of them: SCHEDULES says how many.
"""

import asyncio
import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, find, given, settings

from harness.loop import Condition
from harness.loop.batching import InOrder
from harness.loop.loop import new_assembler
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings
from tests.faults.expected_outcome import FINISHED, STALLED
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
NO_REWARDS, TOO_MANY_DEATHS = "stopped: no reward for a whole batch", "stopped: too many deaths"
ENDS = {
    FINISHED,
    STALLED,
    NO_REWARDS,
    TOO_MANY_DEATHS,
    "stopped: the Learner died",
    "stopped: a part failed",
    "stopped: a part answered something else",
}


def outcome_of(schedule):
    outcome = run_schedule(schedule)
    assert outcome.broken is None, "\n".join(map(str, (outcome.broken, *outcome.events[-25:])))
    return outcome


def show(*counts: Counter[str]) -> None:
    print(*(f"{count:>9,}  {name}" for each in counts for name, count in sorted(each.items())), sep="\n")


def test_no_fault_schedule_breaks_an_invariant() -> None:
    happened, ends = Counter[str](), Counter[str]()

    @UNHURRIED
    @given(schedules())
    def check(schedule):
        outcome = outcome_of(schedule)
        nanosecond = 1e-9  # spans are told in whole ones
        assert all(before.time_s <= after.time_s + nanosecond for before, after in pairwise(outcome.events))
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
    show(ends, happened)


def test_whoever_is_killed_goes_on_and_nothing_is_lost_or_trained_on_twice() -> None:
    """Everything dies at any callback of the event loop, maybe again, and goes on from the newest whole checkpoint."""
    went_on, ends = Counter[str](), Counter[str]()

    @settings(UNHURRIED, max_examples=KILLED_SCHEDULES)
    @given(killed_schedules())
    def check(schedule):
        outcome = outcome_of(schedule)
        assert all(version % schedule.checkpoint_every == 0 for version in outcome.resumed)
        assert list(outcome.resumed) == sorted(outcome.resumed)
        ends[outcome.end] += 1
        went_on.update("from the beginning" if version == 0 else "from a checkpoint" for version in outcome.resumed)
        went_on["from the last step"] += schedule.steps in outcome.resumed

    check()
    assert set(ends) <= {FINISHED, NO_REWARDS, TOO_MANY_DEATHS}
    assert ends[FINISHED] > ends.total() / 2
    assert went_on["from a checkpoint"] > 0
    show(ends, went_on)


@settings(UNHURRIED, max_examples=20)
@given(schedules())
def test_a_run_repeats_event_by_event(schedule):
    assert run_schedule(schedule) == run_schedule(schedule)


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
        (Wiring(plan=one_version_too_many), "lag at first use"),
        (Wiring(plan=one_attempt_too_few), "sampled again"),
        (Wiring(assembler=delivers_twice), "uses"),
        (Wiring(new_condition=DozesOff), "no deadlock"),
    ],
)
def test_a_planted_bug_is_found_and_shrunk(wiring, invariant):
    def breaks(schedule) -> bool:
        broken = run_schedule(schedule, wiring).broken
        return broken is not None and broken.invariant == invariant

    smallest = find(schedules(), breaks, settings=settings(UNHURRIED, max_examples=1000))
    assert smallest.faults == ()  # the bug needs none
    assert smallest.steps <= 3
    assert len(run_schedule(smallest, wiring).events) < 150


def cursor_ahead_of_training(state):
    """The position in the prompts is saved, and nothing of what was issued and not trained on."""
    return replace(state, pending=(), unscored=(), waiting=(), open_shards=())


def order_of_the_buffer_lost(state):
    """The replay buffer comes back as a set would."""
    entries = sorted(state.replay.entries, key=lambda entry: (entry.uses, entry.group.prompt_id))
    return replace(state, replay=replace(state.replay, entries=tuple(entries)))


def order_under_way_forgotten(state):
    """One order that a Generator works on is not saved."""
    return replace(state, pending=state.pending[1:])


@pytest.mark.parametrize(
    ("planted", "plan", "invariant"),
    [
        (cursor_ahead_of_training, {"max_lag": 1}, "no deadlock"),
        (cursor_ahead_of_training, {"max_lag": 1, "lag_control": "drop"}, "in flight"),
        (order_under_way_forgotten, {"max_lag": 1}, "no deadlock"),
        (order_under_way_forgotten, {"max_lag": 1, "lag_control": "drop"}, "none lost"),
        (
            order_of_the_buffer_lost,
            {"replay": ReplaySettings(capacity=6, max_age=4, sampling="uniform", sample_groups=3)},
            "draws",
        ),
    ],
)
def test_what_is_not_saved_is_found_whether_or_not_somebody_waits_for_it(planted, plan, invariant):
    """Generators of 8, 9 and 10 s; the Learner makes a checkpoint after each step of 5 s, and dies in its third."""
    seconds = [Timing(f"generator{number}", "generate", (8.0 + number,)) for number in range(3)]
    timings = (*seconds, Timing(LEARNER, "update", (4.0,)), Timing(LEARNER, "publish", (1.0,)))
    dies = (Fault(FaultKind.KILLED, LEARNER, "update", 3),)
    size = {"steps": 5, "generators": 3, "prompts": 3, "group_size": 2}
    schedule = Schedule(0, **size, timings=timings, checkpoint_every=1, faults=dies, **plan)
    right, wrong = run_schedule(schedule), run_schedule(schedule, Wiring(saved=planted))
    assert (right.broken, right.end, right.resumed) == (None, FINISHED, (2,))
    assert wrong.broken is not None
    assert wrong.broken.invariant == invariant
