"""What the recorder writes of events made by hand, on a clock set by hand. Arithmetic stands beside each number."""

import itertools
import json
from dataclasses import dataclass, replace
from itertools import accumulate

import pytest

from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import (
    ExampleRollout,
    Metric,
    Purpose,
    RolloutGroup,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
    WorkItem,
)
from harness.loop import Count, RolloutCounts, StepReport
from harness.loop.replay import ReplayDraw, ReplayStats
from harness.results import (
    BatchRow,
    DiscardedRow,
    Manifest,
    RolloutRow,
    RunFolder,
    ShardRow,
    VersionChange,
    WarmUp,
    load_run,
)
from harness.results.frames import over_optimizer_steps, table_of
from harness.results.occupancy import Occupancy
from harness.results.recorder import RunRecorder
from harness.results.rows import STEPS, StepSeconds, optimizer_step_columns
from harness.results.step_metrics import idle_ratios, lag_metrics, step_metrics, sync_metrics, trained_lags
from harness.results.training_log import evaluation_line, rollout_lines, step_line
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

    def __call__(self):
        return self.now_ns

    def set(self, seconds):
        """Set the time."""
        self.now_ns = round(seconds * 1e9)


def _span(lane, stage, start_s, end_s):
    return Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), 3, 3)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def tracer(clock):
    return RecordingTracer(clock)


@pytest.fixture
def record(tmp_path, clock, tracer, scrubber):
    """Return a function that makes a recorder whose loop starts now; its keywords are those of ``RunRecorder``."""
    with RunFolder.create(tmp_path, "s", "c", None, scrubber=scrubber) as folder:
        folder.write_manifest(Manifest(scenario="s", experiment="c", started_at="2026-11-20T11:15:00.000Z"))

        def make(lanes=("learner",), tracer=tracer, **options):
            made = RunRecorder(folder, tracer, **options)
            made.loop_starts(lanes)
            return made

        yield make


@pytest.fixture
def recorder(record, clock):
    """A recorder whose loop starts at 10 s."""
    clock.set(10.0)
    return record(["generator0", "generator1", "scorer", "learner"])


def _read(recorder):
    recorder.folder.flush()
    return load_run(recorder.folder.folder)


def _log(recorder):
    recorder.folder.flush()
    lines = (recorder.folder.folder / "log.txt").read_text().splitlines()
    return [line.partition(" ")[2] for line in lines]


# ---- of facts alone


def test_lag_is_that_of_the_oldest_token_and_what_was_dropped_is_counted():
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
    mixed = replace(OLD, mean_version=2.5)
    metrics = lag_metrics(replace(FACTS, taken=(ReplayDraw(YOUNG, 1, 0), ReplayDraw(mixed, 1, 2))))
    # weighted by tokens: 10 of YOUNG at lag 0, 20 at 3 - 2.5
    assert metrics["off_policy/token_mean"] == Metric(pytest.approx(10 / 30), count=30)


def test_throughput_counts_what_was_generated_not_what_was_trained_on():
    metrics = step_metrics(replace(FACTS, taken=(ReplayDraw(OLD, 2, 2),)), wall_s=2.0)
    assert metrics["response_tokens"] == Metric(30, "sum")  # 4 + 6 + 10 + 10
    assert metrics["perf/throughput_total"] == Metric(15.0)
    assert (metrics["reward/total"], metrics["loss"]) == (Metric(0.75, count=4), Metric(0.5, count=4))
    assert not {"perf/throughput_total", "score/failed_groups"} & step_metrics(FACTS, wall_s=0.0).keys()
    parts = (replace(SCORED, failed_groups=2), replace(SCORED, groups=(), metrics={}, failed_groups=1))
    some, all_failed = (step_metrics(replace(FACTS, scored=scored), 1.0) for scored in (parts, parts[1:]))
    assert (some["score/failed_groups"], some.get("score/failed_batches")) == (Metric(3, "sum"), None)
    assert all_failed["score/failed_batches"] == Metric(1, "sum")
    for groups, expected in (
        ((YOUNG, OLD), Metric(0.5, count=2)),  # rewards 0 and 1; 1 and 1
        ((OLD, replace(YOUNG, rewards=(1.0,), lengths=(4,))), Metric(1.0, count=1)),  # one alone tells nothing
        ((replace(OLD, rewards=None),), None),
    ):
        facts = replace(FACTS, taken=tuple(ReplayDraw(group, 1, 0) for group in groups))
        assert step_metrics(facts, 1.0).get("zero_variance_fraction") == expected


def test_dynamic_sampling_counts_groups_tokens_and_attempts():
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


def test_optimizer_steps_are_kept_where_there_are_several(recorder, clock):
    inner = [{"loss": Metric(0.1 * place, count=4), "ratio/max": Metric(2.0, "max")} for place in range(4)]
    inner[2] |= {"clip_fraction": Metric(0.5)}  # one that not all have is left out
    for step, parts in enumerate((inner, inner[:1])):
        clock.set(11.0 + step)
        result = UpdateResult(step + 1, len(parts), {"loss": Metric(0.9)}, parts)
        recorder.on_step(replace(FACTS, step=step, result=result))
    run = _read(recorder)
    kept = [row.optimizer_step_metrics for row in run.steps]
    assert kept == [{"loss": pytest.approx((0.0, 0.1, 0.2, 0.3))}, {}]
    # 4 + 1 optimizer steps; the single one is the row's own figure
    points = over_optimizer_steps(table_of(run), "loss")
    assert points == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.9)]
    many = optimizer_step_columns([{"loss": Metric(float(place))} for place in range(160)])["loss"]
    # i * 160 // 64: 0, 2.5, 5, 7.5, and at last 63 * 2.5 = 157.5
    assert (len(many), many[:4], many[-1]) == (64, (0.0, 2.0, 5.0, 7.0), 157.0)


def test_a_sync_is_the_mean_over_publishes_and_over_receivers():
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
    # where nothing was loaded there is no bandwidth, without bytes no sync
    assert list(sync_metrics(TICKET, spans[:1])) == ["sync/bytes", "sync/tensors", "sync/publish_s"]
    assert sync_metrics(WeightHandle(1, 0, 1), spans[:1]) == {}


def test_idle_ratios_are_means_over_the_lanes_of_a_kind():
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


def test_groups_of_shards_and_evaluations_are_kept_with_what_was_discarded_and_replayed(recorder, clock):
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


def test_a_step_is_on_disk_when_it_is_told_and_its_listeners_come_last_and_in_order(record):
    story = []

    def on_row(row):
        _, *lines = (recorder.folder.folder / STEPS).read_text().splitlines()
        story.append((row.kind, [json.loads(line)["kind"] for line in lines]))

    recorder = record(
        row_listeners=[on_row, lambda row: story.append(("second", row.kind))],
        step_listeners=[lambda step: story.append(("first", step)), lambda step: story.append(("last", step))],
    )
    recorder.on_step(FACTS)
    recorder.on_evaluation(4, replace(SCORED, item=replace(ITEM, purpose=Purpose.EVALUATE)))
    assert story == [
        ("step", ["step"]), ("second", "step"), ("first", 3), ("last", 3),
        ("evaluation", ["step", "evaluation"]), ("second", "evaluation"),
    ]  # fmt: skip


def test_a_row_holds_versions_changes_and_lags(recorder, clock):
    def changes_at(seconds, lane, version):
        clock.set(10 + seconds)
        recorder.on_version(lane, version)
        return VersionChange(seconds, lane, version)

    changes = [changes_at(0.5, "learner", 0), changes_at(0.75, "generator0", 0), changes_at(2.0, "learner", 1)]
    recorder.on_step(FACTS)
    changes.append(changes_at(3.0, "generator0", 1))
    recorder.on_step(NEXT)
    changes.append(changes_at(3.5, "generator0", 4))
    recorder.loop_ends()
    run = _read(recorder)
    first, second = run.steps
    assert (first.versions, second.versions) == ({"learner": 1, "generator0": 0}, {"learner": 1, "generator0": 1})
    assert [*map(list, (first.version_changes, second.version_changes))] == [changes[:3], changes[3:4]]
    assert (run.version_changes, first.lags) == (changes, {0: 2, 2: 2})
    assert _log(recorder)[1] == "0.750000 s: generator0 holds policy version 0"


def test_a_replaced_part_holds_no_version_and_is_logged(recorder, clock):
    recorder.on_version("generator1", 0)
    clock.set(11.0)
    for lane, cause in (("generator1", "killed by signal 9"), ("scorer", "lost"), ("generator1", "killed again")):
        recorder.on_replaced(lane, cause)
    recorder.on_step(FACTS)
    (row,) = _read(recorder).steps
    changes = [VersionChange(at, "generator1", version) for at, version in ((0.0, 0), (1.0, -1), (1.0, -1))]
    assert (row.versions, list(row.version_changes)) == ({}, changes)
    first, _, third = _log(recorder)[1:-1]
    assert first.startswith("1.000000 s: generator1 died (killed by signal 9)")
    assert "generator1 died (killed again)" in third
    assert recorder.outcome()["replaced"] == {"generator1": 2, "scorer": 1}


def test_what_was_measured_of_syncs_is_in_the_next_row_and_in_the_outcome(recorder, clock):
    for seconds in (1.0, 3.0):
        recorder.on_sync("generator0", 3, {"sync/wire_s": Metric(seconds)})
    recorder.on_step(FACTS)
    recorder.on_step(NEXT)
    recorder.on_sync("generator0", 4, {"sync/wire_s": Metric(5.0)})
    first, second = _read(recorder).steps
    assert (first.metric("sync/wire_s"), second.metric("sync/wire_s")) == (Metric(2.0, count=2), None)
    assert recorder.outcome()["syncs"] == {"sync/wire_s": 3.0}
    clock.set(13.0)
    recorded = recorder.recorded()
    recorder.on_step(replace(FACTS, step=5))
    assert (len(recorded.seconds), recorded.measured) == (2, {"sync/wire_s": Metric(5.0)})
    assert recorded.elapsed_s == 3.0  # since 10 s


def test_a_wait_counts_in_every_row_that_it_reaches_into(recorder, clock, tracer):
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


def test_replay_figures_are_those_of_the_buffer_and_of_what_was_taken(recorder, clock):
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


def test_the_ledger_is_in_the_outcome_of_a_run_that_ended(recorder):
    assert "ledger" not in recorder.outcome()
    counts = Count(20, 200), Count(1, 9), Count(4, 90), Count(10, 40), Count(3, 15), Count(2, 20)
    recorder.on_finished(RolloutCounts(*counts))
    recorder.folder.finish("completed", outcome=recorder.outcome())
    outcome = json.loads((recorder.folder.folder / MANIFEST).read_text())["outcome"]
    unused = Count(3, 41)  # 20 - 1 - 4 - 10 - 2 and 200 - 9 - 90 - 40 - 20
    names = ("generated", "failed", "dropped", "trained", "trained_again", "discarded", "unused")
    assert outcome["ledger"] == {
        name: {"rollouts": count.rollouts, "tokens": count.tokens}
        for name, count in zip(names, (*counts, unused), strict=True)
    }
    ledger = load_run(recorder.folder.folder).ledger
    assert (ledger.dropped.mean_length, ledger.share(ledger.unused)) == (22.5, 0.15)


def test_the_first_steps_are_flagged_and_a_later_settling_is_told_at_the_end(recorder, clock):
    for step, end in enumerate(accumulate([10.0, 5.0, 5.0, 5.0, *[1.0] * 16], initial=10.0)):
        clock.set(end)
        if step:
            recorder.on_step(replace(FACTS, step=step - 1))
    rows = _read(recorder).steps
    assert [row.step for row in rows if row.warmup] == [0, 1, 2, 3]  # in a run under way it is found when read
    assert recorder.outcome()["warmup"] == {"steps": 4, "steady": True, "slow_start": False}


def test_steps_in_which_a_profiler_ran_are_flagged(record, clock):
    recorder = record(profiled=frozenset({3}))
    for step in (2, 3, 4):
        clock.set(step + 1.0)
        recorder.on_step(replace(FACTS, step=step))
    assert [(row.step, row.profiled) for row in _read(recorder).steps] == [(2, False), (3, True), (4, False)]


def test_warm_up_is_the_floor_where_there_is_nothing_to_see():
    """The last one: the first five steps had an evaluation each, so that the first two plain ones are 5 and 6."""
    cases = [
        ({}, None), ({0: 0.0, 1: 0.0}, None), (dict.fromkeys(range(20), 1.0), True), ({5: 1.0, 6: 1.0}, None)
    ]  # fmt: skip
    for seconds, steady in cases:
        steps = [StepSeconds(step, taken, plain=True) for step, taken in seconds.items()]
        assert warm_up_of(steps) == WarmUp(2, steady)


def test_what_goes_on_when_a_row_is_closed_has_its_instants_of_what_ended(recorder, clock, tracer):
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


def test_lanes_that_do_nothing_wait_for_the_recorder(record):
    ticks = itertools.count(step=1_000_000)
    tracer = RecordingTracer(lambda: next(ticks))  # a clock that moves by a millisecond at each reading
    recorder = record(["generator", "learner"], tracer)
    tracer.drain()
    with tracer.span("generator", Stage.GENERATE, 4, 3):  # it works on while the step is written down
        recorder.on_step(FACTS)
        (wait,) = tracer.drain()
    assert (wait.lane, wait.stage, wait.step) == ("learner", Stage.WAIT_FOR_RECORDER, 3)
    assert wait.end_ns > wait.start_ns


# ---- the lines that a person reads of a training run

METRICS = {
    "reward/total": Metric(0.75, count=4),
    "loss": Metric(-0.012345),
    "response_length": Metric(17.25, count=4),
    "kl/reference_k3": Metric(0.00123456, count=69),
    "kl/penalty": Metric(0.5, count=69),
    "grad_norm": Metric(1.5),
    "clip_fraction": Metric(0.125, count=69),
    "learning_rate": Metric(1e-5),
    "token_entropy": Metric(2.0),
}
ROLLOUT = ExampleRollout(
    "Say \x1b[31m hi", "hi\nyou \u202e", "hi", 1.0, 40, "stop", 7, 0.7071, (-0.5, -0.0004, *[-0.25] * 30)
)


def test_a_step_is_one_line_of_what_a_person_wants_to_know():
    assert step_line(12, METRICS, 0.04567) == (
        "step 12: reward 0.75, loss -0.0123, length 17.2, KL to the reference 0.00123, KL penalty 0.5, "
        "gradient norm 1.5, clip fraction 0.125, learning rate 1e-05, 0.0457 s"
    )
    assert step_line(0, {}, 2.0) == "step 0: 2 s"  # a simulated step, where nothing is learnt
    scores = {"validation/reward": Metric(0.5, count=64), "validation/response_length": Metric(9.0, count=64)}
    assert evaluation_line(10, scores) == "validation of policy version 10: reward 0.5, length 9"


def test_a_rollout_is_shown_with_advantage_and_log_probs_bounded_and_with_nothing_left_to_act():
    head, line = rollout_lines(5, [ROLLOUT])
    assert head == "step 5 trained on 1 rollouts of: Say \\x1b[31m hi"
    log_probs = " ".join(["-0.5", "0", *["-0.25"] * 14])  # 16 of 40 tokens
    assert line == f"  reward 1, advantage 0.707, version 7, log-probs {log_probs} and 24 more: hi\\nyou \\u202e"
    long = replace(ROLLOUT, prompt="p" * 5000, response="r" * 5000, log_probs=(-1.0,) * 64, num_tokens=5000)
    assert max(map(len, rollout_lines(5, [long]))) < 500
    assert rollout_lines(5, []) == []


def test_the_recorder_logs_versions_steps_and_rollouts_and_tells_whoever_listens(tmp_path, scrubber):
    """What is echoed is the log without its times, once it is on disk; the rollouts are in ``rollouts.jsonl`` too."""
    heard, on_disk = list[str](), list[int]()

    def echo(line):
        heard.append(line)
        on_disk.append(len((folder.folder / "log.txt").read_text().splitlines()))

    with RunFolder.create(tmp_path, "s", "c", None, scrubber=scrubber, echo=echo) as folder:
        folder.write_manifest(Manifest(scenario="s", experiment="c", started_at="2026-11-20T11:15:00.000Z"))
        recorder = RunRecorder(folder, RecordingTracer(lambda: 0))
        recorder.loop_starts(["generator", "learner"])
        recorder.on_version("learner", 3)
        assert heard == []
        result = replace(RESULT, examples=(ROLLOUT, replace(ROLLOUT, reward=0.0, advantage=-0.5)))
        recorder.on_step(replace(FACTS, step=5, result=result))
        recorder.on_evaluation(6, replace(SCORED, metrics={"validation/reward": Metric(1.0)}))
        told = [
            "learner holds policy version 3",
            "step 5: reward 0.75, loss 0.5, 0 s",
            *rollout_lines(5, result.examples),
        ]
        told.append("validation of policy version 6: reward 1")
        assert heard == [f"0.000000 s: {line}" for line in told]
        assert on_disk == [5] * 5 + [6]
        lines = (folder.folder / "log.txt").read_text().splitlines()
        assert [line.partition(" ")[2] for line in lines] == heard
        first, _ = load_run(folder.folder).rollouts()
    assert first == RolloutRow(
        "train", 7, ROLLOUT.prompt, ROLLOUT.response, "hi", 1.0, 40, "stop", 5, 0.7071, ROLLOUT.log_probs
    )
