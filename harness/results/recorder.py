"""Turns what a run does into rows on disk, one flush for each training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from harness.core.trace import RecordingTracer, Span, Stage
from harness.core.types import Metric, Metrics, Purpose, ScoredBatch, combine_metrics
from harness.loop import Observer, RolloutCounts, StepReport
from harness.loop.replay import ReplayStats
from harness.models.flops import Utilisation
from harness.results import RunFolder, VersionChange
from harness.results.counters import HELD, SAMPLER, CounterRow
from harness.results.occupancy import Occupancy, part_spans
from harness.results.rows import (
    COUNTERS,
    WARMUP_FLOOR,
    BatchRow,
    DiscardedRow,
    EvaluationRow,
    RolloutRow,
    ShardRow,
    StepRow,
    StepSeconds,
    TailRow,
    optimizer_step_columns,
    part_of,
    store_metrics,
    sum_stages,
)
from harness.results.segments import Recorded, sizes_of
from harness.results.step_metrics import idle_ratios, replay_metrics, step_metrics, sync_metrics, trained_lags
from harness.results.training_log import evaluation_line, rollout_lines, step_line

RowListener = Callable[[StepRow | EvaluationRow], None]
StepListener = Callable[[int], None]
NO_VERSION = -1
LEDGER_COLUMNS = ("generated", "failed", "discarded", "dropped", "trained", "trained_again", "unused")


class ProbeReport(NamedTuple):
    """What the probes beside a run have to say since the last report.

    Attributes:
        notes: what went wrong, in words.
        metrics: the probes' own figures.
    """

    counters: Sequence[CounterRow]
    notes: Sequence[str]
    metrics: Metrics


class RunRecorder(Observer):
    """The observer of one run: writes its spans, steps, evaluations, examples and log.

    A step's row holds the spans that ended since the previous row, each with the instants that are its own
    (``harness.results.occupancy``).

    Args:
        tracer: whose spans are drained at each row.
        profiled: training steps in which a profiler runs.
        probes: asks those beside the run.
        utilisation: of the Learner's GPU.
        row_listeners: called in order with each step or evaluation row that is on disk.
        step_listeners: called in order with the number of each complete training step, after everything else: they may
            pass the turn to another arm.

    Attributes:
        generated: rollouts sampled for training when the loop was broken off.
    """

    def __init__(
        self,
        folder: RunFolder,
        tracer: RecordingTracer,
        *,
        profiled: frozenset[int] = frozenset(),
        probes: Callable[[], ProbeReport] | None = None,
        utilisation: Utilisation | None = None,
        row_listeners: Sequence[RowListener] = (),
        step_listeners: Sequence[StepListener] = (),
    ) -> None:
        self.folder, self._tracer, self._profiled = folder, tracer, profiled
        self._probes, self._utilisation = probes, utilisation or Utilisation()
        self._row_listeners, self._step_listeners = tuple(row_listeners), tuple(step_listeners)
        self._state = Recorded(
            clock_ns=0, loop_start_ns=0, row_start_ns=0, seconds=[], evaluations=[], syncs={}, measured={},
            replay=ReplayStats(), replaced={}, spans=(), sizes={},
        )  # fmt: skip
        self._lanes: tuple[str, ...] = ()
        self._earlier: list[Span] = []  # of previous rows, within which spans of a later row may lie
        self._versions: dict[str, int] = {}
        self._version_changes: list[VersionChange] = []
        self._ledger: RolloutCounts | None = None
        self._first_step = self.generated = 0

    @property
    def steps_done(self) -> int:
        """Training steps of the run so far."""
        return len(self._state.seconds)

    def loop_starts(self, lanes: Iterable[str]) -> None:
        """Everything before now was start-up of these lanes."""
        now_ns, self._lanes = self._tracer.clock_ns(), tuple(lanes)
        self.write_spans()
        self.folder.append_spans(Span(lane, Stage.STARTUP, 0, now_ns, -1, -1) for lane in self._lanes)
        self._state.loop_start_ns = self._state.row_start_ns = now_ns

    def goes_on(self, lanes: Iterable[str], recorded: Recorded) -> None:
        """Go on from a checkpoint. The run's clock was set to that moment, and its rows were cut back to it.

        What these lanes did to start is in no figure.
        """
        self._lanes, self._state = tuple(lanes), recorded.copy()
        self._tracer.drain()
        self._tracer.finished.extend(recorded.spans)
        self._first_step = self.steps_done
        if COUNTERS in recorded.sizes:  # what the machine counted meanwhile is not the run's
            self.folder.append(CounterRow(recorded.clock_ns, SAMPLER, {HELD: 1}))

    def recorded(self) -> Recorded:
        """Return what ``goes_on`` needs, with all rows on disk."""
        self.folder.flush()
        return self._state.copy(
            clock_ns=self._tracer.clock_ns(),
            spans=tuple(self._tracer.finished),
            sizes=sizes_of(self.folder.folder),
            inputs={} if self.folder.manifest is None else self.folder.manifest.inputs,
        )

    def on_version(self, lane: str, version: int) -> None:
        self._log(f"{lane} holds policy version {version}")
        self._hold(lane, version)

    def on_sync(self, lane: str, version: int, measured: Metrics) -> None:
        figures = ", ".join(f"{name} {metric.value:.3g}" for name, metric in measured.items())
        self._log(f"{lane}, policy version {version}: {figures}")
        self._state.measured = combine_metrics([self._state.measured, measured])
        self._state.syncs = combine_metrics([self._state.syncs, measured])

    def on_replaced(self, lane: str, reason: str) -> None:
        self._log(f"{lane} died ({reason}); a new one takes its place")
        self._state.replaced[lane] = self._state.replaced.get(lane, 0) + 1
        if lane in self._versions:
            self._hold(lane, NO_VERSION)
        self.folder.flush()

    def on_step(self, facts: StepReport) -> None:
        for part in facts.scored:
            self._log_failure(part)
        window = self._state.row_start_ns, self._tracer.clock_ns()
        spans, row_facts = self._close_row(window[1])
        wall_s, as_parts = row_facts["wall_s"], part_spans(spans)
        metrics = step_metrics(facts, wall_s) | sync_metrics(facts.weight_handle, as_parts)
        if facts.replay is not None:
            metrics |= replay_metrics(facts, facts.replay, self._state.replay)
            self._state.replay = facts.replay[0]
        if window[1] > window[0]:  # of the spans that ended in this row and those that go on
            table = Occupancy.of([*spans, *self._under_way(window[1])], [window])
            metrics |= idle_ratios(self._lanes, table.accounts())
        metrics |= self._utilisation.metrics(facts.step, facts.groups, as_parts)
        metrics |= self.drain_probes() | self._state.measured
        self._state.measured = {}
        profiled = facts.step in self._profiled
        warmup = facts.step - self._first_step < WARMUP_FLOOR
        cold = warmup and self._first_step > 0  # after a resume
        evaluated = any(it.stage is Stage.EVALUATE for seen in (spans, self._tracer.still_open()) for it in seen)
        self._state.seconds.append(StepSeconds(facts.step, wall_s, not (profiled or cold or evaluated)))
        row = StepRow(
            step=facts.step,
            version=facts.result.version,
            optimizer_steps=facts.result.optimizer_steps,
            metrics=store_metrics(metrics),
            versions={lane: version for lane, version in self._versions.items() if version != NO_VERSION},
            lags=dict(sorted(trained_lags(facts).items())),
            warmup=warmup,
            profiled=profiled,
            optimizer_step_metrics=optimizer_step_columns(facts.result.optimizer_step_metrics),
            ranks=tuple(facts.result.ranks),
            **row_facts,
        )
        self.folder.append(row, *map(ShardRow.of, facts.scored))
        self.folder.append(*(DiscardedRow.of(part) for part in facts.scored if part.discarded))
        if facts.replay is not None:
            self.folder.append(BatchRow(facts.step, tuple((group.step, group.prompt_id) for group in facts.groups)))
        examples = facts.result.examples
        self.folder.append(*(RolloutRow.of(rollout, Purpose.TRAIN, facts.step) for rollout in examples))
        for line in (step_line(facts.step, metrics, wall_s), *rollout_lines(facts.step, examples)):
            self._log(line)
        self._tell(row)
        self._idle_since(window[1], facts.step)
        for listener in self._step_listeners:
            listener(facts.step)

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        elapsed_s = self._elapsed_s(self._tracer.clock_ns())
        self._log_failure(scored)
        failed = {"validation/failed_groups": Metric(scored.failed_groups, "sum")} if scored.failed_groups else {}
        metrics = scored.metrics | failed
        row = EvaluationRow(version, version, elapsed_s, store_metrics(metrics))
        self.folder.append(row, ShardRow.of(scored))
        self.folder.append(*(RolloutRow.of(rollout, Purpose.EVALUATE) for rollout in scored.examples))
        self._log(evaluation_line(version, metrics))
        self._state.evaluations.append((version, scored.metrics))
        self._tell(row)

    def drain_probes(self) -> Metrics:
        """Write the counters that have come in; return what the probes cost, and what GPUs took for stages."""
        if self._probes is None:
            return {}
        report = self._probes()
        self.folder.append(*report.counters)
        for note in report.notes:
            self.folder.log(note)
        return report.metrics

    def _tell(self, row: StepRow | EvaluationRow) -> None:
        self.folder.flush()
        for listener in self._row_listeners:
            listener(row)

    def _log_failure(self, scored: ScoredBatch) -> None:
        if scored.failure is not None:
            what = f"{scored.item.purpose} batch {scored.item.step}, shard {scored.item.shard}"
            self.folder.log(f"{what}: {scored.failed_groups} groups without a reward; the first: {scored.failure}")

    def on_finished(self, ledger: RolloutCounts) -> None:
        self._ledger = ledger

    def on_broken_off(self, ledger: RolloutCounts) -> None:
        self.generated = ledger.generated.rollouts

    def loop_ends(self) -> None:
        """Write what ended after the last step, so that the totals of the run are conserved."""
        self.folder.append(TailRow(**self._close_row(self._tracer.clock_ns())[1]))
        self.drain_probes()
        self.folder.flush()

    def write_spans(self) -> list[Span]:
        """Write the spans that have ended since the last call, and return them."""
        spans = self._tracer.drain()
        self.folder.append_spans(spans)
        return spans

    def outcome(self) -> dict[str, Any]:
        """Return the figures that sum up the run."""
        from harness.results.warmup import warm_up_of  # which loads numpy

        state, figures = self._state, dict[str, Any]()
        figures |= {"steps_done": self.steps_done, "elapsed_s": self._elapsed_s(state.row_start_ns)}
        for name, evaluations in (("first", state.evaluations[:1]), ("last", state.evaluations[-1:])):
            for version, metrics in evaluations:
                values = {key: metric.value for key, metric in metrics.items()}
                figures[f"{name}_evaluation"] = {"version": version} | values
        figures["warmup"] = asdict(warm_up_of(state.seconds))
        if state.syncs:
            figures["syncs"] = {name: metric.value for name, metric in state.syncs.items()}
        if self._ledger is not None:
            figures["ledger"] = {column: asdict(getattr(self._ledger, column)) for column in LEDGER_COLUMNS}
        return figures | {"replaced": dict(state.replaced)}

    def _elapsed_s(self, now_ns: int) -> float:
        return (now_ns - self._state.loop_start_ns) / 1e9

    def _log(self, event: str) -> None:
        self.folder.log(f"{self._elapsed_s(self._tracer.clock_ns()):.6f} s: {event}")

    def _hold(self, lane: str, version: int) -> None:
        self._versions[lane] = version
        elapsed_s = self._elapsed_s(self._tracer.clock_ns())
        self._version_changes.append(VersionChange(elapsed_s, lane, version))

    def _close_row(self, now_ns: int) -> tuple[list[Span], dict[str, Any]]:
        """Write the spans that ended since the last row; return them, and what the new one says of that time.

        Seconds are the ended spans' own: not those of spans within them that are open or of earlier rows.
        """
        ended = self.write_spans()
        beside = [*self._earlier, *self._under_way(now_ns, elsewhere=False)]
        lanes = parts = Occupancy.of([*ended, *beside]).seconds(ended)
        if any(part_of(lane) != lane for lane in lanes):
            of_parts = part_spans(ended, beside)
            parts = Occupancy.of([*of_parts, *beside]).seconds(of_parts)
        began: dict[str, int] = {}
        for span in self._tracer.still_open():
            began[span.lane] = min(span.start_ns, began.get(span.lane, span.start_ns))
        self._earlier = [it for it in (*self._earlier, *ended) if it.lane in began and it.end_ns > began[it.lane]]
        wall_ns, self._state.row_start_ns = now_ns - self._state.row_start_ns, now_ns
        changes, self._version_changes = tuple(self._version_changes), []
        times = {"wall_s": wall_ns / 1e9, "elapsed_s": self._elapsed_s(now_ns)}
        return ended, times | {"lanes": lanes, "stages_s": sum_stages(parts), "version_changes": changes}

    def _idle_since(self, start_ns: int, step: int) -> None:
        """Count the time since then as a wait for us, on the lanes that do nothing else."""
        now_ns = self._tracer.clock_ns()
        occupied = {span.lane for span in self._tracer.still_open()}
        if now_ns > start_ns:
            for lane in self._lanes:
                if lane not in occupied:
                    version = self._versions.get(part_of(lane), NO_VERSION)
                    span = Span(lane, Stage.WAIT_FOR_RECORDER, start_ns, now_ns, step, version)
                    self._tracer.finished.append(span)

    def _under_way(self, now_ns: int, elsewhere: bool = True) -> list[Span]:
        """Return the open spans as if they ended now."""
        return [
            Span(it.lane, it.stage, it.start_ns, max(now_ns, it.start_ns), it.step, it.version)
            for it in self._tracer.still_open(elsewhere)
        ]
