"""What checkpoints cost, by hand."""

from __future__ import annotations

import pytest

from harness.compare.checkpoints import checkpoint_cost
from harness.core.trace import Span, Stage
from tests.stand_ins.members import made_run


def test_writing_that_slows_updates_beside_it_is_a_part_of_the_cost() -> None:
    """Steps of 2 s, of which every second one takes 2.4 s beside the writing of a checkpoint that blocks for 0.1 s."""

    def span(lane: str, stage: Stage, start_s: float, end_s: float, step: int) -> Span:
        return Span(lane, stage, round(start_s * 1e9), round(end_s * 1e9), step, step)

    spans, at = list[Span](), 0.0
    for step in range(8):
        is_written, last_s = step % 2 == 1, 2.4 if step % 2 else 2.0
        spans.append(span("learner", Stage.UPDATE, at, at + last_s, step))
        if is_written:
            spans.append(span("writer", Stage.CHECKPOINT_WRITE, at, at + last_s, step))
        at += last_s
        if not is_written:
            spans.append(span("learner", Stage.CHECKPOINT, at, at + 0.1, step + 1))
            at += 0.1
    run = made_run(settings={"checkpoint": {"every": 2}}).run
    cost = checkpoint_cost(run, spans, range(8), at / 8)
    assert cost is not None
    assert (cost.blocked_s, cost.exposed_s, cost.slowed_s, cost.cost_s) == pytest.approx((0.1, 0.1, 0.4, 0.5))
    assert cost.step_s == pytest.approx(2.0)  # 2.25 s on average, less 4 x 0.1 of 8 steps and 0.4 of every second
