"""Calls read from spans that are written down here in milliseconds, with and without the recorded ways of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.core.errors import UserError
from harness.core.trace import Stage
from harness.results import Run, load_run
from harness.results.rows import SPANS
from harness.results.writer import SCENARIO
from harness.scenario.schema import Scenario
from harness.simulate.machine import Contention
from harness.simulate.recorded_run import _WORK, RecordedCall, RecordedRun, RecordedStage, Work
from harness.simulate.whatif.answer import check_can_be_replayed
from harness.simulate.whatif.change import stages_of
from harness.simulate.whatif.replay import CallPool
from harness.simulate.whatif.repricing import undisturbed
from tests.simulate.conftest import WriteRun

DISTRIBUTED = {
    "transport": {"type": "object_store"},
    "placement": {"colocated": False, "generator": {"threads": 1}, "learner": {"threads": 1}},
}
Row = tuple[str, str, int, int, int]
"""Lane, stage, start and end in milliseconds, step."""

LEARNER: list[Row] = [  # the loop begins at 100 ms; steps end at 300 and 520 ms
    ("learner", "startup", 0, 100, -1),
    ("learner", "weight_publish", 102, 110, 0),
    ("learner", "weight_verify", 111, 113, 0),
    ("learner", "wait_for_batch", 116, 200, 0),
    ("learner", "prepare_batch", 205, 210, 0),
    ("learner", "update", 210, 280, 0),
    ("learner", "weight_publish", 288, 296, 1),
    ("learner", "update", 312, 400, 1),
    ("learner", "weight_publish", 410, 420, 2),
    ("learner", "wait_for_batch", 425, 500, 2),
]
WAYS: list[Row] = [
    ("learner", "wait_for_call", 100, 102, 0),
    ("learner", "wait_for_call", 113, 115, 0),
    ("learner", "wait_for_call", 201, 205, 0),
    ("learner", "wait_for_call", 280, 283, 0),
    ("learner", "wait_for_call", 284, 288, 1),
    ("learner", "wait_for_call", 296, 299, 1),
    ("learner", "wait_for_recorder", 300, 306, 0),
    ("learner", "wait_for_call", 307, 312, 1),
    ("learner", "wait_for_call", 400, 401, 1),
]


Write = Callable[..., Run]


@pytest.fixture
def write(write_run: WriteRun) -> Write:
    """Return a function that writes a run of these spans, whose steps end at these milliseconds, and reads it."""

    def run_of(rows: Sequence[Row], ends: Sequence[int] = (300, 520)) -> Run:
        return load_run(write_run(rows, steps=[{"elapsed_s": (end - 100) / 1e3} for end in ends]))

    return run_of


def told(calls: Sequence[RecordedCall]) -> list[tuple[str, str, int, float, list[tuple[str | None, float]], float]]:
    """Each call in milliseconds: way there, its stages, way back."""
    return [
        (
            call.lane,
            call.work.value,
            call.key,
            round(call.request_s * 1e3, 6),
            [(each.stage and each.stage.value, round(each.seconds * 1e3, 6)) for each in call.stages],
            round(call.response_s * 1e3, 6),
        )
        for call in calls
    ]


def test_calls_with_recorded_ways(write: Write) -> None:
    calls, record_s = RecordedRun(write([*LEARNER, *WAYS])).calls()

    assert told(calls) == [
        # from the loop's start; back until the Learner's coroutine goes on with its wait at 116
        ("learner", "publish", 0, 2, [("weight_publish", 8), (None, 1), ("weight_verify", 2)], 3),
        # from the end of the wait at 200; the answer is there at 283, and the next call begins with it
        ("learner", "update", 0, 5, [("prepare_batch", 5), ("update", 70)], 3),
        ("learner", "publish", 1, 5, [("weight_publish", 8)], 4),  # back until the step ends at 300
        ("learner", "update", 1, 6, [("update", 88)], 1),  # the driver keeps its books from 300 to 306
        ("learner", "publish", 2, 9, [("weight_publish", 10)], 5),
    ]
    assert record_s == {0: pytest.approx(0.006)}


def test_calls_of_before_ways_were_recorded(write: Write) -> None:
    calls, record_s = RecordedRun(write(LEARNER)).calls()

    by_key = {(call.work, call.key): call for call in calls}
    assert told([by_key[Work.UPDATE, 0]])[0][3:] == (5, [("prepare_batch", 5), ("update", 70)], 4)  # half of 280 to 288
    assert told([by_key[Work.PUBLISH, 1]])[0][3] == 4  # the other half
    assert told([by_key[Work.UPDATE, 1]])[0][3] == 12  # from 300 on, the driver's own books included
    assert record_s == {}
    # where a step ends at 300 and the wait begins at 304, the driver's own books show without spans of theirs
    rows = [*LEARNER[:4], ("learner", "update", 205, 290, 0), ("learner", "wait_for_batch", 304, 350, 1)]
    assert RecordedRun(write(rows, ends=(300,))).calls()[1] == {0: pytest.approx(0.004)}


def test_weights_in_the_middle_of_a_batch_are_a_call_of_their_own(write: Write) -> None:
    rows: list[Row] = [
        ("generator", "startup", 0, 100, -1),
        ("generator", "wait_for_weights", 100, 110, 0),
        ("generator", "generate", 112, 200, 0),
        ("generator", "wait_for_call", 110, 112, 0),
        ("generator", "wait_for_call", 200, 203, 0),
        ("generator", "weight_transfer", 131, 140, 1),
        ("generator", "weight_load", 140, 150, 1),
        ("generator", "wait_for_call", 130, 131, 1),
        ("generator", "wait_for_call", 150, 152, 1),
        ("generator", "wait_for_weights", 204, 260, 1),
    ]

    assert told(RecordedRun(write(rows)).calls()[0]) == [
        ("generator", "generate", 0, 2, [("generate", 88)], 3),
        ("generator", "load", 1, 1, [("weight_transfer", 9), ("weight_load", 10)], 2),
    ]


def test_two_shards_of_a_batch_are_two_calls(write: Write) -> None:
    rows: list[Row] = [
        ("scorer", "startup", 0, 100, -1),
        ("scorer", "wait_for_rollouts", 100, 120, 0),
        ("scorer", "score", 120, 125, 0),
        ("scorer", "score", 125, 131, 0),
        ("scorer", "wait_for_rollouts", 131, 150, 0),
        ("scorer", "score", 150, 153, 0),
    ]

    assert [call.seconds for call in RecordedRun(write(rows)).calls()[0]] == pytest.approx([0.005, 0.006, 0.003])


def test_a_stage_that_nothing_asks_for_is_part_of_the_call_beside_it(write: Write) -> None:
    """Memory that is moved, and stages of other versions: before the call after a wait, else after it."""
    rows: list[Row] = [
        ("learner", "startup", 0, 100, -1),
        ("learner", "weight_publish", 100, 110, 0),
        ("learner", "offload", 110, 113, -1),
        ("learner", "onload", 113, 115, -1),
        ("learner", "wait_for_batch", 115, 200, 0),
        ("learner", "shuffle_of_theirs", 200, 204, 0),
        ("learner", "update", 204, 280, 0),
        ("scorer", "startup", 0, 100, -1),
        ("scorer", "wait_for_rollouts", 100, 120, 0),
        ("scorer", "unpack_of_theirs", 120, 121, 0),
        ("scorer", "score", 121, 125, 0),
        ("scorer", "filter_of_theirs", 125, 127, 0),
        ("scorer", "score", 127, 131, 0),
        ("scorer", "filter_of_theirs", 131, 134, 0),
    ]

    calls, _ = RecordedRun(write(rows)).calls()

    assert [(lane, work, key, stages) for lane, work, key, _, stages, _ in told(calls)] == [
        ("learner", "publish", 0, [("weight_publish", 10), ("offload", 3), ("onload", 2)]),
        ("scorer", "score", 0, [("unpack_of_theirs", 1), ("score", 4), ("filter_of_theirs", 2)]),
        ("scorer", "score", 0, [("score", 4), ("filter_of_theirs", 3)]),
        ("learner", "update", 0, [("shuffle_of_theirs", 4), ("update", 76)]),
    ]
    ours = ["score", "update", "weight_publish", "offload", "onload"]
    assert stages_of(calls, {})[:8] == [*ours, "filter_of_theirs", "shuffle_of_theirs", "unpack_of_theirs"]


def test_a_lane_of_which_nothing_is_known_is_refused(write: Write) -> None:
    recorded = RecordedRun(write([*LEARNER, ("judge", "think_of_theirs", 120, 140, 0)]))
    with pytest.raises(UserError) as refused:
        recorded.calls()
    assert refused.value.where == SPANS
    assert "judge" in refused.value.what
    assert "think_of_theirs" in refused.value.what


def test_every_stage_of_ours_is_asked_for_or_part_of_what_is() -> None:
    """A new stage goes into ``_WORK``, or here: then it is replayed as a part of the call beside it."""
    beside = {Stage.WEIGHT_VERIFY, Stage.OFFLOAD, Stage.ONLOAD}
    assert {*_WORK} | beside == {stage for stage in Stage if not stage.is_wait and stage is not Stage.STARTUP}
    assert not {*_WORK} & beside


@pytest.mark.parametrize(
    ("settings", "named"),
    [("dynamic_sampling: {attempts: 2}\n", "dynamic_sampling"), ("learner: {stream: as_scored}\n", "learner.stream")],
)
def test_a_run_that_no_replay_repeats_is_refused(settings: str, named: str, write: Write) -> None:
    run = write([*LEARNER, *WAYS])
    (run.folder / SCENARIO).write_text(settings)
    with pytest.raises(UserError) as refused:
        check_can_be_replayed(RecordedRun(load_run(run.folder)))
    assert refused.value.where == str(run.folder)
    assert named in refused.value.what


def test_what_ran_beside_others_is_taken_at_what_it_would_take_alone(write: Write) -> None:
    rows: list[Row] = [
        ("learner", "startup", 0, 100, -1),
        ("learner", "update", 100, 160, 0),
        ("learner", "wait_for_batch", 170, 300, 1),
        ("generator", "startup", 0, 100, -1),
        ("generator", "generate", 130, 190, 1),
        ("generator", "wait_for_weights", 190, 300, 1),
    ]
    contention, scenario = Contention(cores=2, slowdown=0.5), Scenario.model_validate(DISTRIBUTED)

    alone, _ = RecordedRun(write([*LEARNER, *WAYS])).calls()
    assert told(undisturbed(alone, contention, scenario)) == told(alone)
    calls = undisturbed(RecordedRun(write(rows)).calls()[0], contention, scenario)

    # both work from 130 to 160, each at 1 / 1.5 of its speed: 30 ms are 20 ms of work
    assert told(calls)[0] == (
        "learner",
        "update",
        0,
        0,
        [("update", 50)],
        # the way back, 160 to 170, is beside the Generator: it would like 2 of the 2 cores, of which the Generator has
        # one, so it goes at 2/3 and at 1 / 1.5 of that
        pytest.approx(10 * 2 / 3 / 1.5, abs=1e-5),
    )
    # called at 100; the way there is beside the Learner for all of its 30 ms
    assert told(calls)[1] == (
        "generator",
        "generate",
        1,
        pytest.approx(30 * 2 / 3 / 1.5, abs=1e-5),
        [("generate", 50)],
        0,
    )


def call(lane: str, stage: Stage, key: int, seconds: float) -> RecordedCall:
    work = Work.LOAD if stage is Stage.WEIGHT_LOAD else Work.SCORE
    return RecordedCall(lane, work, key, (RecordedStage(stage, seconds),))


def test_a_book_hands_each_call_out_once() -> None:
    recorded = (("generator0", 0, 9.0), ("generator0", 5, 1.0), ("generator1", 5, 2.0), ("generator0", 6, 3.0))
    book = CallPool([call(lane, Stage.WEIGHT_LOAD, key, seconds) for lane, key, seconds in recorded], steady_from=2)

    # its own, that of the lane beside it, and once more as it was
    assert [book.take("generator1", Work.LOAD, 5).seconds for _ in range(3)] == [2.0, 1.0, 2.0]
    assert book.borrowed == {}
    # steady are those of versions 5, 5 and 6, in order of time: version 7 takes number 7 % 3 of them
    assert book.take("generator1", Work.LOAD, 7).seconds == 2.0
    assert book.borrowed == {Work.LOAD: 1}


def test_another_draw_takes_the_times_of_the_same_calls_from_another_place_on() -> None:
    calls = [call("scorer", Stage.SCORE, step, float(step)) for step in range(12)]
    by_draw = [CallPool(calls, steady_from=2, draw=draw) for draw in range(3)]
    times = [[pool.take("scorer", Work.SCORE, step).seconds for step in range(12)] for pool in by_draw]
    assert times[0] == list(range(12))
    for drawn in times[1:]:
        assert drawn != times[0]
        assert drawn[:2] == [0, 1]  # warm-up stays
        first = drawn.index(2)
        assert [*drawn[first:], *drawn[2:first]] == list(range(2, 12))
