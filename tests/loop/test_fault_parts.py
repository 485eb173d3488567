"""What each fault does, in schedules written by hand; the times are arithmetic."""

import pytest

from harness.core.types import Purpose
from tests.faults.running import Outcome, run_schedule
from tests.faults.schedule import LEARNER, Fault, FaultKind, Schedule, Timing, Unrewarded

SECONDS = (
    Timing("generator0", "load", (2.0,)),
    Timing("generator0", "generate", (8.0,)),
    Timing("scorer0", "score", (1.0,)),
    Timing(LEARNER, "update", (4.0,)),
    Timing(LEARNER, "publish", (1.0,)),
)
"""In turns: publish 1, load 3, generate 11, score 12, update 16; publish 17, load 19, generate 27, ..., update 32."""


def run(*faults: Fault, **settings: object) -> Outcome:
    """Run two steps in turns, with these faults and whatever else differs."""
    usual = {"steps": 2, "group_size": 2, "timings": SECONDS}
    return run_schedule(Schedule(seed=0, faults=faults, **(usual | settings)))


def updates(outcome: Outcome) -> list[float]:
    """When updates ended."""
    return [event.time_s for event in outcome.events if event.what == "update ends"]


def test_without_a_fault_the_times_are_hand_arithmetic():
    outcome = run()
    assert (outcome.broken, outcome.end, outcome.happened) == (None, "finished", {})
    assert updates(outcome) == [16, 32]


KILLED = FaultKind.KILLED


@pytest.mark.parametrize(
    ("faults", "restart_s", "happened", "ends"),
    [
        # generating from 3 on; dead at 6, loaded again at 8, generated 16, scored 17: 5 s later than without
        (
            [Fault(KILLED, "generator0", "generate", 1, 3.0)],
            0.0,
            ["generator generate: killed in the middle"],
            [21, 37],
        ),
        (
            [Fault(KILLED, "generator0", "generate", 1, 3.0)],
            10.0,
            ["generator generate: killed in the middle"],
            [31, 47],
        ),
        # dead at 3, loaded at 5
        ([Fault(KILLED, "generator0", "generate", 1, 0.0)], 0.0, ["generator generate: killed at once"], [18, 34]),
        # dead at 11 with all that it generated, loaded 13, generated 21
        ([Fault(KILLED, "generator0", "generate", 1, 1e9)], 0.0, ["generator generate: killed at its end"], [26, 42]),
        # dead at 6, its replacement at 7, the next one has loaded at 9
        (
            [Fault(KILLED, "generator0", "generate", 1, 3.0), Fault(KILLED, "generator0", "load", 2, 1.0)],
            0.0,
            ["generator generate: killed in the middle", "generator load: killed in the middle, and it was new"],
            [22, 38],
        ),
        # scoring from 11 on; dead at 11.5, scored 12.5
        ([Fault(KILLED, "scorer0", "score", 1, 0.5)], 0.0, ["scorer score: killed in the middle"], [16.5, 32.5]),
        # the first score takes 10 s
        ([Fault(FaultKind.SLOW, "scorer0", "score", 1, 10.0)], 0.0, ["scorer score: slow"], [25, 41]),
        # the second update takes 104 s
        ([Fault(FaultKind.STUCK, LEARNER, "update", 2, 100.0)], 0.0, ["learner update: stuck"], [16, 132]),
        # scored at 12, heard of at 17
        ([Fault(FaultKind.HELD_BACK, "scorer0", "score", 1, 5.0)], 0.0, ["scorer score: held back"], [21, 37]),
    ],
)
def test_a_fault_that_is_survived_costs_exactly_its_time(faults, restart_s, happened, ends):
    outcome = run(*faults, restart_s=restart_s)
    assert (outcome.broken, outcome.end) == (None, "finished")
    assert outcome.happened == dict.fromkeys(happened, 1)
    assert updates(outcome) == ends


@pytest.mark.parametrize(
    ("fault", "settings", "end", "steps"),
    [
        (Fault(FaultKind.FAILS, "scorer0", "score", 2), {}, "stopped: a part failed", 1),
        (Fault(FaultKind.HUNG, "generator0", "generate", 2), {}, "stopped: the watchdog found a hung call", 1),
        (Fault(KILLED, LEARNER, "update", 2, 1.0), {}, "stopped: the Learner died", 1),
        (Fault(KILLED, LEARNER, "save_policy", 1, 0.0), {}, "stopped: the Learner died", 2),
        (Fault(KILLED, "scorer0", "score", 1), {"max_replacements": 0}, "stopped: too many deaths", 0),
        (Fault(FaultKind.LOST_WEIGHTS, "generator0", "load", 2), {"proof": True}, "proof found lost weights", 1),
        (Fault(FaultKind.OLD_ANSWER, "generator0", "generate", 2), {}, "something else", 1),
        (Fault(FaultKind.OLD_ANSWER, "scorer0", "score", 2), {}, "something else", 1),
        (Fault(FaultKind.LOST_GROUPS, "generator0", "generate", 1, 1.0), {"prompts": 2}, "something else", 0),
        (Fault(FaultKind.LOST_GROUPS, "scorer0", "score", 1, 1.0), {"prompts": 2}, "something else", 0),
        (Fault(FaultKind.OLD_TICKET, LEARNER, "publish", 2), {}, "something else", 1),
        (Fault(FaultKind.OWNED_LOST_WEIGHTS, "generator0", "load", 2), {}, "something else", 1),
        (Fault(FaultKind.SECOND_LOAD, "generator0", "load", 1), {}, "something else", 1),
    ],
)
def test_a_fault_that_must_end_the_run_does(fault, settings, end, steps):
    outcome = run(fault, **settings)
    assert outcome.broken is None
    assert outcome.end.endswith(end)
    assert len(updates(outcome)) == steps
    assert outcome.happened.total() == 1


def test_lost_weights_without_a_proof_go_unnoticed_and_the_outcome_says_so():
    outcome = run(Fault(FaultKind.LOST_WEIGHTS, "generator0", "load", 2))
    assert (outcome.broken, outcome.end) == (None, "finished, other weights than told went unnoticed")


def test_a_reward_that_never_comes_costs_its_group_and_a_batch_without_any_ends_the_run():
    one = run(prompts=2, unrewarded=(Unrewarded(Purpose.TRAIN, 1, 0),))
    assert (one.broken, one.end, one.happened) == (None, "finished", {"a reward never comes": 1})
    both = run(prompts=2, unrewarded=(Unrewarded(Purpose.TRAIN, 1, 0), Unrewarded(Purpose.TRAIN, 1, 1)))
    assert (both.broken, both.end, len(updates(both))) == (None, "stopped: no reward for a whole batch", 1)
    evaluation = run(validates=True, unrewarded=(Unrewarded(Purpose.EVALUATE, 1, 0),))
    assert (evaluation.broken, evaluation.end) == (None, "finished")
    assert evaluation.happened == {"an evaluation's reward never comes": 1}


# ---- faults of the loop that this search has found


def test_a_generator_whose_weights_went_back_ends_the_run_instead_of_being_dropped_for_ever():
    # Under drop, all that it sampled came too late, so the Learner waited and the Generator went on without end.
    timings = (Timing(LEARNER, "update", (1.0,)), Timing(LEARNER, "publish", (1.0,)))
    fault = Fault(FaultKind.SECOND_LOAD, "generator0", "load", 1)
    outcome = run(fault, steps=3, max_lag=1, lag_control="drop", timings=timings)
    assert (outcome.broken, outcome.end) == (None, "stopped: a part answered something else")


def test_of_two_deaths_heard_of_in_the_wrong_order_both_are_told():
    # In flight: batch 1 dies with the first part; the load beside it, begun later, dies with the second one, and the
    # loop hears of that death first. It told the observer of one.
    deaths = Fault(KILLED, "generator0", "generate", 3), Fault(KILLED, "generator0", "load", 2)
    settings = {"max_lag": 1, "lag_control": "in_flight", "validates": True, "restart_s": 1.0, "timings": ()}
    outcome = run(*deaths, **settings)
    assert (outcome.broken, outcome.end) == (None, "finished")
    assert [event.lane for event in outcome.events if event.what == "told: replaced"] == ["generator0"] * 2


def test_an_evaluation_answered_with_nothing_ends_the_run():
    # It was asked for again and again, without end and without a word.
    outcome = run(Fault(FaultKind.LOST_GROUPS, "generator0", "generate", 1, 0.0), validates=True)
    assert (outcome.broken, outcome.end) == (None, "stopped: a part answered something else")


def test_a_scorer_that_repeats_an_answer_under_drop_trains_on_nothing_twice():
    # Nothing looked at whose answer it was, so under drop the shard was trained on a second time.
    fault = Fault(FaultKind.OLD_ANSWER, "scorer0", "score", 2)
    outcome = run(fault, steps=4, max_lag=3, lag_control="drop")
    assert (outcome.broken, outcome.end) == (None, "stopped: a part answered something else")
