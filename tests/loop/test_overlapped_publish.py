"""A Learner that publishes while it trains: the same order of events, whatever the loop does with lag."""

import asyncio
from itertools import product

import pytest

from harness.core.errors import RunStopped
from harness.settings.replay import ReplaySettings
from harness.simulate.parts import SimulatedLearner

REPLAY = ReplaySettings(capacity=8, max_age=4, sampling="newest", sample_groups=4)


@pytest.mark.parametrize(
    ("lag_control", "max_lag", "replay"),
    list(product(("wait", "drop", "in_flight"), (1, 2), (ReplaySettings(), REPLAY))),
)
def test_versions_and_steps_come_in_order(lag_control, max_lag, replay, simulate):
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
    steps = [event for step in range(6) for event in (("version", step + 1), ("step", step))]
    assert seen.told("version", "step") == [("version", 0), *steps]
    assert [facts.weight_handle.version for facts in seen.story.facts] == [1, 2, 3, 4, 5, 6]
    assert seen.told("evaluation") == [("evaluation", version) for version in (0, 2, 4, 6)]
    counts = seen.ledger
    assert counts.generated == counts.dropped + counts.trained + counts.unused
    copied = {version: end for _, end, version in seen.of("weight_publish", "publisher")}
    waited = {since: until for wait, since, until in seen.waits("learner") if wait == "wait_for_weights"}
    for _, end, version in seen.of("update"):
        assert waited.get(end, end) >= copied[version]  # the optimizer step


def test_a_publish_that_fails_ends_the_run_at_once(simulate):
    ended: list[float] = []

    class Failing(SimulatedLearner):
        async def publish_weights(self, version, still_needed):
            if version == 1:
                await asyncio.sleep(0.5)
                ended.append(asyncio.get_running_loop().time())
                raise RunStopped("the disk is full")
            return await super().publish_weights(version, still_needed)

        async def update(self, step, groups):
            try:
                return await super().update(step, groups)
            except asyncio.CancelledError:
                ended.append(asyncio.get_running_loop().time())
                raise

    with pytest.raises(RunStopped, match="the disk is full"):
        simulate(generate=[1], update=4, max_lag=2, overlapped_publish=True, learner_of=Failing)
    # published 1, generated 2, scored 3, trained 7; then 0.5 s into the publish, while the next update goes on
    assert ended == [7.5, 7.5]
