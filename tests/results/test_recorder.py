"""What the recorder writes of events made by hand, on a clock set by hand. Arithmetic stands beside each number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from harness.compare.run_frame import tokens_per_second
from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Metric, Purpose, RolloutGroup, ScoredBatch, UpdateResult, WeightHandle, WorkItem
from harness.loop import Count, RolloutCounts, StepReport
from harness.loop.replay import ReplayDraw, ReplayStats
from harness.results import (
    BatchRow,
    DiscardedRow,
    EvaluationRow,
    Manifest,
    Run,
    RunFolder,
    Scrubber,
    ShardRow,
    StepRow,
    VersionChange,
    WarmUp,
    load_run,
)
from harness.results.frames import over_optimizer_steps, table_of
from harness.results.occupancy import Occupancy
from harness.results.recorder import RunRecorder
from harness.results.rows import STEPS, StepSeconds, optimizer_step_columns
from harness.results.step_metrics import idle_ratios, lag_metrics, step_metrics, sync_metrics, trained_lags
from harness.results.warmup import warm_up_of
from harness.results.writer import MANIFEST

MB = 1_000_000
ITEM = WorkItem(Purpose.TRAIN, 3, 0, (0, 1), 2, 0)
YOUNG = RolloutGroup(0, 3, 3, 3, (4, 6), rewards=(0.0, 1.0))
OLD = RolloutGroup(1, 3, 1, 3, (10, 10), rewards=(1.0, 1.0))  # its oldest token is of version 1
RESULT = UpdateResult(4, 2, {"loss": Metric(0.5, count=4)})
TICKET = WeightHandle(4, 20 * MB, 3)
SCORED = ScoredBatch(ITEM, (YOUNG, OLD), {"reward/total": Metric(0.75, count=4)})
AGAIN = replace(YOUNG, prompt_id=9, attempt=2)
SAMPLED_AGAIN = replace(
    SCORED,
    groups=(AGAIN, OLD),
    failed_groups=1,
    discarded=(replace(OLD, prompt_id=0, min_version=2), replace(OLD, prompt_id=8, attempt=1)),
)
"""Place 0 had the prompts 0, 8 and then 9; a third place's group got no reward."""
FACTS = StepReport(3, (SCORED,), (ReplayDraw(YOUNG, 1, 0), ReplayDraw(OLD, 1, 2)), RESULT, TICKET)
NEXT = replace(FACTS, step=4)


@dataclass
class HandClock:
    """A clock that only moves when told to."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns

    def set(self, seconds: float) -> None:
        """Set the time."""
        self.now_ns = round(seconds * 1e9)


def _span(lane: str, stage: Stage, start_s: float, end_s: float) -> Span:
    return Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), 3, 3)


Record = Callable[..., RunRecorder]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def tracer(clock: HandClock) -> RecordingTracer:
    return RecordingTracer(clock)


@pytest.fixture
def record(tmp_path: Path, clock: HandClock, tracer: RecordingTracer, scrubber: Scrubber) -> Iterator[Record]:
    """Return a function that makes a recorder whose loop starts now; its keywords are those of ``RunRecorder``."""
    with RunFolder.create(tmp_path, "s", "c", None, scrubber=scrubber) as folder:
        folder.write_manifest(Manifest(scenario="s", experiment="c", started_at="2026-11-20T11:15:00.000Z"))

        def make(lanes: Sequence[str] = ("learner",), tracer: RecordingTracer = tracer, **options: Any) -> RunRecorder:
            made = RunRecorder(folder, tracer, **options)
            made.loop_starts(lanes)
            return made

        yield make


@pytest.fixture
def recorder(record: Record, clock: HandClock) -> RunRecorder:
    """A recorder whose loop starts at 10 s."""
    clock.set(10.0)
    return record(["generator0", "generator1", "scorer", "learner"])


def _read(recorder: RunRecorder) -> Run:
    recorder.folder.flush()
    return load_run(recorder.folder.folder)


def _log(recorder: RunRecorder) -> list[str]:
    recorder.folder.flush()
    lines = (recorder.folder.folder / "log.txt").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines]


# ---- of facts alone


def test_lag_is_that_of_the_oldest_token_and_what_was_dropped_is_counted() -> None:
    three_old = replace(OLD, lengths=(10, 10, 10))
    facts = replace(FACTS, taken=(ReplayDraw(YOUNG, 1, 0), ReplayDraw(three_old, 1, 2)), in_queue=7, in_flight=16)
    assert trained_lags(facts) == {0: 2, 2: 3}
    expected = {
        "off_policy/mean": Metric(1.2, count=5),  # (2 * 0 + 3 * 2) / 5
        "off_policy/max": Metric(2, "max", 5),
        "off_policy/dropped": Metric(0, "sum"),
        "off_policy/in_flight": Metric(16),
        "off_policy/in_queue": Metric(7),
    }
    assert lag_metrics(facts) == expected
    dropped = {"off_policy/dropped": Metric(4, "sum"), "off_policy/dropped_length": Metric(22.5, count=4)}
    assert lag_metrics(replace(facts, dropped=Count(4, 90))) == expected | dropped


def test_the_lag_of_tokens_is_weighted_by_tokens_where_it_is_known() -> None:
    mixed = replace(OLD, mean_version=2.5)
    metrics = lag_metrics(replace(FACTS, taken=(ReplayDraw(YOUNG, 1, 0), ReplayDraw(mixed, 1, 2))))
    # YOUNG: 10 tokens at lag 0; mixed: 20 tokens at 3 - 2.5
    assert metrics["off_policy/token_mean"] == Metric(pytest.approx(10 / 30), count=30)


def test_throughput_counts_what_was_generated_not_what_was_trained_on() -> None:
    metrics = step_metrics(replace(FACTS, taken=(ReplayDraw(OLD, 2, 2),)), wall_s=2.0)
    assert metrics["response_tokens"] == Metric(30, "sum")  # 4 + 6 + 10 + 10
    assert metrics["perf/throughput_total"] == Metric(15.0)
    assert (metrics["reward/total"], metrics["loss"]) == (Metric(0.75, count=4), Metric(0.5, count=4))
    assert not {"perf/throughput_total", "score/failed_groups"} & step_metrics(FACTS, wall_s=0.0).keys()
    parts = (replace(SCORED, failed_groups=2), replace(SCORED, groups=(), metrics={}, failed_groups=1))
    some, all_failed = (step_metrics(replace(FACTS, scored=scored), 1.0) for scored in (parts, parts[1:]))
    assert (some["score/failed_groups"], some.get("score/failed_batches")) == (Metric(3, "sum"), None)
    assert all_failed["score/failed_batches"] == Metric(1, "sum")


def test_tokens_per_second_are_those_of_compare_whatever_the_lag(recorder: RunRecorder, clock: HandClock) -> None:
    recorder._tracer.finished.append(_span("generator0", Stage.EVALUATE, 10.0, 11.0))
    clock.set(12.0)
    recorder.on_step(FACTS)
    recorder.loop_ends()
    run = _read(recorder)
    assert run.steps[0].metric("perf/throughput_total") == Metric(pytest.approx(30 / 2.0))
    assert tokens_per_second(table_of(run)) == pytest.approx(30 / 2.0)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((YOUNG, OLD), Metric(0.5, count=2)),  # rewards 0 and 1; 1 and 1
        ((OLD, replace(YOUNG, rewards=(1.0,), lengths=(4,))), Metric(1.0, count=1)),  # one alone tells nothing
        ((replace(OLD, rewards=None),), None),
    ],
)
def test_groups_with_equal_rewards_are_counted_among_those_trained_on(
    groups: tuple[RolloutGroup, ...], expected: Metric | None
) -> None:
    facts = replace(FACTS, taken=tuple(ReplayDraw(group, 1, 0) for group in groups))
    assert step_metrics(facts, 1.0).get("zero_variance_fraction") == expected


def test_dynamic_sampling_counts_groups_tokens_and_attempts() -> None:
    metrics = step_metrics(replace(FACTS, scored=(SAMPLED_AGAIN,)), wall_s=2.0)
    assert {name: metric for name, metric in metrics.items() if name.startswith("sampling/")} == {
        "sampling/generated_groups": Metric(5, "sum"),  # 2 kept, 2 discarded, 1 failed
        "sampling/kept_groups": Metric(2, "sum"),
        "sampling/discarded_groups": Metric(2, "sum"),
        "sampling/discarded_tokens": Metric(40, "sum"),  # 2 * (10 + 10)
        "sampling/attempts": Metric(3, "max", 4),
    }
    assert metrics["response_tokens"] == Metric(30, "sum")  # of what is kept
    assert not any(name.startswith("sampling/") for name in step_metrics(FACTS, 2.0))


def test_optimizer_steps_are_kept_where_there_are_several(recorder: RunRecorder, clock: HandClock) -> None:
    inner = [{"loss": Metric(0.1 * place, count=4), "ratio/max": Metric(2.0, "max")} for place in range(4)]
    inner[2] |= {"clip_fraction": Metric(0.5)}  # one that not all have is left out
    for step, parts in enumerate((inner, inner[:1])):
        clock.set(11.0 + step)
        result = UpdateResult(step + 1, len(parts), {"loss": Metric(0.9)}, parts)
        recorder.on_step(replace(FACTS, step=step, result=result))
    several, single = _read(recorder).steps
    assert several.optimizer_step_metrics == {"loss": pytest.approx((0.0, 0.1, 0.2, 0.3))}
    assert single.optimizer_step_metrics == {}
    # 4 + 1 optimizer steps; the single one is the row's own figure
    points = over_optimizer_steps(table_of(_read(recorder)), "loss")
    assert points == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.9)]


def test_of_many_optimizer_steps_evenly_spaced_ones_are_kept() -> None:
    kept = optimizer_step_columns([{"loss": Metric(float(place))} for place in range(160)])["loss"]
    # i * 160 // 64: 0, 2.5, 5, 7.5, and at last 63 * 2.5 = 157.5
    assert (len(kept), kept[:4], kept[-1]) == (64, (0.0, 2.0, 5.0, 7.0), 157.0)


def test_a_sync_is_the_mean_over_publishes_and_over_receivers() -> None:
    spans = [
        _span("learner", Stage.WEIGHT_PUBLISH, 0.0, 0.010),
        _span("learner", Stage.WEIGHT_VERIFY, 0.010, 0.012),
        _span("generator0", Stage.WEIGHT_TRANSFER, 0.02, 0.03),
        _span("generator1", Stage.WEIGHT_TRANSFER, 0.02, 0.05),
        _span("generator0", Stage.WEIGHT_VERIFY, 0.03, 0.034),
        _span("generator1", Stage.WEIGHT_VERIFY, 0.05, 0.052),
        _span("generator0", Stage.WEIGHT_LOAD, 0.034, 0.044),
        _span("generator1", Stage.WEIGHT_LOAD, 0.052, 0.062),
        _span("generator0", Stage.GENERATE, 0.044, 1.0),
    ]
    assert sync_metrics(TICKET, spans) == {
        "sync/bytes": Metric(20 * MB),
        "sync/tensors": Metric(3),
        "sync/publish_s": Metric(pytest.approx(0.010), count=1),
        "sync/transfer_s": Metric(pytest.approx(0.020), count=2),  # of 10 and 30 ms
        "sync/load_s": Metric(pytest.approx(0.010), count=2),
        "sync/verify_s": Metric(pytest.approx(0.005), count=2),  # 2 ms at the Learner, and the mean of 4 and 2 ms
        "sync/bandwidth_gb_s": Metric(pytest.approx(0.5)),  # 20 MB in 10 + 20 + 10 ms
    }


def test_a_step_in_which_nothing_was_loaded_has_no_bandwidth_and_without_bytes_there_is_no_sync() -> None:
    published = [_span("learner", Stage.WEIGHT_PUBLISH, 0.0, 0.01)]
    assert list(sync_metrics(TICKET, published)) == ["sync/bytes", "sync/tensors", "sync/publish_s"]
    assert sync_metrics(WeightHandle(1, 0, 1), published) == {}


def test_idle_ratios_are_means_over_the_lanes_of_a_kind() -> None:
    waits = [("generator0", -5, 20), ("generator0", 10, 30), ("learner", 60, 200), ("learner", 210, 220)]
    spans = [Span(lane, Stage.WAIT_FOR_BATCH, start, end, 0, 0) for lane, start, end in waits]
    spans.append(Span("generator0", Stage.WEIGHT_LOAD, 12, 17, 0, 0))  # which is no wait, though one is under way
    accounts = Occupancy.of(spans, [(0, 100)]).accounts()
    assert idle_ratios(["generator0", "generator1", "scorer", "learner"], accounts) == {
        "idle_ratio/generator": Metric(0.125, count=2),  # 25 of 100 (the overlap once) and 0
        "idle_ratio/scorer": Metric(0.0),
        "idle_ratio/learner": Metric(0.4),
    }


# ---- written and read back


def test_groups_of_shards_and_evaluations_are_kept_with_what_was_discarded_and_replayed(
    recorder: RunRecorder, clock: HandClock
) -> None:
    prompted = replace(SCORED, item=replace(ITEM, shard=1), groups=(replace(YOUNG, prompt_length=7),), failed_groups=1)
    again = replace(SAMPLED_AGAIN, item=replace(ITEM, shard=2))
    item = WorkItem(Purpose.EVALUATE, 4, 0, (0,), 1, 0)
    taken = (ReplayDraw(replace(OLD, step=1), 2, 2), ReplayDraw(YOUNG, 1, 0))
    clock.set(12.0)
    recorder.on_step(replace(FACTS, scored=(SCORED, prompted, again), taken=taken, replay=(ReplayStats(), 5)))
    recorder.on_evaluation(4, ScoredBatch(item, (RolloutGroup(0, 4, 4, 4, (9,), None, (1.0,)),), {}))
    run = _read(recorder)
    versions, lengths, rewards = ((3, 3), (1, 3)), ((4, 6), (10, 10)), ((0.0, 1.0), (1.0, 1.0))
    assert run.groups() == [
        ShardRow(3, 0, (0, 1), versions, lengths, rewards, "train", (None, None)),
        ShardRow(3, 1, (0,), ((3, 3),), ((4, 6),), ((0.0, 1.0),), "train", (7,), 1),
        ShardRow(3, 2, (9, 1), versions, lengths, rewards, "train", (None, None), 1, attempts=(2, 0)),
        BatchRow(3, ((1, 1), (3, 0))),  # (batch number, prompt id)
        ShardRow(4, 0, (0,), ((4, 4),), ((9,),), ((1.0,),), "evaluate", (None,)),
    ]
    assert run.discarded() == [
        DiscardedRow(3, 2, (0, 8), ((2, 3), (1, 3)), ((10, 10),) * 2, ((1.0, 1.0),) * 2, attempts=(0, 1))
    ]


def test_a_step_is_on_disk_when_it_is_told_and_its_listeners_come_last_and_in_order(
    record: Record, clock: HandClock
) -> None:
    story: list[tuple[str, object]] = []

    def on_row(row: StepRow | EvaluationRow) -> None:
        _, *lines = (recorder.folder.folder / STEPS).read_text().splitlines()
        story.append((row.kind, [json.loads(line)["kind"] for line in lines]))

    recorder = record(
        row_listeners=[on_row, lambda row: story.append(("second", row.kind))],
        step_listeners=[lambda step: story.append(("first", step)), lambda step: story.append(("last", step))],
    )
    clock.set(2.0)
    recorder.on_step(FACTS)
    recorder.on_evaluation(4, replace(SCORED, item=replace(ITEM, purpose=Purpose.EVALUATE)))
    assert story == [
        ("step", ["step"]),
        ("second", "step"),
        ("first", 3),
        ("last", 3),
        ("evaluation", ["step", "evaluation"]),
        ("second", "evaluation"),
    ]


def test_a_row_holds_versions_changes_and_lags(recorder: RunRecorder, clock: HandClock) -> None:
    def changes_at(seconds: float, lane: str, version: int) -> None:
        clock.set(seconds)
        recorder.on_version(lane, version)

    changes_at(10.5, "learner", 0)
    changes_at(10.75, "generator0", 0)
    changes_at(12.0, "learner", 1)
    recorder.on_step(FACTS)
    changes_at(13.0, "generator0", 1)
    recorder.on_step(NEXT)
    changes_at(13.5, "generator0", 4)
    recorder.loop_ends()
    run = _read(recorder)
    (first, second), last = run.steps, VersionChange(3.5, "generator0", 4)
    assert first.versions == {"learner": 1, "generator0": 0}
    assert first.version_changes == (
        VersionChange(0.5, "learner", 0),
        VersionChange(0.75, "generator0", 0),
        VersionChange(2.0, "learner", 1),
    )
    assert second.versions == {"learner": 1, "generator0": 1}
    assert second.version_changes == (VersionChange(3.0, "generator0", 1),)
    assert run.version_changes == [*first.version_changes, *second.version_changes, last]
    assert first.lags == {0: 2, 2: 2}
    assert _log(recorder)[1] == "0.750000 s: generator0 holds policy version 0"


def test_a_replaced_part_holds_no_version_and_is_logged(recorder: RunRecorder, clock: HandClock) -> None:
    recorder.on_version("generator1", 0)
    clock.set(11.0)
    recorder.on_replaced("generator1", "killed by signal 9")
    recorder.on_replaced("scorer", "lost")
    recorder.on_replaced("generator1", "killed again")
    recorder.on_step(FACTS)
    (row,) = _read(recorder).steps
    assert row.versions == {}
    assert row.version_changes == (
        VersionChange(0.0, "generator1", 0),
        VersionChange(1.0, "generator1", -1),
        VersionChange(1.0, "generator1", -1),
    )
    assert _log(recorder)[:-1] == [
        "0.000000 s: generator1 holds policy version 0",
        "1.000000 s: generator1 died (killed by signal 9); a new one takes its place",
        "1.000000 s: scorer died (lost); a new one takes its place",
        "1.000000 s: generator1 died (killed again); a new one takes its place",
    ]
    assert recorder.outcome()["replaced"] == {"generator1": 2, "scorer": 1}


def test_what_was_measured_of_syncs_is_in_the_next_row_and_in_the_outcome(recorder: RunRecorder) -> None:
    for seconds in (1.0, 3.0):
        recorder.on_sync("generator0", 3, {"sync/wire_s": Metric(seconds)})
    recorder.on_step(FACTS)
    recorder.on_step(NEXT)
    recorder.on_sync("generator0", 4, {"sync/wire_s": Metric(5.0)})
    first, second = _read(recorder).steps
    assert (first.metric("sync/wire_s"), second.metric("sync/wire_s")) == (Metric(2.0, count=2), None)
    assert recorder.outcome()["syncs"] == {"sync/wire_s": 3.0}
    recorded = recorder.recorded()
    recorder.on_step(replace(FACTS, step=5))
    assert (len(recorded.seconds), recorded.measured) == (2, {"sync/wire_s": Metric(5.0)})


def test_a_wait_counts_in_every_row_that_it_reaches_into(
    recorder: RunRecorder, clock: HandClock, tracer: RecordingTracer
) -> None:
    clock.set(10.5)
    with tracer.span("learner", Stage.WAIT_FOR_BATCH, 3, 3):
        clock.set(12.0)
        recorder.on_step(FACTS)  # row of 10..12 s: the wait goes on for 1.5 of 2 s
        clock.set(13.0)
    clock.set(16.0)
    recorder.on_step(NEXT)  # row of 12..16 s: it ended after 1 of 4 s
    first, second = _read(recorder).steps
    assert first.metric("idle_ratio/learner") == Metric(0.75)
    assert second.metric("idle_ratio/learner") == Metric(0.25)
    assert second.metric("idle_ratio/generator") == Metric(0.0, count=2)
    # while the stage totals count the whole wait in the row in which it ended
    assert (first.stages_s, second.stages_s) == ({}, {"wait_for_batch": 2.5})


def test_replay_figures_are_those_of_the_buffer_and_of_what_was_taken(recorder: RunRecorder, clock: HandClock) -> None:
    taken = (ReplayDraw(YOUNG, 1, 0), ReplayDraw(OLD, 3, 2))
    stats = ReplayStats(added=6, evicted_full=2, evicted_age=1, evicted_unused=1)
    later = ReplayStats(added=8, evicted_full=5, evicted_age=1, evicted_unused=3)
    first = replace(FACTS, taken=taken, replay=(stats, 4))
    second = replace(NEXT, taken=taken[1:], replay=(later, 3))
    clock.set(11.0)
    for facts in (first, second, replace(FACTS, step=5)):  # the last one without a buffer
        recorder.on_step(facts)
    rows = _read(recorder).steps
    assert not [name for name in rows[2].metrics if name.startswith("replay/") or name == "trained_tokens"]
    names = [f"replay/{name}" for name in ("size", "age_mean", "age_max", "uses_mean", "uses_max")]
    names += [f"replay/evicted_{cause}" for cause in ("full", "age", "unused")] + ["trained_tokens"]
    assert [rows[0].metric(name) for name in names] == [
        *(Metric(4), Metric(1.0, count=2), Metric(2, "max", 2)),  # ages 0 and 2
        *(Metric(2.0, count=2), Metric(3, "max", 2)),  # uses 1 and 3
        *(Metric(groups, "sum") for groups in (2, 1, 1)),
        Metric(30, "sum"),
    ]
    assert [rows[1].metric(name) for name in names] == [
        *(Metric(3), Metric(2.0), Metric(2, "max"), Metric(3.0), Metric(3, "max")),
        *(Metric(groups, "sum") for groups in (3, 0, 2)),  # since the previous row: 5 - 2, 1 - 1, 3 - 1
        Metric(20, "sum"),
    ]


def test_no_metric_name_is_a_path_prefix_of_another(
    recorder: RunRecorder, clock: HandClock, tracer: RecordingTracer
) -> None:
    clock.set(11.0)
    tracer.finished.extend(_span("learner", stage, 10.0, 10.1) for stage in Stage if stage.value.startswith("weight_"))
    taken, scored = (ReplayDraw(replace(OLD, mean_version=2.5), 1, 2),), (replace(SCORED, failed_groups=1),)
    recorder.on_step(replace(FACTS, scored=scored, taken=taken, dropped=Count(4, 90), replay=(ReplayStats(), 0)))
    (row,) = _read(recorder).steps
    names = set(row.metrics)
    assert {"off_policy/dropped_length", "sync/bandwidth_gb_s", "replay/size", "score/failed_groups"} <= names
    assert [(name, other) for name in names for other in names if other.startswith(f"{name}/")] == []


def test_the_ledger_is_in_the_outcome_of_a_run_that_ended(recorder: RunRecorder) -> None:
    assert "ledger" not in recorder.outcome()
    counts = Count(20, 200), Count(1, 9), Count(4, 90), Count(10, 40), Count(3, 15), Count(2, 20)
    recorder.on_finished(RolloutCounts(*counts))
    recorder.folder.finish("completed", outcome=recorder.outcome())
    outcome = json.loads((recorder.folder.folder / MANIFEST).read_text())["outcome"]
    assert outcome["ledger"] == {
        "generated": {"rollouts": 20, "tokens": 200},
        "failed": {"rollouts": 1, "tokens": 9},
        "discarded": {"rollouts": 2, "tokens": 20},
        "dropped": {"rollouts": 4, "tokens": 90},
        "trained": {"rollouts": 10, "tokens": 40},
        "trained_again": {"rollouts": 3, "tokens": 15},
        "unused": {"rollouts": 3, "tokens": 41},  # 20 - 1 - 4 - 10 - 2 and 200 - 9 - 90 - 40 - 20
    }
    ledger = load_run(recorder.folder.folder).ledger
    assert ledger is not None
    assert (ledger.dropped.mean_length, ledger.share(ledger.unused)) == (22.5, 0.15)
    assert outcome["replaced"] == {}


def test_the_first_steps_are_flagged_and_a_later_settling_is_told_at_the_end(
    recorder: RunRecorder, clock: HandClock
) -> None:
    for step, end in enumerate(accumulate([10.0, 5.0, 5.0, 5.0, *[1.0] * 16], initial=10.0)):
        clock.set(end)
        if step:
            recorder.on_step(replace(FACTS, step=step - 1))
    rows = _read(recorder).steps
    assert [row.step for row in rows if row.warmup] == [0, 1, 2, 3]  # in a run under way it is found when read
    assert recorder.outcome()["warmup"] == {"steps": 4, "steady": True, "slow_start": False}


def test_steps_in_which_a_profiler_ran_are_flagged(record: Record, clock: HandClock) -> None:
    recorder = record(profiled=frozenset({3}))
    for step in (2, 3, 4):
        clock.set(step + 1.0)
        recorder.on_step(replace(FACTS, step=step))
    assert [(row.step, row.profiled) for row in _read(recorder).steps] == [(2, False), (3, True), (4, False)]


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [({}, None), ({0: 0.0, 1: 0.0}, None), (dict.fromkeys(range(20), 1.0), True), ({5: 1.0, 6: 1.0}, None)],
)
def test_warm_up_is_the_floor_where_there_is_nothing_to_see(seconds: dict[int, float], steady: bool | None) -> None:
    """The last one: the first five steps had an evaluation each, so that the first two plain ones are 5 and 6."""
    steps = [StepSeconds(step, taken, plain=True) for step, taken in seconds.items()]
    assert warm_up_of(steps) == WarmUp(2, steady)


def test_a_load_in_flight_is_no_part_of_the_generation_around_it(
    recorder: RunRecorder, clock: HandClock, tracer: RecordingTracer
) -> None:
    """Failed before: the 0.5 s of the load counted in both rows. The generation ends a row later than the load."""
    with tracer.span("generator0", Stage.GENERATE, 3, 3):
        clock.set(11.0)
        with tracer.span("generator0", Stage.WEIGHT_LOAD, 3, 4):
            clock.set(11.5)
        clock.set(12.0)
        recorder.on_step(FACTS)
        clock.set(14.0)
    recorder.on_step(NEXT)
    first, second = _read(recorder).steps
    assert (first.stages_s, second.stages_s) == ({"weight_load": 0.5}, {"generate": 3.5})  # 10..14 s without the load


def test_what_goes_on_when_a_row_is_closed_has_its_instants_of_what_ended(
    recorder: RunRecorder, clock: HandClock, tracer: RecordingTracer
) -> None:
    around = tracer.span("generator0", Stage.GENERATE, 3, 3)
    inside = tracer.span("generator0", Stage.WEIGHT_LOAD, 3, 4)
    around.__enter__()
    clock.set(11.0)
    inside.__enter__()
    clock.set(12.0)
    around.__exit__(None, None, None)  # before what began within it, as where two threads work on one lane
    recorder.on_step(FACTS)
    clock.set(13.0)
    inside.__exit__(None, None, None)
    recorder.on_step(NEXT)
    first, second = _read(recorder).steps
    assert (first.stages_s, second.stages_s) == ({"generate": 1.0}, {"weight_load": 2.0})


class TickingClock(HandClock):
    """A clock that moves by a millisecond at each reading."""

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns


def test_lanes_that_do_nothing_wait_for_the_recorder(record: Record) -> None:
    tracer = RecordingTracer(TickingClock())
    recorder = record(["generator", "learner"], tracer)
    tracer.drain()
    with tracer.span("generator", Stage.GENERATE, 4, 3):  # it works on while the step is written down
        recorder.on_step(FACTS)
        (wait,) = tracer.drain()
    assert (wait.lane, wait.stage, wait.step) == ("learner", Stage.WAIT_FOR_RECORDER, 3)
    assert wait.end_ns > wait.start_ns
