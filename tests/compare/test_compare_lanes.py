"""The time account of a lane closes to the nanosecond, whatever its spans look like."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from harness.compare import account_spans, lane_account
from harness.compare.attribution import in_pipeline_order, loop_window
from harness.core.intervals import clip, total
from harness.core.trace import Span, Stage
from harness.results import RunFolder, load_run


def _span(stage: Stage, start_ns: int, end_ns: int, lane: str = "learner") -> Span:
    return Span(lane, stage, start_ns, end_ns, 0, 0)


def test_stages_waits_and_the_rest_make_up_the_wall() -> None:
    spans = [
        _span(Stage.WAIT_FOR_BATCH, 0, 30),
        _span(Stage.UPDATE, 35, 80),
        _span(Stage.WEIGHT_PUBLISH, 80, 90),
        _span(Stage.GENERATE, 0, 100, "generator"),
    ]
    accounts = account_spans(spans, (10, 110))
    learner, generator = accounts["learner"], accounts["generator"]
    # 10..30 waiting, 30..35 nothing, 35..80 update, 80..90 publish, 90..110 nothing
    assert learner.stages_ns == {Stage.WAIT_FOR_BATCH: 20, Stage.UPDATE: 45, Stage.WEIGHT_PUBLISH: 10}
    assert (learner.wall_ns, learner.busy_ns, learner.waiting_ns, learner.unattributed_ns) == (100, 55, 20, 25)
    assert learner.share(learner.unattributed_ns) == 0.25
    assert (generator.stages_ns, generator.unattributed_ns) == ({Stage.GENERATE: 90}, 10)


def test_an_instant_under_several_spans_goes_to_the_one_that_began_last() -> None:
    spans = [
        _span(Stage.WEIGHT_LOAD, 20, 40),  # inside
        _span(Stage.CHECKPOINT, 0, 10),  # same start as the outer one, and shorter
        _span(Stage.EVALUATE, 0, 60),
        _span(Stage.SCORE, 50, 80),  # overlaps the end
    ]
    account = account_spans(spans, (0, 100))["learner"]
    assert account.stages_ns == {Stage.CHECKPOINT: 10, Stage.EVALUATE: 20, Stage.WEIGHT_LOAD: 20, Stage.SCORE: 30}
    assert account.unattributed_ns == 20  # 80..100


def test_the_window_starts_after_start_up_and_lasts_as_long_as_the_loop() -> None:
    spans = [_span(Stage.STARTUP, 0, 50), _span(Stage.STARTUP, 0, 70, "generator"), _span(Stage.UPDATE, 75, 90)]
    assert loop_window(spans, None) == (70, 90)
    assert loop_window(spans, 1.0) == (70, 1_000_000_070)
    assert loop_window(spans[2:], None) == (75, 90)


@given(
    st.lists(st.tuples(st.sampled_from(list(Stage)), st.integers(0, 100), st.integers(0, 40)), max_size=12),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_the_account_closes_for_any_spans(shapes: list[tuple[Stage, int, int]], start_ns: int, length: int) -> None:
    spans = [_span(stage, begin, begin + duration) for stage, begin, duration in shapes]
    window = (start_ns, start_ns + length)
    for account in account_spans(spans, window).values():
        assert all(ns >= 0 for ns in account.stages_ns.values())
        assert account.busy_ns + account.waiting_ns + account.unattributed_ns == account.wall_ns == length
        covered = total(clip([(span.start_ns, span.end_ns) for span in spans], window))
        assert account.unattributed_ns == length - covered


def test_the_account_of_a_run_is_read_from_its_spans(make_run: Callable[..., RunFolder]) -> None:
    run = load_run(make_run(steps=4, gap_s=0.25, evaluations={0: (0.2, 12.0)}).folder)
    accounts = lane_account(run)
    assert list(accounts) == ["generator", "scorer", "learner"]
    generator, learner = accounts["generator"], accounts["learner"]
    # evaluation 1 s, then 4 steps of 1 s and a gap of 0.25 s: 6 s
    assert generator.wall_ns == learner.wall_ns == 6_000_000_000
    assert generator.busy_ns == 2_600_000_000  # 1 + 4 * (0.3 + 0.1)
    assert generator.waiting_ns == 2_400_000_000  # 4 * 0.6
    assert generator.unattributed_ns == 1_000_000_000  # 4 * 0.25
    assert learner.stages_ns == {Stage.UPDATE: 2_000_000_000, Stage.WAIT_FOR_BATCH: 3_000_000_000}


def test_a_run_without_spans_has_no_account(make_run: Callable[..., RunFolder]) -> None:
    folder = make_run().folder
    (folder / "spans.jsonl").unlink()
    assert lane_account(load_run(folder)) == {}


def test_lanes_stand_in_the_order_of_the_work() -> None:
    names = ["learner", "scorer", "generator_1", "generator_0", "driver"]
    assert in_pipeline_order(names) == ["generator_0", "generator_1", "scorer", "learner", "driver"]


def test_a_call_on_its_way_owns_only_what_nothing_else_claims() -> None:
    spans = [
        Span("generator", Stage.GENERATE, 0, 100, 1, 1),
        Span("generator", Stage.WAIT_FOR_CALL, 40, 60, 2, 2),  # a load's call arrives while the actor generates
        Span("generator", Stage.WEIGHT_LOAD, 60, 70, 2, 2),
        Span("generator", Stage.WAIT_FOR_CALL, 95, 130, 2, 2),
        Span("generator", Stage.WAIT_FOR_WEIGHTS, 120, 150, 3, 2),
    ]
    account = account_spans(spans, (0, 160))["generator"]
    # generate 0-60 and 70-100, load 60-70, the call 100-120, weights 120-150, nothing 150-160
    assert account.stages_ns == {
        Stage.GENERATE: 90,
        Stage.WEIGHT_LOAD: 10,
        Stage.WAIT_FOR_CALL: 20,
        Stage.WAIT_FOR_WEIGHTS: 30,
    }
    assert (account.unattributed_ns, account.busy_ns, account.waiting_ns) == (10, 100, 50)
