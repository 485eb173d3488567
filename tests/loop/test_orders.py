"""Whether a part answered what it was asked: what is taken, and which numbers the refusal of anything else names."""

from dataclasses import replace

import pytest

from harness.core.errors import RunStopped
from harness.core.types import Purpose, RolloutGroup, ScoredBatch, WeightHandle, WorkItem
from harness.loop.orders import check_generated, check_published, check_scored

ITEM = WorkItem(Purpose.TRAIN, 3, 1, (4, 5), 2, seed=0)
GROUPS = tuple(RolloutGroup(prompt, 3, 2, 2, (7, 8)) for prompt in (4, 5))
SCORED = ScoredBatch(ITEM, tuple(replace(group, rewards=(0.0, 1.0)) for group in GROUPS), {})
EVALUATION = WorkItem(Purpose.EVALUATE, 3, 0, (0,), 1, seed=0)
TRAIN, EVALUATE = "generate shard 1 of batch 3", "evaluate version 3"


def each_with(**fields: object) -> tuple[RolloutGroup, ...]:
    return tuple(replace(group, **fields) for group in GROUPS)


def evaluated(first: int, last: int) -> tuple[RolloutGroup, ...]:
    return (RolloutGroup(0, 3, first, last, (5,)),)


def test_what_was_asked_is_taken():
    check_generated("generator", ITEM, GROUPS, loaded=2)
    check_generated("generator", ITEM, each_with(max_version=3), loaded=1)
    check_generated("generator", EVALUATION, evaluated(3, 3), loaded=3)
    check_scored("scorer", ITEM, GROUPS, SCORED)
    check_scored("scorer", ITEM, GROUPS, replace(SCORED, groups=SCORED.groups[:1], failed_groups=1))
    check_published("learner", 3, WeightHandle(3, 0, 1))


@pytest.mark.parametrize(
    ("check", "asked", "named"),
    [
        (check_generated, (ITEM, GROUPS[:1], 2), (TRAIN, "[(3, 4, 2)]")),
        (check_generated, (ITEM, GROUPS[::-1], 2), (TRAIN, "[(3, 5, 2), (3, 4, 2)]")),
        (check_generated, (ITEM, each_with(step=2), 2), (TRAIN, "[(2, 4, 2), (2, 5, 2)]")),
        (check_generated, (ITEM, each_with(lengths=(7,)), 2), (TRAIN, "[(3, 4, 1), (3, 5, 1)]")),
        (check_generated, (ITEM, each_with(attempt=1), 2), (TRAIN, "[(3, 4, 2), (3, 5, 2)]")),
        (check_generated, (ITEM, (), 2), (TRAIN, "[]")),
        # rollouts of older weights than were loaded, and an evaluation of newer ones
        (check_generated, (ITEM, each_with(min_version=1), 2), (TRAIN, "with version 2", "1 to 2")),
        (check_generated, (EVALUATION, evaluated(2, 2), 3), (EVALUATE, "with version 3", "2 to 2")),
        (check_generated, (EVALUATION, evaluated(3, 4), 3), (EVALUATE, "with version 3", "3 to 4")),
        # the answer to another order; groups that are gone and not counted; weights of another version
        (check_scored, (ITEM, GROUPS, replace(SCORED, item=EVALUATION)), (TRAIN, EVALUATE)),
        (check_scored, (ITEM, GROUPS, replace(SCORED, groups=SCORED.groups[:1])), (TRAIN, "2 groups", "1 with", "0 f")),
        (check_published, (3, WeightHandle(2, 0, 1)), ("version 3", "published 2")),
    ],
)
def test_anything_else_stops_the_run(check, asked, named):
    with pytest.raises(RunStopped) as caught:
        check("lane9", *asked)
    assert all(part in str(caught.value) for part in ("wrong answer: lane9 ", *named)), str(caught.value)
