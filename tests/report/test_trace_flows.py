"""Arrows: which span made which possible, drawn only where step, version and time leave no doubt."""

from __future__ import annotations

from harness.core.trace import Span, Stage
from harness.report.trace.chrome import Arrow
from harness.report.trace.flows import arrows, rollout_chains, weight_chains

GENERATE, SCORE, UPDATE = Stage.GENERATE, Stage.SCORE, Stage.UPDATE
PUBLISH, TRANSFER, LOAD = Stage.WEIGHT_PUBLISH, Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD


def span(lane: str, stage: Stage, start_ns: int, end_ns: int, step: int, version: int) -> Span:
    return Span(lane, stage, start_ns, end_ns, step, version)


ONE_STEP = [
    span("learner", PUBLISH, 0, 2, 0, 0),  # 0
    span("generator", TRANSFER, 2, 3, 0, 0),  # 1
    span("generator", LOAD, 3, 4, 0, 0),  # 2
    span("generator", GENERATE, 5, 9, 0, 0),  # 3
    span("scorer", SCORE, 9, 10, 0, 0),  # 4
    span("learner", UPDATE, 11, 19, 0, 0),  # 5
    span("learner", PUBLISH, 20, 22, 1, 1),  # 6
    span("generator", TRANSFER, 22, 23, 1, 1),  # 7
    span("generator", LOAD, 23, 24, 1, 1),  # 8
    span("generator", Stage.EVALUATE, 24, 30, 1, 1),  # 9
]


def test_a_step_of_a_synchronous_run_is_one_story() -> None:
    assert rollout_chains(ONE_STEP, True) == [[3, 4, 5]]
    assert weight_chains(ONE_STEP) == [[0, 1, 2, 3], [5, 6, 7, 8, 9]]


def test_numbers_follow_each_other_and_each_arrow_ends_once() -> None:
    def rollouts(phase: str) -> Arrow:
        return Arrow("rollouts", 1, phase)

    def weights(number: int, phase: str) -> Arrow:
        return Arrow("weights", number, phase)

    assert arrows(ONE_STEP, True) == {
        3: [rollouts("s"), weights(2, "f")],  # the rollouts begin here, the way of version 0 ends here
        4: [rollouts("t")],
        5: [rollouts("f"), weights(3, "s")],
        0: [weights(2, "s")],
        1: [weights(2, "t")],
        2: [weights(2, "t")],
        6: [weights(3, "t")],
        7: [weights(3, "t")],
        8: [weights(3, "t")],
        9: [weights(3, "f")],
    }


def test_the_order_of_the_spans_in_the_file_does_not_matter() -> None:
    backwards = ONE_STEP[::-1]
    last = len(ONE_STEP) - 1

    assert rollout_chains(backwards, True) == [[last - place for place in (3, 4, 5)]]
    assert weight_chains(backwards) == [[last - place for place in chain] for chain in ([0, 1, 2, 3], [5, 6, 7, 8, 9])]


def test_where_stale_rollouts_are_dropped_no_arrow_claims_which_update_took_them() -> None:
    assert rollout_chains(ONE_STEP, False) == [[3, 4]]


def test_shards_of_a_step_are_scored_in_the_order_in_which_they_end() -> None:
    spans = [
        span("generator0", GENERATE, 0, 9, 4, 4),  # 0 ends last
        span("generator1", GENERATE, 0, 5, 4, 4),  # 1
        span("scorer", SCORE, 6, 7, 4, 4),  # 2
        span("scorer", SCORE, 10, 11, 4, 4),  # 3
        span("learner", UPDATE, 12, 20, 4, 4),  # 4
    ]

    assert rollout_chains(spans, True) == [[1, 2, 4], [0, 3, 4]]


def test_of_attempts_on_parts_that_died_the_last_one_counts() -> None:
    spans = [
        span("generator", GENERATE, 0, 4, 0, 0),  # died
        span("generator", GENERATE, 6, 9, 0, 0),
        span("scorer", SCORE, 10, 11, 0, 0),
    ]

    assert rollout_chains(spans, True) == [[1, 2]]


def test_rollouts_that_nobody_scored_have_no_arrow() -> None:
    assert rollout_chains([span("generator", GENERATE, 0, 4, 0, 0)], True) == []
    assert arrows([], True) == {}


def test_each_generator_takes_a_version_along_its_own_arrow() -> None:
    spans = [
        span("learner", UPDATE, 0, 10, 2, 2),  # 0
        span("learner", PUBLISH, 11, 12, 3, 3),  # 1
        span("generator1", LOAD, 13, 14, 3, 3),  # 2
        span("generator0", LOAD, 15, 16, 3, 3),  # 3
        span("generator0", GENERATE, 17, 20, 4, 3),  # 4
        span("generator0", GENERATE, 21, 25, 5, 3),  # 5 is not the first with it
    ]

    assert weight_chains(spans) == [[0, 1, 3, 4], [0, 1, 2]]


def test_weights_that_arrive_during_a_batch_lead_to_the_next_one() -> None:
    spans = [
        span("learner", PUBLISH, 0, 1, 1, 1),  # 0
        span("generator", GENERATE, 0, 10, 1, 0),  # 1 began with the version before
        span("generator", LOAD, 4, 5, 1, 1),  # 2 in the middle of it
        span("generator", GENERATE, 11, 20, 2, 1),  # 3
    ]

    assert weight_chains(spans) == [[0, 2, 3]]


def test_a_version_that_nobody_took_goes_from_its_update_to_its_publish() -> None:
    spans = [span("learner", UPDATE, 0, 10, 2, 2), span("learner", PUBLISH, 11, 12, 3, 3)]

    assert weight_chains(spans) == [[0, 1]]
    assert weight_chains(spans[1:]) == []  # an arrow has two ends


def test_an_arrow_leads_forward_in_time_only() -> None:
    """On a virtual clock a publish may take no time, and the load begins at the same instant."""
    spans = [
        span("learner", UPDATE, 0, 10, 0, 0),  # 0
        span("learner", PUBLISH, 10, 10, 1, 1),  # 1
        span("generator", LOAD, 10, 10, 1, 1),  # 2 not after the publish
        span("generator", GENERATE, 11, 12, 1, 1),  # 3
        span("scorer", SCORE, 5, 6, 1, 1),  # 4 before its generation: no link
    ]

    assert weight_chains(spans) == [[0, 1, 3]]
    assert rollout_chains(spans, True) == []
