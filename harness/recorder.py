"""Turns what a run does into rows on disk, one flush for each training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.intervals import total
from harness.loop import StepFacts
from harness.results import RunFolder, evaluation_row, lane_seconds, step_row, tail_row
from harness.trace import RecordingTracer, Span, Stage
from harness.types import Metric, Metrics, Purpose, ScoredBatch, combine_metrics

Row = dict[str, Any]


class RunRecorder:
    """The observer of one run: writes its spans, steps, evaluations, examples and log.

    A step's row holds the spans that ended since the previous row.

    Args:
        folder: where the rows go.
        tracer: whose spans are drained at each row.
        synchronous: whether evaluation and training take turns; only then is evaluation taken out of a step's seconds.
        on_row: called with each step or evaluation row and, for a step, its seconds without evaluation.

    Attributes:
        on_step_done: called last when a training step is complete: passes the turn to the next arm.
    """

    def __init__(
        self,
        folder: RunFolder,
        tracer: RecordingTracer,
        synchronous: bool = True,
        on_row: Callable[[Row, float], None] = lambda row, train_s: None,
    ) -> None:
        self.folder, self._tracer, self._synchronous = folder, tracer, synchronous
        self._on_row = on_row
        self.on_step_done: Callable[[int], None] = lambda step: None
        self._loop_start_ns = self._row_start_ns = 0
        self.steps_done = 0
        self.evaluations: list[tuple[int, Metrics]] = []

    def loop_starts(self, lanes: Iterable[str]) -> None:
        """Everything before now was start-up of these lanes."""
        now_ns = self._tracer.clock_ns()
        self.write_spans()
        self.folder.append_spans(Span(lane, Stage.STARTUP, 0, now_ns, -1, -1) for lane in lanes)
        self._loop_start_ns = self._row_start_ns = now_ns

    def on_version(self, lane: str, version: int) -> None:
        """See ``Observer``."""
        self.folder.log(f"{self._elapsed_s(self._tracer.clock_ns()):.6f} s: {lane} holds policy version {version}")

    def on_step(self, facts: StepFacts) -> None:
        """See ``Observer``."""
        spans, wall_s, elapsed_s = self._close_row()
        train_s = wall_s - evaluation_s(spans) if self._synchronous else wall_s
        row = step_row(
            step=facts.step,
            version=facts.result.version,
            wall_s=wall_s,
            elapsed_s=elapsed_s,
            optimizer_steps=facts.result.optimizer_steps,
            lanes=lane_seconds(spans),
            metrics=step_metrics(facts, train_s),
        )
        self.folder.append_step(row)
        self.folder.flush()
        self.steps_done += 1
        self._on_row(row, train_s)
        self.on_step_done(facts.step)

    def on_evaluation(self, version: int, scored: ScoredBatch) -> None:
        """See ``Observer``."""
        elapsed_s = self._elapsed_s(self._tracer.clock_ns())
        row = evaluation_row(version=version, step=version, elapsed_s=elapsed_s, metrics=scored.metrics)
        self.folder.append_step(row)
        self.folder.append_rollouts(Purpose.EVALUATE, scored.examples)
        self.folder.flush()
        self.evaluations.append((version, scored.metrics))
        self._on_row(row, 0.0)

    def loop_ends(self) -> None:
        """Write what ended after the last step, so that the totals of the run are conserved."""
        spans, wall_s, elapsed_s = self._close_row()
        self.folder.append_step(tail_row(wall_s=wall_s, elapsed_s=elapsed_s, lanes=lane_seconds(spans)))
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
        return figures

    def _elapsed_s(self, now_ns: int) -> float:
        return (now_ns - self._loop_start_ns) / 1e9

    def _close_row(self) -> tuple[list[Span], float, float]:
        """Write the spans ended since the last row; return them, the seconds since then and since the loop's start."""
        now_ns = self._tracer.clock_ns()
        spans = self.write_spans()
        wall_ns, self._row_start_ns = now_ns - self._row_start_ns, now_ns
        return spans, wall_ns / 1e9, self._elapsed_s(now_ns)


def evaluation_s(spans: list[Span]) -> float:
    """Return the seconds in which at least one lane evaluated."""
    return total((span.start_ns, span.end_ns) for span in spans if span.stage is Stage.EVALUATE) / 1e9


def step_metrics(facts: StepFacts, train_s: float) -> Metrics:
    """Return the metrics of a training step: rewards, update, lag and throughput.

    Args:
        facts: what the loop tells of the step.
        train_s: seconds of the step without evaluation.
    """
    metrics = combine_metrics([part.metrics for part in facts.scored]) | facts.result.metrics
    lags = [facts.step - group.min_version for group in facts.groups]
    metrics["off_policy/mean"] = Metric(sum(lags) / len(lags), count=len(lags))
    metrics["off_policy/max"] = Metric(max(lags), "max", len(lags))
    tokens = sum(length for group in facts.groups for length in group.lengths)
    metrics["response_tokens"] = Metric(tokens, "sum")
    if train_s > 0:
        metrics["perf/throughput_total"] = Metric(tokens / train_s)
    return metrics
