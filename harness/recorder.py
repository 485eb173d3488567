"""Turns what a run does into rows on disk, one flush for each training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from harness.intervals import Interval, clip, total, without
from harness.loop import Ledger, StepFacts
from harness.loop.ledger import count
from harness.replay import ReplayStats
from harness.results import (
    RunFolder,
    VersionChange,
    evaluation_row,
    lane_kind,
    lane_seconds,
    step_row,
    tail_row,
)
from harness.results.counters import CounterRow
from harness.trace import RecordingTracer, Span, Stage
from harness.types import Metric, Metrics, Purpose, ScoredBatch, WeightTicket, combine_metrics

Row = dict[str, Any]
NO_VERSION = -1
WARMUP_FLOOR = 2  # steps that are warm-up in any run; what else is shows only at the end, and is told in the outcome
SYNC_STAGES = {
    "publish": Stage.WEIGHT_PUBLISH,
    "transfer": Stage.WEIGHT_TRANSFER,
    "load": Stage.WEIGHT_LOAD,
    "verify": Stage.WEIGHT_VERIFY,
}
LEDGER_COLUMNS = ("generated", "failed", "dropped", "trained", "trained_again", "unused")


class Probes(Protocol):
    """What a recorder asks of the probes beside a run."""

    def drain(self) -> list[CounterRow]:
        """Return the counters that have come in since the last call."""

    def drain_notes(self) -> list[str]:
        """Return what went wrong since the last call, in words."""

    def step_metrics(self) -> Metrics:
        """Return the probes' own figures since the last call."""


class NoProbes:
    """The probes of a run that has none."""

    def drain(self) -> list[CounterRow]:
        return []

    def drain_notes(self) -> list[str]:
        return []

    def step_metrics(self) -> Metrics:
        return {}


class RunRecorder:
    """The observer of one run: writes its spans, steps, evaluations, examples and log.

    A step's row holds the spans that ended since the previous row.

    Args:
        folder: where the rows go.
        tracer: whose spans are drained at each row.
        synchronous: whether evaluation and training take turns; only then is evaluation taken out of a step's seconds.
        on_row: called with each step or evaluation row and, for a step, its seconds without evaluation.
        profiled: training steps in which a profiler runs.
        probes: what runs beside the run; None where nothing does.

    Attributes:
        on_step_done: called last when a training step is complete: passes the turn to the next arm.
    """

    def __init__(
        self,
        folder: RunFolder,
        tracer: RecordingTracer,
        synchronous: bool = True,
        on_row: Callable[[Row, float], None] = lambda row, train_s: None,
        profiled: frozenset[int] = frozenset(),
        probes: Probes | None = None,
    ) -> None:
        self.folder, self._tracer, self._synchronous = folder, tracer, synchronous
        self._on_row, self._profiled = on_row, profiled
        self.probes: Probes = probes or NoProbes()
        self._plain_seconds: dict[int, float] = {}  # of steps without evaluation and profiler
        self.on_step_done: Callable[[int], None] = lambda step: None
        self._loop_start_ns = self._row_start_ns = 0
        self._lanes: tuple[str, ...] = ()
        self._versions: dict[str, int] = {}
        self._version_changes: list[VersionChange] = []
        self._replay = ReplayStats()
        self._ledger: Ledger | None = None
        self._replaced: Counter[str] = Counter()
        self.steps_done = 0
        self.evaluations: list[tuple[int, Metrics]] = []

    def loop_starts(self, lanes: Iterable[str]) -> None:
        """Everything before now was start-up of these lanes."""
        now_ns = self._tracer.clock_ns()
        self._lanes = tuple(lanes)
        self.write_spans()
        self.folder.append_spans(Span(lane, Stage.STARTUP, 0, now_ns, -1, -1) for lane in self._lanes)
        self._loop_start_ns = self._row_start_ns = now_ns

    def on_version(self, lane: str, version: int) -> None:
        """See ``Observer``."""
        self._log(f"{lane} holds policy version {version}")
        self._hold(lane, version)

    def on_replaced(self, lane: str, reason: str) -> None:
        """See ``Observer``."""
        self._log(f"{lane} died ({reason}); a new one takes its place")
        self._replaced[lane] += 1
        if lane in self._versions:
            self._hold(lane, NO_VERSION)
        self.folder.flush()

    def on_step(self, facts: StepFacts) -> None:
        """See ``Observer``."""
        for part in facts.scored:
            self._log_failure(part)
        window = self._row_start_ns, self._tracer.clock_ns()
        spans, wall_s, elapsed_s = self._close_row(window[1])
        train_s = wall_s - evaluation_s(spans) if self._synchronous else wall_s
        metrics = step_metrics(facts, train_s) | sync_metrics(facts.ticket, spans)
        metrics |= self._replay_metrics(facts) | idle_ratios(self._waits(spans), self._lanes, window)
        metrics |= self._drain_probes()
        profiled = facts.step in self._profiled
        if not profiled and not evaluation_s(spans):
            self._plain_seconds[facts.step] = wall_s
        row = step_row(
            step=facts.step,
            version=facts.result.version,
            wall_s=wall_s,
            elapsed_s=elapsed_s,
            optimizer_steps=facts.result.optimizer_steps,
            lanes=lane_seconds(spans),
            metrics=metrics,
            versions={lane: version for lane, version in self._versions.items() if version != NO_VERSION},
            version_changes=self._drain_changes(),
            lags=trained_lags(facts),
            warmup=facts.step < WARMUP_FLOOR,
            profiled=profiled,
        )
        self.folder.append_step(row)
        self.folder.flush()
        self.steps_done += 1
        self._on_row(row, train_s)
        self.on_step_done(facts.step)

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        """See ``Observer``."""
        elapsed_s = self._elapsed_s(self._tracer.clock_ns())
        self._log_failure(scored)
        failed = {"validation/failed_groups": Metric(scored.failed_groups, "sum")} if scored.failed_groups else {}
        metrics = scored.metrics | failed
        row = evaluation_row(version=version, step=version, elapsed_s=elapsed_s, metrics=metrics)
        self.folder.append_step(row)
        self.folder.append_rollouts(Purpose.EVALUATE, scored.examples)
        self.folder.flush()
        self.evaluations.append((version, scored.metrics))
        self._on_row(row, 0.0)

    def _drain_probes(self) -> Metrics:
        """Write the counters that have come in; return what the probes cost, and what GPUs took for stages."""
        self.folder.append_counters(self.probes.drain())
        for note in self.probes.drain_notes():
            self.folder.log(note)
        return dict(self.probes.step_metrics())

    def _log_failure(self, scored: ScoredBatch) -> None:
        if scored.failure is not None:
            what = f"{scored.item.purpose} batch {scored.item.step}, shard {scored.item.shard}"
            self.folder.log(f"{what}: {scored.failed_groups} groups without a reward; the first: {scored.failure}")

    def on_finished(self, ledger: Ledger) -> None:
        """See ``Observer``."""
        self._ledger = ledger

    def loop_ends(self) -> None:
        """Write what ended after the last step, so that the totals of the run are conserved."""
        spans, wall_s, elapsed_s = self._close_row(self._tracer.clock_ns())
        self._drain_probes()
        lanes, changes = lane_seconds(spans), self._drain_changes()
        self.folder.append_step(tail_row(wall_s=wall_s, elapsed_s=elapsed_s, lanes=lanes, version_changes=changes))
        self.folder.flush()

    def write_spans(self) -> list[Span]:
        """Write the spans that have ended since the last call, and return them."""
        spans = self._tracer.drain()
        self.folder.append_spans(spans)
        return spans

    def outcome(self) -> dict[str, Any]:
        """Return the figures that sum up the run."""
        figures: dict[str, Any] = {"steps_done": self.steps_done, "elapsed_s": self._elapsed_s(self._row_start_ns)}
        for name, evaluations in (("first", self.evaluations[:1]), ("last", self.evaluations[-1:])):
            for version, metrics in evaluations:
                values = {key: metric.value for key, metric in metrics.items()}
                figures[f"{name}_evaluation"] = {"version": version} | values
        figures["warmup"] = warmup_figures(self._plain_seconds)
        if self._ledger is not None:
            figures["ledger"] = {column: asdict(getattr(self._ledger, column)) for column in LEDGER_COLUMNS}
        return figures | {"replaced": dict(self._replaced)}

    def _elapsed_s(self, now_ns: int) -> float:
        return (now_ns - self._loop_start_ns) / 1e9

    def _log(self, event: str) -> None:
        self.folder.log(f"{self._elapsed_s(self._tracer.clock_ns()):.6f} s: {event}")

    def _hold(self, lane: str, version: int) -> None:
        self._versions[lane] = version
        elapsed_s = self._elapsed_s(self._tracer.clock_ns())
        self._version_changes.append(VersionChange(elapsed_s, lane, version))

    def _drain_changes(self) -> list[VersionChange]:
        changes, self._version_changes = self._version_changes, []
        return changes

    def _close_row(self, now_ns: int) -> tuple[list[Span], float, float]:
        """Write the spans ended since the last row; return them, the seconds since then and since the loop's start."""
        spans = self.write_spans()
        wall_ns, self._row_start_ns = now_ns - self._row_start_ns, now_ns
        return spans, wall_ns / 1e9, self._elapsed_s(now_ns)

    def _waits(self, ended: Sequence[Span]) -> list[tuple[str, Interval]]:
        """The waits that ended in this row and those that go on, by lane."""
        now_ns = self._row_start_ns  # of the next row
        seen = [(span.lane, span.stage, (span.start_ns, span.end_ns)) for span in ended]
        seen += [(span.lane, span.stage, (span.start_ns, now_ns)) for span in self._tracer.still_open()]
        waits = [(lane, time) for lane, stage, time in seen if stage.is_wait and stage is not Stage.WAIT_FOR_CALL]
        for lane in {lane for lane, _, _ in seen}:
            calls = [time for other, stage, time in seen if other == lane and stage is Stage.WAIT_FOR_CALL]
            busy = [time for other, stage, time in seen if other == lane and not stage.is_wait]
            waits += [(lane, time) for time in without(calls, busy)]
        return waits

    def _replay_metrics(self, facts: StepFacts) -> Metrics:
        if facts.replay is None:
            return {}
        stats, size = facts.replay
        evicted_unused = stats.evicted_unused - self._replay.evicted_unused
        self._replay = stats
        groups = len(facts.taken)
        return {
            "replay/size": Metric(size),
            "replay/age_mean": Metric(sum(item.age for item in facts.taken) / groups, count=groups),
            "replay/uses_mean": Metric(sum(item.uses for item in facts.taken) / groups, count=groups),
            "replay/evicted_unused": Metric(evicted_unused, "sum"),
            "trained_tokens": Metric(count(facts.groups).tokens, "sum"),
        }


def warmup_figures(seconds: Mapping[int, float]) -> dict[str, Any]:
    """Return how many of a run's first steps are warm-up, and whether its step times settled.

    Args:
        seconds: of the steps without evaluation and profiler, by their number in rising order.
    """
    from harness.stats import steady_from

    times = list(seconds.values())
    if not times or min(times) <= 0:  # simulated steps may take no time at all
        return {"steps": WARMUP_FLOOR, "steady": True}
    found = steady_from(times)
    warm = list(seconds)[: found.steps]
    return {"steps": max(WARMUP_FLOOR, warm[-1] + 1 if warm else 0), "steady": found.steady}


def evaluation_s(spans: list[Span]) -> float:
    """Return the seconds in which at least one lane evaluated."""
    return total((span.start_ns, span.end_ns) for span in spans if span.stage is Stage.EVALUATE) / 1e9


def step_metrics(facts: StepFacts, train_s: float) -> Metrics:
    """Return the metrics of a training step: rewards, update, lag and throughput of the fresh rollouts.

    Args:
        facts: what the loop tells of the step.
        train_s: seconds of the step without evaluation.
    """
    metrics = combine_metrics([part.metrics for part in facts.scored]) | facts.result.metrics | lag_metrics(facts)
    tokens = count(facts.fresh).tokens
    metrics["response_tokens"] = Metric(tokens, "sum")
    if train_s > 0:
        metrics["perf/throughput_total"] = Metric(tokens / train_s)
    failed = sum(part.failed_groups for part in facts.scored)
    if failed:
        metrics["score/failed_groups"] = Metric(failed, "sum")
    return metrics


def trained_lags(facts: StepFacts) -> Counter[int]:
    """Return lag -> rollouts trained on: the step's policy version minus that of a rollout's oldest token."""
    lags: Counter[int] = Counter()
    for group in facts.groups:
        lags[facts.step - group.min_version] += len(group.lengths)
    return lags


def lag_metrics(facts: StepFacts) -> Metrics:
    """Return how old the trained rollouts were, what was dropped, and what was on its way when the step began."""
    lags = trained_lags(facts)
    rollouts = lags.total()
    metrics = {
        "off_policy/mean": Metric(sum(lag * number for lag, number in lags.items()) / rollouts, count=rollouts),
        "off_policy/max": Metric(max(lags), "max", rollouts),
        "off_policy/dropped": Metric(facts.dropped.rollouts, "sum"),
        "off_policy/in_flight": Metric(facts.in_flight),
        "off_policy/in_queue": Metric(facts.in_queue),
    }
    if facts.dropped.mean_length is not None:
        metrics["off_policy/dropped_length"] = Metric(facts.dropped.mean_length, count=facts.dropped.rollouts)
    if any(group.mean_version is not None for group in facts.groups):
        tokens = count(facts.groups).tokens
        lag = sum((facts.step - group.token_version) * group.num_tokens for group in facts.groups) / tokens
        metrics["off_policy/token_mean"] = Metric(lag, count=tokens)
    return metrics


def sync_metrics(ticket: WeightTicket, spans: Sequence[Span]) -> Metrics:
    """Return what the weight syncs among the spans moved and took; nothing where there are no bytes to move.

    A stage's seconds are those of one sync: the mean over the Learner's syncs plus the mean over the Generators'. A
    stage may come in two pieces (the arrival before the call, and what the receiver does with it), which add up. The
    bandwidth is bytes over publish, transfer and load; verification is left out of it.
    """
    if ticket.num_bytes == 0:
        return {}
    metrics = {"sync/bytes": Metric(ticket.num_bytes), "sync/tensors": Metric(ticket.num_tensors)}
    for name, stage in SYNC_STAGES.items():
        by_sync: dict[tuple[str, int], int] = {}
        for span in spans:
            if span.stage is stage:
                key = span.lane, span.version
                by_sync[key] = by_sync.get(key, 0) + span.end_ns - span.start_ns
        by_kind: dict[str, list[int]] = {}
        for (lane, _), nanoseconds in by_sync.items():
            by_kind.setdefault(lane_kind(lane), []).append(nanoseconds)
        if by_kind:
            seconds = sum(sum(times) / len(times) for times in by_kind.values()) / 1e9
            metrics[f"sync/{name}_s"] = Metric(seconds, count=max(map(len, by_kind.values())))
    moving = [
        metrics[f"sync/{name}_s"].value for name in ("publish", "transfer", "load") if f"sync/{name}_s" in metrics
    ]
    if {"sync/publish_s", "sync/load_s"} <= metrics.keys() and sum(moving) > 0:
        metrics["sync/bandwidth_gb_s"] = Metric(ticket.num_bytes / sum(moving) / 1e9)
    return metrics


def idle_ratios(waits: Iterable[tuple[str, Interval]], lanes: Sequence[str], window: Interval) -> Metrics:
    """Return the share of the window that lanes of each kind waited, as a mean over the lanes of that kind.

    Args:
        waits: lane and (start, end) in nanoseconds; what lies outside of the window does not count.
        lanes: all lanes, those without a wait too.
        window: (start, end) in nanoseconds.
    """
    by_lane: dict[str, list[Interval]] = {lane: [] for lane in lanes}
    for lane, interval in waits:
        by_lane.setdefault(lane, []).append(interval)
    length = window[1] - window[0]
    if length <= 0:
        return {}
    idle = [{f"idle_ratio/{lane_kind(lane)}": Metric(total(clip(w, window)) / length)} for lane, w in by_lane.items()]
    return combine_metrics(list[Metrics](idle))
