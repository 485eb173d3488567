"""What the loop says of a part that answers something else than it was asked."""

from dataclasses import replace

import pytest

from harness.core.errors import RunStopped
from harness.core.types import Purpose, RolloutGroup, ScoredBatch, WeightHandle, WorkItem
from harness.loop.orders import check_generated, check_published, check_scored

ITEM = WorkItem(Purpose.TRAIN, 3, 1, (4, 5), 2, seed=0)
GROUPS = tuple(RolloutGroup(prompt, 3, 2, 2, (7, 8)) for prompt in (4, 5))
SCORED = ScoredBatch(ITEM, tuple(replace(group, rewards=(0.0, 1.0)) for group in GROUPS), {})
EVALUATION = WorkItem(Purpose.EVALUATE, 3, 0, (0,), 1, seed=0)


def test_what_was_asked_is_taken():
    check_generated("generator", ITEM, GROUPS, loaded=2)
    check_generated("generator", ITEM, tuple(replace(group, max_version=3) for group in GROUPS), loaded=1)
    check_generated("generator", EVALUATION, (RolloutGroup(0, 3, 3, 3, (5,)),), loaded=3)
    check_scored("scorer", ITEM, GROUPS, SCORED)
    check_scored("scorer", ITEM, GROUPS, replace(SCORED, groups=SCORED.groups[:1], failed_groups=1))
    check_published("learner", 3, WeightHandle(3, 0, 1))


@pytest.mark.parametrize(
    ("groups", "answered"),
    [
        (GROUPS[:1], "[(3, 4, 2)]"),
        (GROUPS[::-1], "[(3, 5, 2), (3, 4, 2)]"),
        (tuple(replace(group, step=2) for group in GROUPS), "[(2, 4, 2), (2, 5, 2)]"),
        (tuple(replace(group, lengths=(7,)) for group in GROUPS), "[(3, 4, 1), (3, 5, 1)]"),
        ((), "[]"),
    ],
)
def test_groups_that_were_not_ordered_stop_the_run(groups, answered):
    with pytest.raises(RunStopped) as caught:
        check_generated("generator1", ITEM, groups, loaded=2)
    assert str(caught.value) == (
        "wrong answer: generator1 was to generate shard 1 of batch 3 and answered groups of (step, prompt, rollouts) "
        f"{answered}"
    )


@pytest.mark.parametrize(
    ("item", "versions", "held", "order"),
    [
        (ITEM, (1, 2), 2, "generate shard 1 of batch 3"),
        (EVALUATION, (2, 2), 3, "evaluate version 3"),
        (EVALUATION, (3, 4), 3, "evaluate version 3"),
    ],
)
def test_rollouts_of_older_weights_than_were_loaded_stop_the_run(item, versions, held, order):
    groups = tuple(RolloutGroup(prompt, 3, *versions, (7,) * item.group_size) for prompt in item.prompt_ids)
    with pytest.raises(RunStopped) as caught:
        check_generated("generator", item, groups, held)
    assert str(caught.value) == (
        f"wrong answer: generator was to {order} with version {held}, and sampled with the versions {versions[0]} to "
        f"{versions[1]}: the weights that it loaded are not those that it holds"
    )


def test_the_answer_to_another_order_stops_the_run():
    with pytest.raises(RunStopped) as caught:
        check_scored("scorer", ITEM, GROUPS, replace(SCORED, item=EVALUATION))
    assert str(caught.value) == (
        "wrong answer: scorer was to score what came of the order to generate shard 1 of batch 3 and answered for the "
        "one to evaluate version 3"
    )


def test_groups_that_are_gone_and_not_counted_stop_the_run():
    with pytest.raises(RunStopped) as caught:
        check_scored("scorer", ITEM, GROUPS, replace(SCORED, groups=SCORED.groups[:1]))
    assert str(caught.value) == (
        "wrong answer: scorer was to score the 2 groups of the order to generate shard 1 of batch 3 and answered 1 "
        "with rewards and 0 failed"
    )


def test_a_ticket_of_another_version_stops_the_run():
    with pytest.raises(RunStopped) as caught:
        check_published("learner", 3, WeightHandle(2, 0, 1))
    assert str(caught.value) == "wrong answer: learner was asked to publish version 3 and published 2"
