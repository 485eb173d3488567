"""Exposed time divides the loop among its owners, to the nanosecond, whatever the spans look like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.compare.attribution import (
    PRECEDENCE,
    Exposure,
    OverlapBound,
    account_spans,
    exposed,
    overlap_bound,
    stage_intervals,
)
from harness.core.intervals import Interval, both, clip, total, without
from harness.core.trace import Span, Stage

LANES = ("generator0", "generator1", "scorer", "learner", "learner1")
PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=8)
SPANS = st.lists(
    st.builds(
        lambda lane, stage, start, length: Span(lane, stage, start, start + length, 0, 0),
        st.sampled_from(LANES), st.sampled_from(list(Stage)), st.integers(0, 100), st.integers(0, 40),
    ),
    max_size=16,
)  # fmt: skip


def _span(lane: str, stage: Stage, start_ns: int, end_ns: int) -> Span:
    return Span(lane, stage, start_ns, end_ns, 0, 0)


def test_the_learners_stage_comes_first_then_what_it_waits_for_then_nobody() -> None:
    spans = [
        _span("learner", Stage.WAIT_FOR_BATCH, 0, 50),
        _span("learner", Stage.UPDATE, 50, 80),
        _span("learner", Stage.WEIGHT_PUBLISH, 80, 84),
        _span("generator", Stage.WEIGHT_LOAD, 0, 8),
        _span("generator", Stage.GENERATE, 8, 90),  # behind the update from 50 on
        _span("scorer", Stage.SCORE, 30, 45),
    ]
    found = exposed(spans, (0, 100))
    # load 0..8, generate 8..30 and 45..50, score 30..45, update 50..80, publish 80..84; from 84 on no span says that
    # the Learner waits, though the Generator works
    expected = {
        Stage.GENERATE: 27,
        Stage.SCORE: 15,
        Stage.UPDATE: 30,
        Stage.WEIGHT_PUBLISH: 4,
        Stage.WEIGHT_LOAD: 8,
    }
    assert found == Exposure(100, expected, 16)
    assert found.share(found.nobody_ns) == 0.16


def test_an_idle_instant_is_nobodys_when_the_learner_waits_and_no_lane_works() -> None:
    spans = [
        _span("learner", Stage.WAIT_FOR_BATCH, 0, 10),
        _span("scorer", Stage.WAIT_FOR_ROLLOUTS, 0, 10),
        _span("generator", Stage.GENERATE, 4, 10),
    ]
    assert exposed(spans, (0, 12)) == Exposure(12, {Stage.GENERATE: 6}, 6)  # 0..4 and 10..12
    assert exposed(spans[1:], (0, 12)) is None  # without a Learner nobody knows what the loop waits for
    assert exposed([], (0, 12)) is None


def test_a_generator_that_loads_goes_before_one_that_generates() -> None:
    spans = [
        _span("learner", Stage.WAIT_FOR_BATCH, 0, 10),
        _span("generator0", Stage.GENERATE, 0, 10),
        _span("generator1", Stage.WEIGHT_LOAD, 2, 5),
        _span("generator1", Stage.EVALUATE, 5, 10),
    ]
    found = exposed(spans, (0, 10))
    assert found is not None
    assert found.stages_ns == {Stage.GENERATE: 7, Stage.WEIGHT_LOAD: 3}


def test_where_one_learner_works_the_wait_of_another_exposes_nothing() -> None:
    spans = [
        _span("learner", Stage.UPDATE, 0, 6),
        _span("learner1", Stage.WAIT_FOR_BATCH, 0, 10),
        _span("generator", Stage.GENERATE, 0, 10),
    ]
    assert exposed(spans, (0, 10)) == Exposure(10, {Stage.GENERATE: 4, Stage.UPDATE: 6}, 0)


def test_every_stage_that_is_no_wait_has_a_place_in_the_precedence() -> None:
    assert sorted(PRECEDENCE) == sorted(stage for stage in Stage if not stage.is_wait)
    assert PRECEDENCE[:1] == (Stage.SCORE,)
    assert PRECEDENCE.index(Stage.WEIGHT_LOAD) < PRECEDENCE.index(Stage.GENERATE) < PRECEDENCE.index(Stage.EVALUATE)


@given(SPANS, st.integers(0, 60), st.integers(0, 80))
def test_exposed_times_and_nobodys_are_a_partition_of_the_window(spans: list[Span], start: int, length: int) -> None:
    window = start, start + length
    found = exposed(spans, window)
    inside = {span.lane for span in spans if span.start_ns < window[1] and span.end_ns > window[0]}
    assert (found is None) == (not inside & {"learner", "learner1"})
    if found is None:
        return
    assert sum(found.stages_ns.values()) + found.nobody_ns == found.wall_ns == length
    parts = [*found.stages_ns.values(), found.nobody_ns]
    assert all(0 <= ns <= length and 0.0 <= found.share(ns) <= 1.0 for ns in parts)
    assert not any(stage.is_wait for stage in found.stages_ns)
    for stage, ns in found.stages_ns.items():
        spent = total(clip([(s.start_ns, s.end_ns) for s in spans if s.stage is stage], window))
        assert ns <= spent  # never more exposed than there was of it


@given(SPANS, st.integers(0, 60), st.integers(0, 80))
def test_work_of_the_learner_is_always_exposed(spans: list[Span], start: int, length: int) -> None:
    window = start, start + length
    found, accounts = exposed(spans, window), account_spans(spans, window)
    if found is not None and "learner1" not in accounts:
        for stage, ns in accounts["learner"].stages_ns.items():
            assert stage.is_wait or found.stages_ns[stage] >= ns


@given(SPANS, st.integers(0, 60), st.integers(0, 80))
def test_idle_shares_lie_between_0_and_1(spans: list[Span], start: int, length: int) -> None:
    for account in account_spans(spans, (start, start + length)).values():
        for part_ns in (account.waiting_ns, account.busy_ns, account.unattributed_ns):
            assert 0.0 <= account.share(part_ns) <= 1.0


@given(SPANS, st.integers(0, 60), st.integers(0, 80))
def test_owned_intervals_agree_with_the_account_and_never_overlap(spans: list[Span], start: int, length: int) -> None:
    window = start, start + length
    owned, accounts = stage_intervals(spans, window), account_spans(spans, window)
    assert set(owned) == set(accounts)
    for lane, stages in owned.items():
        assert {stage: total(pieces) for stage, pieces in stages.items()} == accounts[lane].stages_ns
        everything = [piece for pieces in stages.values() for piece in pieces]
        assert total(everything) == sum(end - begin for begin, end in everything)


@given(PIECES, PIECES)
def test_both_and_without_are_those_of_sets(first: list[Interval], second: list[Interval]) -> None:
    def units(pieces: list[Interval]) -> set[int]:
        return {unit for start, end in pieces for unit in range(start, end)}

    assert units(both(first, second)) == units(first) & units(second)
    assert units(without(first, second)) == units(first) - units(second)
    for pieces in (both(first, second), without(first, second)):
        assert total(pieces) == sum(end - start for start, end in pieces)  # disjoint


def test_a_loop_cannot_be_shorter_than_the_work_of_its_busiest_lane() -> None:
    spans = [
        _span("learner", Stage.WAIT_FOR_BATCH, 0, 4_000_000_000),
        _span("learner", Stage.UPDATE, 4_000_000_000, 9_000_000_000),
        _span("generator", Stage.GENERATE, 0, 4_000_000_000),
        _span("generator", Stage.WAIT_FOR_WEIGHTS, 4_000_000_000, 10_000_000_000),  # waits longer than the Learner
    ]
    bound = overlap_bound(account_spans(spans, (0, 10_000_000_000)))
    assert bound == OverlapBound(loop_s=10.0, worked_s=9.0, lane="learner", shortest_s=5.0)
    assert bound.speedup == 2.0
    assert overlap_bound({}) is None
    assert overlap_bound(account_spans(spans[:1], (0, 10))) is None  # nobody worked


@given(SPANS, st.integers(0, 60), st.integers(1, 80))
def test_perfect_overlap_never_slows_a_loop_down(spans: list[Span], start: int, length: int) -> None:
    bound = overlap_bound(account_spans(spans, (start, start + length)))
    if bound is not None:
        assert bound.speedup >= 1.0
        assert bound.shortest_s <= bound.worked_s
