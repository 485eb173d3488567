"""Fixtures for tests that read run folders: they are made through the public writer, with numbers known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import (
    ExampleRollout,
    Metric,
    Metrics,
    Purpose,
    RolloutGroup,
    ScoredBatch,
    UpdateResult,
    WeightHandle,
    WorkItem,
)
from harness.loop import Count, RolloutCounts, StepReport
from harness.loop.replay import ReplayDraw, ReplayStats
from harness.report.canvas import picture_style
from harness.results import (
    EvaluationRow,
    Manifest,
    RolloutRow,
    Run,
    RunFolder,
    Scrubber,
    StepRow,
    TailRow,
    store_metrics,
)
from harness.results.manifest import Input
from harness.results.occupancy import LaneAccount, Occupancy, loop_window
from harness.results.recorder import RunRecorder
from harness.results.rows import optimizer_step_columns

WAITS = {
    "generator": Stage.WAIT_FOR_WEIGHTS,
    "scorer": Stage.WAIT_FOR_ROLLOUTS,
    "learner": Stage.WAIT_FOR_BATCH,
}
SCRUBBER = Scrubber(home="/home/ann", cwd="/home/ann/harness", host="annbox.example.org", user="ann")
MACHINE = {"cpu": "Abacus 3000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "0123456789ab"}
ONE_STEP = (
    ("generator", Stage.GENERATE, 0.3),
    ("scorer", Stage.SCORE, 0.1),
    ("learner", Stage.UPDATE, 0.5),
    ("generator", Stage.WEIGHT_LOAD, 0.1),
)


@dataclass
class RunPlan:
    """A run to write. Its stages follow each other; the lanes that have no turn wait.

    Attributes:
        stages: (lane, stage, seconds) of one training step; ``pace`` by step: how many times as long they take.
        gap_s: seconds at the end of each step under no span.
        evaluations: policy version to (validation reward, response length), in ``evaluate_s`` on the generator.
        metrics: of a training step, by its number.
        status: how the run ends; ``running`` leaves it open, ``killed`` closes its files without a word.
    """

    scenario: str = "sync_k"
    experiment: str = "20261120-111500"
    arm: str | None = None
    point: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    steps: int = 4
    stages: Sequence[tuple[str, Stage, float]] = ONE_STEP
    pace: Callable[[int], float] = lambda step: 1.0
    gap_s: float = 0.0
    evaluations: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    evaluate_s: float = 1.0
    prompts: int = 256
    metrics: Callable[[int], Metrics] = lambda step: {"loss": Metric(0.5, count=64)}
    optimizer_steps: int = 1
    optimizer_step_metrics: Callable[[int], Sequence[Metrics]] = lambda step: ()
    rollouts: Sequence[ExampleRollout] = ()
    status: str = "completed"
    error: str | None = None
    startup_s: float = 2.0
    started_at: str = "2026-11-20T11:15:00.000Z"
    interleaving: str | None = "step"
    position: int | None = None
    block: int | None = None
    machine: dict[str, Any] = field(default_factory=lambda: dict(MACHINE))
    versions: dict[str, str | None] = field(default_factory=lambda: {"python": "3.11.7", "torch": "2.13.0"})
    settings: str = "steps: 4\nreward_target: 0.5\nmax_lag: 0\n"
    threads: int | None = 2
    inputs: dict[str, Input] = field(default_factory=dict)

    @property
    def variant_name(self) -> str | None:
        """Folder name below the experiment's."""
        parts = [self.arm] if self.arm else []
        parts += [f"{key}={value}" for key, value in self.point.items()]
        parts += [] if self.block is None else [f"block={self.block}"]
        return ",".join(parts) or None

    @property
    def manifest(self) -> Manifest:
        """What the plan says of it, of a commit with 3.3 million parameters."""
        ours = {each.name for each in fields(self)} & {each.name for each in fields(Manifest)} - {"status", "error"}
        named = {name: getattr(self, name) for name in ours}
        return Manifest(**named, commit="abcdef1234567890", dirty=False, parameters=3_300_000)


def write_run(root: Path, plan: RunPlan) -> RunFolder:
    """Write the run through the public writer."""
    started = datetime.fromisoformat(plan.started_at)
    now_ns = row_ns = start_ns = round(plan.startup_s * 1e9)

    def wall_time() -> datetime:
        return (started + timedelta(seconds=now_ns / 1e9)).astimezone(UTC)

    def spans_of(stages: Sequence[tuple[str, Stage, float]], step: int) -> list[Span]:
        nonlocal now_ns
        spans = []
        for lane, stage, seconds in stages:
            begun_ns, now_ns = now_ns, now_ns + round(seconds * 1e9)
            spans += [
                Span(each, stage if each == lane else WAITS[each], begun_ns, now_ns, step, step) for each in WAITS
            ]
        return spans

    def evaluated(version: int) -> list[Span]:
        if version not in plan.evaluations:
            return []
        spans = spans_of([("generator", Stage.EVALUATE, plan.evaluate_s)], version)
        metrics = store_metrics(_validated(*plan.evaluations[version], plan.prompts))
        elapsed_s = (now_ns - start_ns) / 1e9
        run.append(EvaluationRow(version=version, step=version, elapsed_s=elapsed_s, metrics=metrics))
        return spans

    def times() -> dict[str, Any]:
        """Close a row: seconds since the last one and since the loop's start."""
        nonlocal row_ns
        wall_ns, row_ns = now_ns - row_ns, now_ns
        return {"wall_s": wall_ns / 1e9, "elapsed_s": (now_ns - start_ns) / 1e9}

    run = RunFolder.create(root, plan.scenario, plan.experiment, plan.variant_name, scrubber=SCRUBBER, clock=wall_time)
    run.write_scenario(plan.settings)
    run.write_manifest(plan.manifest)
    run.append_spans([Span(lane, Stage.STARTUP, 0, now_ns, -1, -1) for lane in WAITS])
    spans = evaluated(0)
    for step in range(plan.steps):
        spans += spans_of([(lane, stage, seconds * plan.pace(step)) for lane, stage, seconds in plan.stages], step)
        now_ns += round(plan.gap_s * 1e9)
        spans += evaluated(step + 1)
        row: dict[str, Any] = {"lanes": Occupancy.of(spans).seconds(spans), "optimizer_steps": plan.optimizer_steps}
        row["optimizer_step_metrics"] = optimizer_step_columns(plan.optimizer_step_metrics(step))
        run.append(StepRow(step=step, version=step + 1, **times(), **row, metrics=store_metrics(plan.metrics(step))))
        run.append_spans(spans)
        run.flush()
        spans = []
    run.append(*(RolloutRow.of(it, Purpose.EVALUATE) for it in plan.rollouts))
    if plan.status == "completed":
        run.append(TailRow(**times(), lanes={}))
    if plan.status in ("running", "killed"):
        run.flush()
    else:
        run.finish(plan.status, plan.error, {"final_reward": 0.5})
    if plan.status == "killed":
        run.close()
    return run


def _validated(reward: float, length: float, prompts: int = 256) -> Metrics:
    return {
        "validation/reward": Metric(reward, count=prompts),
        "validation/response_length": Metric(length, count=prompts),
    }


@dataclass
class LaggedPlan:
    """A run of overlapping lanes to write, through the recorder. Every step takes 1 s, and in it

        Generator  transfer, verify, load, then generate until 0.8 s, then wait 0.2 s for weights
        Scorer     wait 0.1 s, score 0.1 s, wait
        Learner    wait 0.2 s for the batch, update until 0.9 s, publish, verify

    Attributes:
        lag: of each group of a step; before there are so many versions, as much as there can be.
        sync_ms: publish, transfer, load and verify; in the first step five times as much.
        ledger: None where the run does not get to its end.
        flat: whether the first group of each batch has equal rewards.
        discarded: of each batch, by dynamic sampling; None without it.
        replay: step to (the buffer's statistics, its groups); None without a buffer.
        rewards: first and last validation reward.
        metrics: of a training step, by its number, beside what the recorder adds.
    """

    scenario: str = "async_lag_sweep"
    experiment: str = "20261121-120000"
    arm: str = "lag1"
    seed: int = 0
    steps: int = 8
    max_lag: int = 1
    lag: Sequence[int] = (1, 1)
    settings: str = "transport: {type: nixl}\n"
    sync_ms: tuple[float, float, float, float] = (10.0, 20.0, 10.0, 2.0)
    num_bytes: int = 20_000_000
    ledger: RolloutCounts | None = field(default_factory=lambda: RolloutCounts(Count(32, 320), trained=Count(32, 320)))
    flat: bool = False
    discarded: tuple[RolloutGroup, ...] | None = None
    replay: Callable[[int], tuple[ReplayStats, int]] | None = None
    rewards: tuple[float, float] = (0.2, 0.6)
    metrics: Callable[[int], Metrics] = lambda step: {}


def write_lagged_run(root: Path, plan: LaggedPlan) -> RunFolder:
    """Write the run through the recorder, on a clock set by hand."""
    now = [2_000_000_000]  # the loop starts at 2 s
    run = RunFolder.create(root, plan.scenario, plan.experiment, f"{plan.arm},seed={plan.seed}", scrubber=SCRUBBER)
    run.write_scenario(f"steps: {plan.steps}\nreward_target: 0.5\nmax_lag: {plan.max_lag}\n{plan.settings}")
    named: dict[str, Any] = {"scenario": plan.scenario, "experiment": plan.experiment, "arm": plan.arm}
    started_at = "2026-11-21T12:00:00.000Z"
    run.write_manifest(Manifest(**named, point={"seed": plan.seed}, seed=plan.seed, started_at=started_at))
    tracer = RecordingTracer(lambda: now[0])
    recorder = RunRecorder(run, tracer)
    item = WorkItem(Purpose.EVALUATE, 0, 0, (0,), 1, 0)
    recorder.loop_starts(WAITS)
    recorder.on_evaluation(0, ScoredBatch(item, (), _validated(plan.rewards[0], 12.0)))
    for step in range(plan.steps):
        spans = _lagged_spans(plan, step)
        tracer.finished.extend(spans)
        for lane, stage in (("generator", Stage.WEIGHT_LOAD), ("learner", Stage.WEIGHT_PUBLISH)):
            now[0] = next(span.end_ns for span in spans if (span.lane, span.stage) == (lane, stage))
            recorder.on_version(lane, step + (lane == "learner"))
        now[0] = (3 + step) * 1_000_000_000
        recorder.on_step(_lagged_facts(plan, step))
    recorder.on_evaluation(plan.steps, ScoredBatch(item, (), _validated(plan.rewards[1], 12.0)))
    if plan.ledger is not None:
        recorder.on_finished(plan.ledger)
    recorder.loop_ends()
    run.finish("completed", None, recorder.outcome())
    return run


def _lagged_spans(plan: LaggedPlan, step: int) -> list[Span]:
    publish, transfer, load, verify = (ms * (5 if step == 0 else 1) / 1e3 for ms in plan.sync_ms)
    generator = [(Stage.WEIGHT_TRANSFER, transfer), (Stage.WEIGHT_VERIFY, verify), (Stage.WEIGHT_LOAD, load)]
    generator += [(Stage.GENERATE, 0.8 - transfer - verify - load), (Stage.WAIT_FOR_WEIGHTS, 0.2)]
    scorer = [(Stage.WAIT_FOR_ROLLOUTS, 0.1), (Stage.SCORE, 0.1), (Stage.WAIT_FOR_ROLLOUTS, 0.8)]
    learner = [(Stage.WAIT_FOR_BATCH, 0.2), (Stage.UPDATE, 0.7)]
    learner += [(Stage.WEIGHT_PUBLISH, publish), (Stage.WEIGHT_VERIFY, verify)]
    spans = []
    for lane, stages in (("generator", generator), ("scorer", scorer), ("learner", learner)):
        end_ns = (2 + step) * 1_000_000_000
        for stage, seconds in stages:
            start_ns, end_ns = end_ns, end_ns + round(seconds * 1e9)
            batch = step + 2 if stage is Stage.WAIT_FOR_WEIGHTS else step  # the next batch but one is waited for
            spans.append(Span(lane, stage, start_ns, end_ns, batch, step))
    return spans


def _lagged_facts(plan: LaggedPlan, step: int) -> StepReport:
    groups = [
        RolloutGroup(number, step, max(0, step - lag), step, (8, 12), rewards=(float(plan.flat and number == 0), 1.0))
        for number, lag in enumerate(plan.lag)
    ]
    item = WorkItem(Purpose.TRAIN, step, 0, tuple(range(len(groups))), 2, 0)
    scored = ScoredBatch(
        item, tuple(groups), {"reward/total": Metric(0.5, count=2 * len(groups))}, discarded=plan.discarded
    )
    taken = tuple(ReplayDraw(group, 1 + number, step - group.min_version) for number, group in enumerate(groups))
    result, weight_handle = UpdateResult(step + 1, 1, plan.metrics(step)), WeightHandle(step + 1, plan.num_bytes, 3)
    return StepReport(step, (scored,), taken, result, weight_handle, replay=plan.replay(step) if plan.replay else None)


@pytest.fixture
def make_lagged_run(tmp_path: Path) -> Iterator[Callable[..., RunFolder]]:
    """Return a function that writes a run of overlapping lanes; its keywords are the fields of ``LaggedPlan``."""
    with ExitStack() as opened:
        yield lambda **fields: opened.enter_context(
            write_lagged_run(tmp_path / "results", replace(LaggedPlan(), **fields))
        )


@pytest.fixture
def lagged(make_lagged_run: Callable[..., RunFolder], tmp_path: Path) -> Path:
    """Two arms of overlapping lanes in two seeds each, over two transports, of 12 steps."""
    for seed in (0, 1):
        make_lagged_run(arm="lag1", seed=seed, steps=12)
        store = "transport: {type: object_store}\n"
        make_lagged_run(arm="lag3", seed=seed, steps=12, lag=(1, 3), settings=store, sync_ms=(10, 30, 20, 2))
    return tmp_path / "results" / "async_lag_sweep" / "20261121-120000"


@pytest.fixture
def lag_arms(make_lagged_run: Callable[..., RunFolder], tmp_path: Path) -> Path:
    """A lag bound that waits, one that drops 6 of 40 rollouts, and a replay buffer of which 8 of 32 are drawn again."""
    make_lagged_run(arm="a_wait")
    ledger = RolloutCounts(Count(40, 480), dropped=Count(6, 150), trained=Count(32, 320))
    make_lagged_run(arm="b_drop", settings="lag_control: drop\n", lag=(0, 1), ledger=ledger)
    make_lagged_run(
        arm="c_replay",
        settings="replay: {capacity: 8, sampling: uniform}\n",
        lag=(1, 3),
        ledger=RolloutCounts(Count(32, 320), trained=Count(24, 240), trained_again=Count(8, 80)),
        replay=lambda step: (
            ReplayStats(2 * step, evicted_full=2 * step, evicted_unused=min(step, 3)),
            min(8, 2 * step),
        ),
    )
    return tmp_path / "results"


@pytest.fixture
def style() -> Iterator[None]:
    """The settings that every picture is drawn with."""
    with picture_style():
        yield


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., RunFolder]]:
    """Return a function that writes a run below ``tmp_path/results``; its keywords are the fields of ``RunPlan``."""
    with ExitStack() as opened:
        yield lambda **fields: opened.enter_context(write_run(tmp_path / "results", replace(RunPlan(), **fields)))


@pytest.fixture
def scrubber() -> Scrubber:
    """A scrubber for a user who is not the one running the tests."""
    return SCRUBBER


def loop_accounts(run: Run) -> dict[str, LaneAccount]:
    """Return where the time of each lane went in the whole loop, warm-up included."""
    spans = run.spans()
    return Occupancy.of(spans, [loop_window(spans, run.tail.elapsed_s if run.tail else None)]).accounts()
