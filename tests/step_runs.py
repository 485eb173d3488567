"""Runs whose step times are given one by one, for tests of what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.core.trace import Span, Stage
from harness.core.types import Metric
from harness.results import RunFolder, StepRow, TailRow, store_metrics
from harness.results.occupancy import Occupancy

Make = Callable[..., RunFolder]
START_NS = 2_000_000_000
"""Where the loop starts: ``make_run`` writes two seconds of start-up."""


def write_steps(
    make_run: Make,
    arm: str,
    update_s: Sequence[float],
    *,
    generate_s: float = 0.0,
    load_s: float = 0.0,
    evaluate_s: Mapping[int, float] | None = None,
    tokens: int = 100,
    **fields: Any,
) -> RunFolder:
    """Write a run in which Generator and Learner take turns.

    Args:
        update_s: of each training step.
        generate_s: of each, before the update; with a weight load of ``load_s`` in flight within it.
        evaluate_s: by step, after the update.
    """
    run = make_run(arm=arm, steps=0, status="running", **fields)
    now_ns = START_NS
    for step, seconds in enumerate(update_s):
        begun_ns, spans = now_ns, list[Span]()

        def add(lane: str, stage: Stage, length_s: float, step: int = step, spans: list[Span] = spans) -> None:
            nonlocal now_ns
            if length_s > 0:
                spans.append(Span(lane, stage, now_ns, now_ns + round(length_s * 1e9), step, step))
                now_ns += round(length_s * 1e9)

        if load_s > 0:
            load_ns = now_ns + round(generate_s * 1e9 / 4)
            spans.append(Span("generator", Stage.WEIGHT_LOAD, load_ns, load_ns + round(load_s * 1e9), step, step))
        add("generator", Stage.GENERATE, generate_s)
        add("learner", Stage.UPDATE, seconds)
        add("generator", Stage.EVALUATE, (evaluate_s or {}).get(step, 0.0))
        busy = [span for span in spans if span.stage in (Stage.GENERATE, Stage.EVALUATE)]
        spans += [span._replace(lane="learner", stage=Stage.WAIT_FOR_BATCH) for span in busy]
        run.append_spans(spans)
        run.append(
            StepRow(
                step=step,
                version=step + 1,
                wall_s=(now_ns - begun_ns) / 1e9,
                elapsed_s=(now_ns - START_NS) / 1e9,
                lanes=Occupancy.of(spans).seconds(spans),
                optimizer_steps=1,
                metrics=store_metrics({"response_tokens": Metric(tokens, "sum")}),
            )
        )
    run.append(TailRow(wall_s=0.0, elapsed_s=(now_ns - START_NS) / 1e9, lanes={}))
    run.finish("completed", None, {})
    return run
