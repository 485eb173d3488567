"""Who was in which stage when, and every figure that is a sum of it: against hand-computed cases and plain counting."""

import itertools
from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.trace import Span, Stage
from harness.results import lane_kind, part_of
from harness.results.occupancy import NEAREST_FIRST, PRECEDENCE, Exposure, LaneAccount, Occupancy, part_spans

LAST = (Stage.WAIT_FOR_CALL, Stage.WAIT_FOR_RECORDER)


def _span(lane, stage, start_ns, end_ns):
    return Span(lane, stage, start_ns, end_ns, 0, 0)


def test_an_instant_in_two_windows_is_the_first_ones():
    table = Occupancy.of([_span("learner", Stage.UPDATE, 0, 100)], [(0, 51), (50, 100)])
    assert table.windows.tolist() == [[0, 51], [51, 100]]
    outer = table.within([False, True])
    assert outer.accounts()["learner"] == LaneAccount("learner", 49, {Stage.UPDATE: 49}, 0)


def test_the_learners_stage_comes_first_then_what_it_waits_for_then_nobody():
    spans = [
        _span("learner", Stage.WAIT_FOR_BATCH, 0, 50),
        _span("learner", Stage.UPDATE, 50, 80),
        _span("learner", Stage.WEIGHT_PUBLISH, 80, 84),
        _span("generator", Stage.WEIGHT_LOAD, 0, 8),
        _span("generator", Stage.GENERATE, 8, 90),  # behind the update from 50 on
        _span("scorer", Stage.SCORE, 30, 45),
    ]
    part = Occupancy.of(spans, [(0, 100)]).exposed()
    # load 0..8, generate 8..30 and 45..50, score 30..45, update 50..80, publish 80..84; from 84 on no span says that
    # the Learner waits, though the Generator works
    expected = {Stage.GENERATE: 27, Stage.SCORE: 15, Stage.UPDATE: 30, Stage.WEIGHT_PUBLISH: 4, Stage.WEIGHT_LOAD: 8}
    assert part == Exposure(100, expected, 16)


def test_every_stage_that_is_no_wait_has_a_place_in_the_precedence():
    assert sorted(PRECEDENCE) == sorted(stage for stage in Stage if not stage.is_wait)
    syncs = (Stage.WEIGHT_LOAD, Stage.WEIGHT_VERIFY, Stage.WEIGHT_TRANSFER, Stage.WEIGHT_PUBLISH)
    awaited = (Stage.SCORE, *syncs, Stage.GENERATE, Stage.EVALUATE)
    assert tuple(stage for stage in NEAREST_FIRST if stage in awaited) == awaited
    assert PRECEDENCE[: len(NEAREST_FIRST)] == NEAREST_FIRST


def test_ranks_side_by_side_are_one_learner_whose_seconds_are_not_added_up():
    """Rank 1 begins 1 s later and ends 2 s earlier; its wait counts only where rank 0 does not work."""
    spans = [
        Span("learner/0", Stage.UPDATE, 0, 10, 3, 3),
        Span("learner/0", Stage.WAIT_FOR_BATCH, 10, 14, 4, 3),
        Span("learner/1", Stage.UPDATE, 1, 8, 3, 3),
        Span("learner/1", Stage.WAIT_FOR_RANKS, 8, 11, 3, 3),
        Span("learner/1", Stage.WAIT_FOR_BATCH, 11, 14, 4, 3),
        Span("generator", Stage.GENERATE, 0, 14, 3, 3),
    ]
    whole = part_spans(spans)
    assert sorted(whole, key=lambda span: (span.lane, span.end_ns)) == [
        Span("generator", Stage.GENERATE, 0, 14, 3, 3),
        Span("learner", Stage.UPDATE, 0, 10, 3, 3),
        Span("learner", Stage.WAIT_FOR_RANKS, 10, 11, 3, 3),
        Span("learner", Stage.WAIT_FOR_BATCH, 10, 14, 4, 3),
    ]
    account = Occupancy.of(whole).accounts()["learner"]
    assert (account.busy_ns, account.waiting_ns, account.unattributed_ns) == (10, 4, 0)
    alone = [span for span in spans if span.lane == "generator"]
    assert part_spans(alone) == alone


LANES = ("generator0", "generator1", "scorer", "learner/0", "learner/1")
SPANS = st.lists(
    st.builds(
        lambda lane, stage, start, length: Span(lane, stage, start, start + length, 0, 0),
        st.sampled_from(LANES), st.sampled_from(Stage), st.integers(0, 24), st.integers(0, 16),
    ),
    max_size=12,
)  # fmt: skip
EDGES = st.lists(st.integers(0, 36), min_size=2, max_size=6).map(sorted)


def _owner(spans, lane, tick):
    """Return the place of the span that has this instant of a lane, by the rule as it is said."""
    here = [at for at, span in enumerate(spans) if span.lane == lane and span.start_ns <= tick < span.end_ns]
    return max(here, key=lambda at: (spans[at][1] not in LAST, spans[at][2], -spans[at][3], at), default=None)


def _stages_at(spans, tick):
    owners = {lane: _owner(spans, lane, tick) for lane in {span.lane for span in spans}}
    return {lane: spans[at].stage for lane, at in owners.items() if at is not None}


def _exposed_at(stages):
    mine = [stage for lane, stage in stages.items() if lane_kind(lane) == "learner"]
    working = [stage for stage in mine if not stage.is_wait]
    if working or not mine:
        return min(working, key=list(Stage).index, default=None)
    awaited = [stage for lane, stage in stages.items() if lane_kind(lane) != "learner" and not stage.is_wait]
    return min(awaited, key=PRECEDENCE.index, default=None)


@settings(deadline=None, max_examples=60)
@given(SPANS, EDGES, st.data())
def test_every_figure_is_what_counting_each_instant_gives(spans, edges, data):
    windows = list(itertools.pairwise(edges))
    kept = data.draw(st.lists(st.booleans(), min_size=len(windows), max_size=len(windows)))
    ticks = [tick for window, keep in zip(windows, kept, strict=True) if keep for tick in range(*window)]
    instants = [_stages_at(spans, tick) for tick in ticks]
    whole = Occupancy.of(spans, windows)
    table = whole.within(kept)

    accounts = table.accounts()
    assert set(accounts) == {span.lane for span in spans if span.start_ns < edges[-1] and span.end_ns > edges[0]}
    for lane, account in accounts.items():
        expected = Counter(stages[lane] for stages in instants if lane in stages)
        assert (account.stages_ns, account.wall_ns) == (expected, len(ticks))
        assert account.busy_ns + account.waiting_ns + account.unattributed_ns == len(ticks)

    for window, seconds in zip(windows, whole.by_window(), strict=True):
        expected = Counter(stage for tick in range(*window) for stage in _stages_at(spans, tick).values())
        assert {stage: round(1e9 * s) for stage, s in zip(Stage, seconds, strict=True) if s} == expected

    part, owners = table.exposed(), Counter(map(_exposed_at, instants))
    assert (part is None) == (not any(lane_kind(lane) == "learner" for lane in accounts))
    if part is not None:
        nobodys = owners.pop(None, 0)
        assert part == Exposure(len(ticks), owners, nobodys)

    depths = [sum(not s.is_wait and s is not Stage.STARTUP for s in stages.values()) for stages in instants]
    overlap = table.overlap()
    counted = len(ticks), sum(depths), sum(d > 0 for d in depths), sum(d > 1 for d in depths)
    assert tuple(round(1e9 * seconds) for seconds in astuple(overlap)) == counted


@settings(deadline=None, max_examples=60)
@given(SPANS, st.data())
def test_the_seconds_of_some_spans_are_the_instants_that_are_their_own(spans, data):
    number = data.draw(st.integers(0, len(spans)))
    own = spans[:number]
    expected = {(span.lane, span.stage.value): 0 for span in own}
    for lane, tick in itertools.product({span.lane for span in spans}, range(40)):
        at = _owner(spans, lane, tick)
        if at is not None and at < number:
            expected[lane, spans[at].stage.value] += 1
    seconds = Occupancy.of(spans).seconds(own)
    assert {(lane, name): round(1e9 * s) for lane, of in seconds.items() for name, s in of.items()} == expected


@settings(deadline=None, max_examples=60)
@given(SPANS)
def test_a_part_is_in_a_stage_while_any_lane_is_and_waits_while_none_works(spans):
    whole = part_spans(spans)
    assert {span.lane for span in whole} <= {part_of(span.lane) for span in spans}
    for tick in range(40):
        ranks = {stage for lane, stage in _stages_at(spans, tick).items() if part_of(lane) == "learner"}
        working = {stage for stage in ranks if not stage.is_wait}
        under_way = {s.stage for s in whole if s.lane == "learner" and s.start_ns <= tick < s.end_ns}
        assert under_way == (working or ranks)


@pytest.mark.parametrize("nested", [False, True])
def test_the_table_grows_with_the_number_of_spans_and_not_with_its_square(nested):
    starts = np.arange(20_000, dtype=np.int64) * 10
    spans = [_span("learner", Stage.UPDATE, start, start + 10) for start in starts.tolist()]
    if nested:
        spans += [_span("learner", Stage.GENERATE, at, 200_000 - at) for at in range(0, 40_000, 40)]
    table = Occupancy.of(spans, [(0, 200_000)])
    assert table.accounts()["learner"].stages_ns == {Stage.UPDATE: 200_000}  # each begins with, or after, the others
    assert len(table.span) <= 2 * len(spans)
