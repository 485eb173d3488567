"""Ten thousand seeded fault schedules against the real loop, and three bugs that the same search has to find."""

import asyncio
from dataclasses import replace

import pytest

from harness.loop import Condition
from harness.loop.batching import InOrder
from harness.probes.provenance import usable_cores
from tests.faults import Wiring, draw, run_schedule, search, smallest_run
from tests.faults.draws import FATAL, SURVIVED
from tests.faults.schedule import LEARNER, FaultKind
from tests.faults.search import Summary
from tests.faults.show import broken_lines

SCHEDULES = 10_000


@pytest.fixture(scope="module")
def summary() -> Summary:
    """What ten thousand schedules came to. They are the same ones on every machine."""
    return search(0, SCHEDULES, usable_cores())


def test_ten_thousand_fault_schedules_break_no_invariant(summary):
    assert summary.broken == {}
    assert sum(summary.ends.values()) == summary.schedules == SCHEDULES


def test_every_kind_of_fault_really_happens(summary):
    due = {
        f"{part} {call}: {kind}"
        for kind, part, calls, _ in SURVIVED + FATAL
        for call in calls
        if kind is not FaultKind.KILLED or part == LEARNER
    }
    due |= {
        f"{part}: killed {when}{new}"
        for part in ("generator load", "generator generate", "scorer score")
        for when in ("at once", "in the middle", "at its end")
        for new in ("", ", and it was new")
        if part != "generator generate" or not new  # a new Generator has loaded before it generates
    }
    due |= {"a reward never comes", "an evaluation's reward never comes"}
    assert set(summary.happened) == due
    assert min(summary.happened.values()) >= 10, summary.happened


def test_runs_end_in_every_way_that_they_may_and_most_finish(summary):
    assert set(summary.ends) == {
        "finished",
        "finished, other weights than told went unnoticed",
        "stopped: no reward for a whole batch",
        "stopped: the Learner died",
        "stopped: a part failed",
        "stopped: the proof found lost weights",
        "stopped: too many deaths",
        "stopped: the watchdog found a hung call",
        "stopped: a part answered something else",
    }
    assert min(summary.ends.values()) >= 50, summary.ends
    assert summary.ends["finished"] > SCHEDULES / 2


# ---- planted bugs


def one_version_too_many(plan):
    """The off-by-one: the loop takes a lag bound for one more than it is."""
    return replace(plan, max_lag=plan.max_lag + 1)


class DeliversTwice(InOrder):
    """The double delivery: a shard that comes before the batch ahead of its own was taken is in its batch twice."""

    def __init__(self, schedule):
        super().__init__(schedule.generators)
        self._next, self._early = 0, {}

    def add(self, scored, version):
        if scored.item.step > self._next:
            self._early[scored.item.step] = scored
        return super().add(scored, version)

    def take(self, step):
        self._next = step + 1
        again = self._early.pop(step, None)
        return super().take(step) if again is None else (*super().take(step), again)


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


@pytest.mark.parametrize(
    ("wiring", "invariant", "within", "shows"),
    [
        pytest.param(
            Wiring(plan=one_version_too_many),
            "lag at first use",
            5,
            "  lag at first use: step 2 trains on (2, 2): age 2, at most 1",
            id="an off-by-one in the lag bound",
        ),
        pytest.param(
            Wiring(assembler=lambda schedule: None if schedule.lag_control == "drop" else DeliversTwice(schedule)),
            "uses",
            50,
            "  uses: step 2 trains on one rollout twice: [(2, 2), (2, 2)]",
            id="a double delivery",
        ),
        pytest.param(
            Wiring(new_condition=DozesOff),
            "no deadlock",
            50,
            "    every lane waits: a deadlock",
            id="a lost wake-up",
        ),
    ],
)
def test_a_planted_bug_is_found_with_its_seed_and_shrunk(wiring, invariant, within, shows):
    found = search(0, within, wiring=wiring)
    seed = min(seed for seed, broken in found.broken.items() if broken == invariant)
    outcome = run_schedule(draw(seed), wiring)  # the seed alone is enough
    smallest = smallest_run(outcome, wiring)
    told = list(broken_lines(outcome, smallest))
    assert f"  again: python -m harness faults --seed {seed} --schedules 1 --trace" in told
    assert shows in told
    assert smallest.schedule.faults == ()  # the bug needs none
    assert smallest.schedule.steps <= 3
    assert len(smallest.events) < 100
