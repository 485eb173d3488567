"""Bounded lag on simulated stages: ``wait``, ``drop`` and ``in_flight``. Arithmetic stands beside each number.

``simulate`` and its usual durations are in ``conftest.py``.
"""

import asyncio
from dataclasses import replace

import pytest

from harness.core.errors import RunStopped
from harness.core.types import WorkItem
from harness.loop import Count
from harness.loop.batching import InOrder


def tokens_by_batch(item: WorkItem, prompt_id: int) -> tuple[int, ...]:
    """Responses of batch b have b + 1 tokens."""
    return (item.step + 1,) * item.group_size


def versions(seen) -> list[list[tuple[int, int, float]]]:
    """(oldest, newest, mean) version of the first group that each step trained on."""
    groups = [facts.groups[0] for facts in seen.story.facts]
    return [(group.min_version, group.max_version, group.token_version) for group in groups]


# ---- wait


def test_lag_two_starts_each_batch_two_versions_ahead_at_most(simulate):
    seen = simulate(steps=5, max_lag=2, generate=[2])
    assert seen.work == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "generate", 1, 3, 0),
        ("scorer", "score", 3, 4, 0),
        ("generator", "generate", 3, 5, 0),  # batch 1: lag 1
        ("learner", "update", 4, 9, 0),
        ("scorer", "score", 5, 6, 0),
        ("generator", "generate", 5, 7, 0),  # batch 2: lag 2
        ("scorer", "score", 7, 8, 0),
        ("learner", "weight_publish", 9, 10, 1),
        ("generator", "generate", 10, 12, 1),  # batch 3 needs version 1
        ("learner", "update", 10, 15, 1),
        ("scorer", "score", 12, 13, 1),
        ("learner", "weight_publish", 15, 16, 2),
        ("generator", "generate", 16, 18, 2),  # batch 4 needs version 2
        ("learner", "update", 16, 21, 2),
        ("scorer", "score", 18, 19, 2),
        ("learner", "weight_publish", 21, 22, 3),
        ("learner", "update", 22, 27, 3),
        ("learner", "weight_publish", 27, 28, 4),
        ("learner", "update", 28, 33, 4),
        ("learner", "weight_publish", 33, 34, 5),
    ]
    assert seen.waits("generator") == [
        ("wait_for_weights", 0, 1),
        ("wait_for_weights", 7, 10),
        ("wait_for_weights", 12, 16),
        ("wait_for_weights", 18, 34),
    ]
    assert [facts.taken[0].age for facts in seen.story.facts] == [0, 1, 2, 2, 2]
    assert [facts.in_queue for facts in seen.story.facts] == [0, 8, 8, 8, 0]  # the next batch: 4 prompts x 2


class HoldsBack:
    """Notes when a batch asks to begin, and holds some of them back."""

    def __init__(self, **seconds_by_step: float) -> None:
        self.asked, self.seconds = [], seconds_by_step

    async def acquire(self, step: int) -> None:
        self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds.get(f"step{step}", 0))


def test_at_lag_zero_a_step_ends_as_soon_as_its_weights_are_loaded(simulate):
    # Batch 0 until 9.5, scored 10.5, update 15.5, publish 16.5, load 17: then the Learner waits for batch 1, until 26.
    throttle = HoldsBack()
    assert simulate(steps=2, max_lag=0, load=[0.5], throttle=throttle).waits("learner") == [
        ("wait_for_batch", 1, 10.5),
        ("wait_for_batch", 16.5, 17),
        ("wait_for_batch", 17, 26),
    ]
    assert throttle.asked == [1.5, 17]  # with the weights at hand: what is done between two steps comes right before it


def test_parts_of_several_lanes_share_the_work(simulate):
    seen = simulate(generate=[4, 6.5], score=[3, 3])
    # Which of two idle Scorers takes the next shard is left open.
    assert [("scorer", *row[1:]) if "scorer" in row[0] else row for row in seen.work] == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator0", "generate", 1, 5, 0),
        ("generator1", "generate", 1, 7.5, 0),
        ("scorer", "score", 5, 8, 0),
        ("generator0", "generate", 5, 9, 0),  # batch 1, shard 0
        ("scorer", "score", 7.5, 10.5, 0),
        ("generator1", "generate", 7.5, 14, 0),  # batch 1, shard 1
        ("scorer", "score", 9, 12, 0),
        ("learner", "update", 10.5, 15.5, 0),  # batch 0 is complete with its second shard
        ("scorer", "score", 14, 17, 0),
        ("learner", "weight_publish", 15.5, 16.5, 1),
        ("generator0", "generate", 16.5, 20.5, 1),  # batch 2 needs version 1
        ("generator1", "generate", 16.5, 23, 1),
        ("learner", "update", 17, 22, 1),
        ("scorer", "score", 20.5, 23.5, 1),
        ("learner", "weight_publish", 22, 23, 2),
        ("scorer", "score", 23, 26, 1),
        ("learner", "update", 26, 31, 2),
        ("learner", "weight_publish", 31, 32, 3),
    ]
    assert [[group.prompt_id for group in facts.groups] for facts in seen.story.facts] == [[0, 1, 2, 3]] * 3


# ---- drop


def test_drop_throws_away_what_is_too_old_and_waits_for_room(simulate):
    # The Generator makes 4 batches in the 10 s of an update and a publish. Room for 2 * (1 + 1) = 4 batches under way.
    seen = simulate(lag_control="drop", generate=[2], update=9, lengths=tokens_by_batch)
    assert seen.work == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "generate", 1, 3, 0),  # batch 0
        ("scorer", "score", 3, 4, 0),
        ("generator", "generate", 3, 5, 0),  # 1
        ("learner", "update", 4, 13, 0),
        ("scorer", "score", 5, 6, 0),
        ("generator", "generate", 5, 7, 0),  # 2
        ("scorer", "score", 7, 8, 0),
        ("generator", "generate", 7, 9, 0),  # 3
        ("scorer", "score", 9, 10, 0),
        ("generator", "generate", 9, 11, 0),  # 4: batches 1 to 4 are under way now
        ("scorer", "score", 11, 12, 0),
        ("learner", "weight_publish", 13, 14, 1),
        ("generator", "generate", 14, 16, 1),  # 5: room since batch 1 was taken
        ("learner", "update", 14, 23, 1),  # batch 1, lag 1
        ("scorer", "score", 16, 17, 1),
        ("learner", "weight_publish", 23, 24, 2),  # batches 2, 3 and 4 would have lag 2
        ("generator", "generate", 23, 25, 1),  # 6: with the newest published weights, lag 1
        ("learner", "update", 24, 33, 2),  # batch 5, lag 1
        ("scorer", "score", 25, 26, 1),
        ("generator", "generate", 25, 27, 2),  # 7
        ("scorer", "score", 27, 28, 2),
        ("generator", "generate", 27, 29, 2),  # 8
        ("scorer", "score", 29, 30, 2),
        ("generator", "generate", 29, 31, 2),  # 9
        ("scorer", "score", 31, 32, 2),
        ("learner", "weight_publish", 33, 34, 3),  # batch 6 would have lag 2; 7, 8 and 9 are left over
    ]
    assert seen.waits("generator") == [
        ("wait_for_weights", 0, 1),
        ("wait_for_room", 11, 14),
        ("wait_for_room", 16, 23),
        ("wait_for_room", 31, 33),
        ("wait_for_weights", 33, 34),
    ]
    assert seen.trained == [[0] * 4, [1] * 4, [5] * 4]
    # 8 rollouts a batch, batch b of b + 1 tokens each: 2, 3, 4 have 3 + 4 + 5 = 12, 6 has 7.
    assert [facts.dropped for facts in seen.story.facts] == [Count(), Count(24, 8 * 12), Count(8, 8 * 7)]
    assert seen.ledger.generated == Count(80, 8 * 55)  # 1 + 2 + ... + 10
    assert seen.ledger.trained == Count(24, 8 * 9)  # 1 + 2 + 6
    assert seen.ledger.dropped == Count(32, 8 * 19)  # 12 + 7
    assert seen.ledger.unused == Count(24, 8 * 27)  # 8 + 9 + 10
    assert seen.ledger.dropped.mean_length == 19 / 4
    assert [(facts.in_queue, facts.in_flight) for facts in seen.story.facts] == [(0, 8), (24, 0), (0, 8)]


def test_under_drop_a_batch_is_made_of_the_shards_that_come_first(simulate):
    # Shards of 2 prompts: generator0 has batch 0, shard 0 at 3 and batch 1, shard 0 at 5; generator1 its first at 6.
    seen = simulate(steps=2, lag_control="drop", generate=[2, 5])
    first, second = seen.story.facts
    assert [(part.item.step, part.item.shard) for part in first.scored] == [(0, 0), (1, 0)]
    # After that: batch 0, shard 1 by generator1 (6), batch 1, shard 1 by generator0 (7).
    assert [(part.item.step, part.item.shard) for part in second.scored] == [(0, 1), (1, 1)]


def test_under_drop_weights_that_are_too_old_when_they_are_loaded_are_loaded_anew(simulate):
    def slow_at_first(version: int) -> float:
        return 11 if version == 0 else 0

    seen = simulate(steps=6, lag_control="drop", generate=[1, 1], load=[0, slow_at_first], score=[0.5], update=1)
    # generator0 makes a shard each second, so batches are ready at 3.5, 5.5, 8.5 and 10.5. At 12, when generator1 has
    # its first weights, the Learner is at version 4 (10.5 + 1) and publishes it until 12.5; version 3 is the newest.
    assert [row[2] for row in seen.work if row[1] == "update"][:4] == [3.5, 5.5, 8.5, 10.5]
    assert [row for row in seen.work if row[0] == "generator1"][:2] == [
        ("generator1", "weight_load", 1, 12, 0),
        ("generator1", "generate", 12, 13, 3),
    ]


# ---- in flight


def test_weights_are_swapped_while_a_batch_is_generated(simulate):
    seen = simulate(lag_control="in_flight", update=3, load=[0.5])
    assert seen.work == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "weight_load", 1, 1.5, 0),
        ("generator", "generate", 1.5, 9.5, 0),
        ("scorer", "score", 9.5, 10.5, 0),
        ("generator", "generate", 9.5, 17.5, 0),  # batch 1
        ("learner", "update", 10.5, 13.5, 0),
        ("learner", "weight_publish", 13.5, 14.5, 1),
        ("generator", "weight_load", 14.5, 15, 1),
        ("scorer", "score", 17.5, 18.5, 0),
        ("generator", "generate", 17.5, 25.5, 1),  # batch 2
        ("learner", "update", 18.5, 21.5, 1),
        ("learner", "weight_publish", 21.5, 22.5, 2),
        ("generator", "weight_load", 22.5, 23, 2),
        ("scorer", "score", 25.5, 26.5, 1),
        ("learner", "update", 26.5, 29.5, 2),
        ("learner", "weight_publish", 29.5, 30.5, 3),
    ]
    # The last 2.5 of 8 s had the newer weights: 2.5 / 8 = 0.3125.
    assert versions(seen) == [(0, 0, 0), (0, 1, 0.3125), (1, 2, 1.3125)]
    assert [facts.taken[0].age for facts in seen.story.facts] == [0, 1, 1]  # from the oldest token
    assert seen.ledger.trained == seen.ledger.generated == Count(24, 192)


def test_weights_are_swapped_as_often_as_they_come(simulate):
    seen = simulate(
        max_lag=2,
        lag_control="in_flight",
        update=3,
        generate=[lambda step: [1, 1, 20][step]],
        validation_prompts=(7,),
    )
    # Version 0 is evaluated from 1 to 3; batches 0, 1, 2 start at 3, 4, 5. Scored at 5 and 6, so updates run 5-8 and
    # 9-12 and versions 1 and 2 come at 9 and 13. Of 20 s from 5: 4 with version 0, 4 with 1, 12 with 2; mean 28 / 20.
    assert versions(seen) == [(0, 0, 0), (0, 0, 0), (0, 2, 1.4)]
    assert [facts.taken[0].age for facts in seen.story.facts] == [0, 1, 2]
    assert [event for event in seen.story.events if event[1] != "learner"] == [
        ("version", "generator", 0),
        ("evaluation", 0, (7,)),
        ("step", 0),
        ("version", "generator", 1),
        ("step", 1),
        ("version", "generator", 2),
        ("step", 2),
        ("version", "generator", 1),  # the evaluations that came due on the way, each with exactly its weights
        ("version", "generator", 2),
        ("evaluation", 1, (7,)),
        ("version", "generator", 3),
        ("evaluation", 2, (7,)),
        ("evaluation", 3, (7,)),
    ]


# ---- evaluation


def test_in_turns_evaluations_come_between_the_steps(simulate):
    seen = simulate(max_lag=0, evaluate_every=2, validation_prompts=(7, 8))
    assert seen.story.events == [
        ("version", "learner", 0),
        ("version", "generator", 0),
        ("evaluation", 0, (7, 8)),
        ("version", "learner", 1),
        ("version", "generator", 1),
        ("step", 0),
        ("version", "learner", 2),
        ("version", "generator", 2),
        ("evaluation", 2, (7, 8)),
        ("step", 1),
        ("version", "learner", 3),
        ("version", "generator", 3),
        ("evaluation", 3, (7, 8)),
        ("step", 2),
    ]
    assert seen.seconds == 1 + 3 * 15 + 3 * (2 + 1)  # three evaluations, each sampled (2 s) and then scored (1 s)


def test_evaluations_under_wait_come_between_two_batches(simulate):
    seen = simulate(evaluate_every=2, validation_prompts=(7, 8))
    assert [row for row in seen.work if row[0] == "generator"] == [
        ("generator", "evaluate", 1, 3, 0),
        ("generator", "generate", 3, 11, 0),
        ("generator", "generate", 11, 19, 0),
        ("generator", "generate", 19, 27, 1),  # version 2 is due from 26 on: update 20-25, publish 25-26
        ("generator", "evaluate", 34, 36, 2),  # the Generator waits for version 3: score 28, update 33, publish 34
        ("generator", "evaluate", 36, 38, 3),
    ]
    assert [event for event in seen.story.events if event[0] == "evaluation"] == [
        ("evaluation", version, (7, 8)) for version in (0, 2, 3)
    ]
    assert seen.seconds == 39  # the last evaluation is scored


# ---- the bounds are checked where they cannot be broken, too


@pytest.mark.parametrize(("behind", "stops"), [(1, False), (2, True)])
def test_a_rollout_older_than_the_bound_is_never_trained_on(simulate, monkeypatch, behind, stops):
    take = InOrder.take

    def take_older(intake: InOrder, step: int):
        """The batch, with a first group whose oldest token is so many versions behind; version ``step`` trains."""
        first, *others = take(intake, step)
        aged = replace(first.groups[0], min_version=max(0, step - behind))
        return replace(first, groups=(aged, *first.groups[1:])), *others

    monkeypatch.setattr(InOrder, "take", take_older)
    if not stops:
        assert len(simulate(max_lag=1).story.facts) == 3
        return
    with pytest.raises(RunStopped, match=r"training step 2 .* lag 2 is above max_lag 1"):
        simulate(max_lag=1)


@pytest.mark.parametrize(("held_back_s", "stops"), [(1.0, False), (2.0, True)])
def test_a_batch_held_back_beyond_the_bound_is_never_begun(simulate, held_back_s, stops):
    # Batches 0 and 1 are generated until 1 and 2; their updates end at 2.5 and 3.5. Batch 2 is to begin at 2 with
    # version 0: at 3 the Learner is at version 1, at 4 at version 2.
    settings = {"lag_control": "drop", "generate": [1], "score": [0.5], "update": 1, "publish": 0}
    settings["throttle"] = HoldsBack(step2=held_back_s)
    if not stops:
        assert len(simulate(**settings).story.facts) == 3
        return
    with pytest.raises(RunStopped, match=r"starts the batch of step 2 .* lag 2 is above max_lag 1"):
        simulate(**settings)
