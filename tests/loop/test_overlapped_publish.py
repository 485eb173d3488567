"""A Learner that publishes while it trains: the same order of events, whatever the loop does with lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

import pytest

from harness.core.errors import RunStopped
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import WeightHandle
from harness.loop import LagControl, LoopPlan, run_loop
from harness.settings.replay import ReplaySettings
from harness.simulate.clock import run_virtual
from harness.simulate.parts import SimulatedLearner
from tests.loop.conftest import Seen
from tests.stand_ins.simulated_parts import constant, simulated_generator, simulated_learner, simulated_scorer

REPLAY = ReplaySettings(capacity=8, max_age=4, sampling="newest", sample_groups=4)


@pytest.mark.parametrize(
    ("lag_control", "max_lag", "replay"),
    list(product(("wait", "drop", "in_flight"), (1, 2), (ReplaySettings(), REPLAY))),
)
def test_versions_and_steps_come_in_order(
    lag_control: LagControl, max_lag: int, replay: ReplaySettings, simulate: Callable[..., Seen]
) -> None:
    """The loop itself checks both lag bounds, and the simulated Learner that no version in use is given up."""
    seen = simulate(
        steps=6,
        max_lag=max_lag,
        lag_control=lag_control,
        replay=replay,
        generate=(3.0, 2.0),
        update=2.0,
        publish=5.0,
        validation_prompts=(0, 1),
        evaluate_every=2,
        overlapped_publish=True,
    )
    published = [event for event in seen.story.events if event[:2] == ("version", "learner") or event[0] == "step"]
    expected: list[tuple[object, ...]] = [("version", "learner", 0)]
    for step in range(6):
        expected += [("version", "learner", step + 1), ("step", step)]
    assert published == expected
    assert [facts.weight_handle.version for facts in seen.story.facts] == [1, 2, 3, 4, 5, 6]
    assert [event[1] for event in seen.story.events if event[0] == "evaluation"] == [0, 2, 4, 6]
    counts = seen.ledger
    assert counts.generated == counts.dropped + counts.trained + counts.unused
    copies = {row[4]: row[3] for row in seen.work if row[:2] == ("publisher", Stage.WEIGHT_PUBLISH)}
    for lane, stage, _, end, version in seen.work:
        if (lane, stage) == ("learner", Stage.UPDATE):
            waits = [
                until for wait, since, until in seen.waits("learner") if (wait, since) == ("wait_for_weights", end)
            ]
            assert max([end, *waits]) >= copies[version]  # the optimizer step


def test_a_publish_that_fails_ends_the_run_at_once() -> None:
    class Failing(SimulatedLearner):
        async def publish_weights(self, version: int, still_needed: frozenset[int]) -> WeightHandle:
            if version == 1:
                await asyncio.sleep(0.5)
                raise RunStopped("the disk is full")
            return await super().publish_weights(version, still_needed)

    ended: list[float] = []

    async def main(tracer: RecordingTracer) -> None:
        parts = [simulated_generator(tracer, constant(1.0))], [simulated_scorer(tracer, constant(1.0))]
        learner = simulated_learner(tracer, constant(4.0), constant(1.0), of=Failing, overlapped=True)
        plan = LoopPlan(3, 2, 2, 1, lambda step: (0,), (), overlapped_publish=True)
        try:
            await run_loop(*parts, learner, plan, tracer)
        finally:
            ended.append(asyncio.get_running_loop().time())

    with pytest.raises(RunStopped, match="the disk is full"):
        run_virtual(main)
    # published 1, generated 2, scored 3, trained 7; then 0.5 s into the publish, while the next update goes on
    assert ended == [7.5]
