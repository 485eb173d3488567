"""Parts that die, dawdle and lie in schedules written by hand, whose times are arithmetic; and groups that fail."""

from dataclasses import replace

import pytest

from harness.core.errors import RunStopped
from harness.core.types import Purpose
from harness.loop import Count
from harness.settings.replay import ReplaySettings
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
KILLED = FaultKind.KILLED
WRONG_ANSWER = "stopped: a part answered something else"


def run(*faults: Fault, **settings: object) -> Outcome:
    """Run two steps in turns, with these faults and whatever else differs; no invariant breaks."""
    usual = {"steps": 2, "group_size": 2, "timings": SECONDS}
    outcome = run_schedule(Schedule(seed=0, faults=faults, **(usual | settings)))
    assert outcome.broken is None
    return outcome


def times(outcome: Outcome, what: str) -> list[float]:
    return [event.time_s for event in outcome.events if event.what == what]


@pytest.mark.parametrize(
    ("faults", "restart_s", "happened", "ends"),
    [
        ([], 0, [], [16, 32]),
        # generating from 3 on; dead at 6, loaded again at 8, generated 16, scored 17: 5 s later than without
        ([Fault(KILLED, "generator0", "generate", 1, 3)], 0, ["generator generate: killed in the middle"], [21, 37]),
        ([Fault(KILLED, "generator0", "generate", 1, 3)], 10, ["generator generate: killed in the middle"], [31, 47]),
        # dead at 3, loaded at 5
        ([Fault(KILLED, "generator0", "generate", 1, 0)], 0, ["generator generate: killed at once"], [18, 34]),
        # dead at 11 with all that it generated, loaded 13, generated 21
        ([Fault(KILLED, "generator0", "generate", 1, 1e9)], 0, ["generator generate: killed at its end"], [26, 42]),
        # dead at 6, its replacement at 7, the next one has loaded at 9
        (
            [Fault(KILLED, "generator0", "generate", 1, 3), Fault(KILLED, "generator0", "load", 2, 1)],
            0,
            ["generator generate: killed in the middle", "generator load: killed in the middle, and it was new"],
            [22, 38],
        ),
        # scoring from 11 on; dead at 11.5, scored 12.5
        ([Fault(KILLED, "scorer0", "score", 1, 0.5)], 0, ["scorer score: killed in the middle"], [16.5, 32.5]),
        # the first score takes 10 s, the second update 104 s
        ([Fault(FaultKind.SLOW, "scorer0", "score", 1, 9)], 0, ["scorer score: slow"], [25, 41]),
        ([Fault(FaultKind.SLOW, LEARNER, "update", 2, 100)], 0, ["learner update: slow"], [16, 132]),
        # scored at 12, heard of at 17
        ([Fault(FaultKind.HELD_BACK, "scorer0", "score", 1, 5)], 0, ["scorer score: held back"], [21, 37]),
    ],
)
def test_a_fault_that_is_survived_costs_exactly_its_time(faults, restart_s, happened, ends):
    outcome = run(*faults, restart_s=restart_s)
    assert (outcome.end, outcome.happened) == ("finished", dict.fromkeys(happened, 1))
    assert times(outcome, "update ends") == ends


@pytest.mark.parametrize(
    ("fault", "settings", "end", "steps"),
    [
        (Fault(FaultKind.FAILS, "scorer0", "score", 2), {}, "stopped: a part failed", 1),
        (Fault(FaultKind.HUNG, "generator0", "generate", 2), {}, "stopped: the watchdog found a hung call", 1),
        (Fault(KILLED, LEARNER, "update", 2, 1.0), {}, "stopped: the Learner died", 1),
        (Fault(KILLED, LEARNER, "save_policy", 1, 0.0), {}, "stopped: the Learner died", 2),
        (Fault(KILLED, "scorer0", "score", 1), {"max_replacements": 0}, "stopped: too many deaths", 0),
        (Fault(FaultKind.OLD_ANSWER, "generator0", "generate", 2), {}, WRONG_ANSWER, 1),
        (Fault(FaultKind.OLD_ANSWER, "scorer0", "score", 2), {}, WRONG_ANSWER, 1),
        # Nothing looked at whose answer it was, so under drop the shard was trained on a second time.
        (Fault(FaultKind.OLD_ANSWER, "scorer0", "score", 2), {"max_lag": 3, "lag_control": "drop"}, WRONG_ANSWER, 1),
        (Fault(FaultKind.LOST_GROUPS, "generator0", "generate", 1, 1.0), {"prompts": 2}, WRONG_ANSWER, 0),
        # It was asked for again and again, without end and without a word.
        (Fault(FaultKind.LOST_GROUPS, "generator0", "generate", 1), {"validates": True}, WRONG_ANSWER, 0),
        (Fault(FaultKind.LOST_GROUPS, "scorer0", "score", 1, 1.0), {"prompts": 2}, WRONG_ANSWER, 0),
        (Fault(FaultKind.OLD_TICKET, LEARNER, "publish", 2), {}, WRONG_ANSWER, 1),
        (Fault(FaultKind.LOST_WEIGHTS, "generator0", "load", 2), {}, WRONG_ANSWER, 1),
        (Fault(FaultKind.SECOND_LOAD, "generator0", "load", 1), {}, WRONG_ANSWER, 1),
        # All that it sampled came too late, so the Learner waited and the Generator went on without end.
        (
            Fault(FaultKind.SECOND_LOAD, "generator0", "load", 1),
            {"steps": 3, "max_lag": 1, "lag_control": "drop", "timings": SECONDS[3:]},
            WRONG_ANSWER,
            1,
        ),
    ],
)
def test_a_fault_that_must_end_the_run_does(fault, settings, end, steps):
    outcome = run(fault, **settings)
    assert (outcome.end, len(times(outcome, "update ends"))) == (end, steps)
    assert outcome.happened.total() == 1


def told_dead(outcome: Outcome) -> list[str]:
    return [event.lane for event in outcome.events if event.what == "told: replaced"]


def test_a_death_that_two_calls_hear_of_is_one_and_of_two_heard_of_in_the_wrong_order_both_are_told():
    # In flight. Batch 1 is generated from 11 on, version 1 loaded beside it from 17 on; the part dies at 18. Loaded
    # again at 20, generated 28, scored 29, update 33.
    one = run(Fault(KILLED, "generator0", "load", 2, 1), max_lag=1, lag_control="in_flight")
    assert (one.end, told_dead(one), times(one, "update ends")) == ("finished", ["generator0"], [16, 33])
    # Batch 1 dies with the first part; the load beside it, begun later, dies with the second one, and the loop hears of
    # that death first. It told the observer of one.
    deaths = Fault(KILLED, "generator0", "generate", 3), Fault(KILLED, "generator0", "load", 2)
    settings = {"max_lag": 1, "lag_control": "in_flight", "validates": True, "restart_s": 1.0, "timings": ()}
    two = run(*deaths, **settings)
    assert (two.end, told_dead(two)) == ("finished", ["generator0"] * 2)


# ---- groups fail


def test_a_reward_that_never_comes_costs_its_group_and_a_batch_without_any_ends_the_run():
    first, second = Unrewarded(Purpose.TRAIN, 1, 0), Unrewarded(Purpose.TRAIN, 1, 1)
    one, both = run(prompts=2, unrewarded=(first,)), run(prompts=2, unrewarded=(first, second))
    assert (one.end, one.happened) == ("finished", {"a reward never comes": 1})
    assert (both.end, times(both, "update ends")) == ("stopped: no reward for a whole batch", [16])
    assert run(prompts=2, unrewarded=(first, second), max_failed_batches=1).end == "finished"
    evaluation = run(validates=True, unrewarded=(replace(first, purpose=Purpose.EVALUATE),))
    assert (evaluation.end, evaluation.happened) == ("finished", {"an evaluation's reward never comes": 1})


def test_a_run_that_goes_on_knows_how_many_batches_failed_last():
    # Steps 1 to 3 have no rewards. The Learner dies in step 2, after one of them; its checkpoint is of version 2.
    settings = {"steps": 6, "checkpoint_every": 1, "max_failed_batches": 2}
    settings["unrewarded"] = tuple(Unrewarded(Purpose.TRAIN, step, 0) for step in (1, 2, 3))
    outcome = run(Fault(KILLED, LEARNER, "update", 3, 1.0), **settings)
    assert (outcome.end, outcome.resumed) == ("stopped: no reward for a whole batch", (2,))


def test_failed_groups_take_no_room_under_drop(simulate):
    # Room is for 2 * (1 + 1) batches of 4 groups: 16 groups. One of each of the 20 batches fails.
    seen = simulate(steps=20, lag_control="drop", fails=lambda item, prompt_id: prompt_id == 0)
    assert seen.ledger.trained == Count(20 * 3 * 2, 20 * 3 * 2 * 8)


def test_batches_in_a_row_may_fail_and_one_more_ends_the_run_and_says_why(simulate, story):
    """Their steps train on nothing and publish the same policy; after a good batch they are counted from 0 again."""
    with pytest.raises(RunStopped, match=r"the reward of prompt 0 failed .*in a row: 3; .* max_failed_batches .* 2"):
        simulate(story, steps=9, fails=lambda item, prompt_id: item.step in (1, 2, 4, 5, 6), max_failed_batches=2)
    assert [len(facts.groups) for facts in story.facts] == [4, 0, 0, 4, 0, 0]
    assert [facts.weight_handle.version for facts in story.facts] == [1, 2, 3, 4, 5, 6]
    assert story.ledger is None  # the run did not finish
    # 7 batches of 8 rollouts of 8 tokens each, of which 5 failed
    assert story.events[-1] == ("broken off", Count(56, 448), Count(40, 320))


def test_where_a_batch_fails_the_replay_buffer_goes_on(simulate):
    replay = ReplaySettings(capacity=8, max_age=9, sampling="newest", sample_groups=4)
    seen = simulate(
        steps=4, max_lag=0, replay=replay, fails=lambda item, prompt_id: item.step in (0, 2), max_failed_batches=1
    )
    assert seen.trained == [[], [1] * 4, [1] * 4, [3] * 4]
    assert seen.ledger.trained_again == Count(8, 64)
