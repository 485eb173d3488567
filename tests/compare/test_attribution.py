"""Where a loop's time went: accounts of lanes, exposed time, overlap and the waits of the lag bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from harness.compare import lane_account
from harness.compare.attribution import (
    PRECEDENCE,
    BlockedTime,
    Exposure,
    Overlap,
    OverlapBound,
    account_spans,
    blocked_time,
    exposed,
    exposed_in,
    in_pipeline_order,
    lane_accounts,
    loop_window,
    overlap,
    overlap_bound,
    stage_intervals,
    time_by_window,
)
from harness.core.intervals import Interval, both, clip, total, without
from harness.core.trace import Span, Stage
from harness.results import RunFolder, load_run


def _learner_span(stage: Stage, start_ns: int, end_ns: int, lane: str = "learner") -> Span:
    return Span(lane, stage, start_ns, end_ns, 0, 0)


def test_stages_waits_and_the_rest_make_up_the_wall() -> None:
    spans = [
        _learner_span(Stage.WAIT_FOR_BATCH, 0, 30),
        _learner_span(Stage.UPDATE, 35, 80),
        _learner_span(Stage.WEIGHT_PUBLISH, 80, 90),
        _learner_span(Stage.GENERATE, 0, 100, "generator"),
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
        _learner_span(Stage.WEIGHT_LOAD, 20, 40),  # inside
        _learner_span(Stage.CHECKPOINT, 0, 10),  # same start as the outer one, and shorter
        _learner_span(Stage.EVALUATE, 0, 60),
        _learner_span(Stage.SCORE, 50, 80),  # overlaps the end
    ]
    account = account_spans(spans, (0, 100))["learner"]
    assert account.stages_ns == {Stage.CHECKPOINT: 10, Stage.EVALUATE: 20, Stage.WEIGHT_LOAD: 20, Stage.SCORE: 30}
    assert account.unattributed_ns == 20  # 80..100


def test_the_window_starts_after_start_up_and_lasts_as_long_as_the_loop() -> None:
    spans = [
        _learner_span(Stage.STARTUP, 0, 50),
        _learner_span(Stage.STARTUP, 0, 70, "generator"),
        _learner_span(Stage.UPDATE, 75, 90),
    ]
    assert loop_window(spans, None) == (70, 90)
    assert loop_window(spans, 1.0) == (70, 1_000_000_070)
    assert loop_window(spans[2:], None) == (75, 90)


@given(
    st.lists(st.tuples(st.sampled_from(list(Stage)), st.integers(0, 100), st.integers(0, 40)), max_size=12),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_the_account_closes_for_any_spans(shapes: list[tuple[Stage, int, int]], start_ns: int, length: int) -> None:
    spans = [_learner_span(stage, begin, begin + duration) for stage, begin, duration in shapes]
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


@given(SPANS, st.integers(0, 60), st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_the_time_of_windows_adds_up_to_that_of_their_union(spans: list[Span], start: int, lengths: list[int]) -> None:
    edges = list(itertools.accumulate(lengths, initial=start))
    found = time_by_window(spans, list(itertools.pairwise(edges)))
    accounts = lane_accounts(found, [True] * len(lengths), edges[-1] - start)
    assert accounts == account_spans(spans, (start, edges[-1]))
    for window, times in enumerate(itertools.pairwise(edges)):
        one = account_spans(spans, times)
        for lane, stages in found.items():
            mine = {stage: ns[window] for stage, ns in stages.items() if ns[window]}
            assert mine == (one[lane].stages_ns if lane in one else {})


def test_exposed_time_of_windows_apart_is_added_up() -> None:
    spans = [_span("learner", Stage.WAIT_FOR_BATCH, 0, 40), _span("learner", Stage.UPDATE, 40, 100)]
    spans.append(_span("generator", Stage.GENERATE, 0, 30))
    # 10..30 and 35..40 of the wait, of which the Generator has 20; then 5 and 10 of the update
    assert exposed_in(spans, [(10, 45), (90, 100)]) == Exposure(45, {Stage.GENERATE: 20, Stage.UPDATE: 15}, 10)
    assert exposed_in(spans, []) is None


S = 1_000_000_000


def _span_s(lane: str, stage: Stage, start_s: int, end_s: int, step: int = 0) -> Span:
    return Span(lane, stage, start_s * S, end_s * S, step, 0)


def test_overlap_counts_each_lane_once_and_no_waits() -> None:
    spans = [
        _span_s("generator", Stage.STARTUP, 0, 10),
        _span_s("generator", Stage.GENERATE, 10, 20),
        _span_s("generator", Stage.WEIGHT_LOAD, 18, 20),  # inside of generate: the same lane, counted once
        _span_s("learner", Stage.WAIT_FOR_BATCH, 10, 15),
        _span_s("learner", Stage.UPDATE, 15, 25),
        _span_s("scorer", Stage.SCORE, 19, 22),
        _span_s("scorer", Stage.SCORE, 38, 45),  # ends after the window
    ]
    # worked: 10 + 10 + 3 + 2; busy: 10..25 and 38..40; together: 15..22
    found = overlap(spans, [(10 * S, 40 * S)])
    assert found == Overlap(loop_s=30.0, worked_s=25.0, busy_s=17.0, together_s=7.0)
    assert found.saved_s == 8.0


def test_a_part_that_starts_anew_does_no_work_meanwhile() -> None:
    spans = [_span_s("learner", Stage.UPDATE, 0, 10), _span_s("generator", Stage.STARTUP, 2, 6)]
    assert overlap(spans, [(0, 10 * S)]) == Overlap(loop_s=10.0, worked_s=10.0, busy_s=10.0, together_s=0.0)


def test_lanes_in_turn_save_nothing() -> None:
    spans = [_span_s("generator", Stage.GENERATE, 0, 4), _span_s("learner", Stage.UPDATE, 4, 6)]
    found = overlap(spans, [(0, 6 * S)])
    assert (found.worked_s, found.busy_s, found.together_s, found.saved_s) == (6.0, 6.0, 0.0, 0.0)


def test_only_waits_that_the_bound_causes_are_held_back() -> None:
    wait = Stage.WAIT_FOR_WEIGHTS
    spans = [
        _span_s("generator0", wait, 0, 1, step=0),  # for the first weights
        _span_s("generator0", wait, 2, 3, step=1),  # version 0 is enough for batch 1
        _span_s("generator0", wait, 4, 6, step=2),
        _span_s("generator1", wait, 4, 5, step=2),
        _span_s("generator0", wait, 8, 9, step=4),
        _span_s("generator0", wait, 9, 20, step=5),  # all batches are made
        _span_s("generator0", Stage.WAIT_FOR_ROOM, 7, 8, step=3),
        _span_s("learner", Stage.WAIT_FOR_BATCH, 0, 9, step=3),
    ]
    # batches 2, 3 and 4 need version 1 and later; generator0 waited 2 + 1 s for them, generator1 1 s
    assert blocked_time(spans, max_lag=1, steps=5) == BlockedTime(batches=2, bound_batches=3, seconds=2.0)
    assert blocked_time(spans, max_lag=4, steps=5) == BlockedTime(batches=0, bound_batches=0, seconds=0.0)
    assert blocked_time([], max_lag=1, steps=5) == BlockedTime(0, 3, 0.0)
