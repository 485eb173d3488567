"""A Learner that takes in the shards of a batch one by one: what it does when, and that nothing else changes."""

from itertools import product

import pytest

from harness.core.errors import RunStopped
from harness.settings.replay import DynamicSamplingSettings


def test_what_is_hidden_is_the_update_of_all_parts_but_the_last(simulate):
    """Two of the four prompts each: sampled in 4 and 8 s, scored in 1; an update of 4 takes 2 for each half.

    Published at 1. The first half is there at 6, trained on until 8; the other is there at 10, and the step ends at 12
    instead of 14. Published at 13: from there on the same again, since the Generator that was first takes shard 0.
    """
    settings = {"steps": 2, "max_lag": 0, "generate": (4.0, 8.0), "update": 4.0}
    for stream in ("in_order", "as_scored"):
        seen = simulate(stream=stream, **settings)
        assert seen.of("update") == [(6.0, 8.0, 0), (10.0, 12.0, 0), (18.0, 20.0, 1), (22.0, 24.0, 1)]
        waits = [wait[1:] for wait in seen.waits("learner")]
        assert waits == [(1.0, 6.0), (8.0, 10.0), (13.0, 18.0), (20.0, 22.0)]
        assert seen.seconds == 25.0
    assert simulate(**settings).of("update") == [(10.0, 14.0, 0), (24.0, 28.0, 1)]


def test_in_order_waits_for_the_first_shard_and_as_scored_does_not(simulate):
    """Shard 0, of the first batch, is there at 10 and shard 1 at 6."""
    settings = {"steps": 1, "max_lag": 0, "generate": (8.0, 4.0), "update": 4.0}
    assert simulate(stream="in_order", **settings).of("update") == [(10.0, 12.0, 0), (12.0, 14.0, 0)]
    assert simulate(stream="as_scored", **settings).of("update") == [(6.0, 8.0, 0), (10.0, 12.0, 0)]


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(
    ("stream", "lag_control", "max_lag"),
    list(product(("in_order", "as_scored"), ("wait", "in_flight"), (1, 2))),
)
def test_steps_events_and_counts_are_those_of_whole_batches(stream, lag_control, max_lag, overlapped, simulate):
    """The loop itself checks both lag bounds. Groups fail, and some are sampled again."""

    def run(**settings):
        return simulate(
            steps=5,
            max_lag=max_lag,
            lag_control=lag_control,
            generate=(3.0, 2.0, 5.0),
            update=2.0,
            publish=4.0,
            validation_prompts=(0, 1),
            evaluate_every=2,
            batch_prompts=lambda step: (0, 1, 2, 3, 4, 5),
            fails=lambda item, prompt_id: prompt_id == item.step,
            is_flat=lambda item, prompt_id: prompt_id == 5 and item.attempt == 0,
            dynamic_sampling=DynamicSamplingSettings(attempts=1),
            overlapped_publish=overlapped,
            **settings,
        )

    def trained_on(seen):
        return [[(group.prompt_id, group.step) for group in facts.groups] for facts in seen.story.facts]

    seen, whole = run(stream=stream), run()
    steps = [event for step in range(5) for event in (("version", step + 1), ("step", step))]
    assert seen.told("version", "step") == [("version", 0), *steps]
    assert seen.told("evaluation") == [("evaluation", version) for version in (0, 2, 4, 5)]
    assert (trained_on(seen), seen.ledger) == (trained_on(whole), whole.ledger)
    assert [version for _, _, version in seen.of("update")] == [
        version for version in range(5) for _ in range(3)
    ]  # shards
    assert seen.seconds <= whole.seconds


@pytest.mark.parametrize("stream", ["in_order", "as_scored"])
def test_a_shard_whose_groups_all_fail_is_passed_over(stream, simulate):
    """Generators take equally long. Step 0 lacks the first shard, step 1 the last one, whose optimizer step comes."""
    seen = simulate(
        stream=stream,
        max_lag=0,
        generate=(4.0, 4.0),
        update=4.0,
        fails=lambda item, prompt_id: item.shard == item.step and item.step < 2,
    )
    assert [[group.prompt_id for group in facts.groups] for facts in seen.story.facts] == [[2, 3], [0, 1], [0, 1, 2, 3]]
    assert [version for _, _, version in seen.of("update")] == [0, 1, 1, 2, 2]
    assert (seen.ledger.failed.rollouts, seen.ledger.trained.rollouts) == (8, 16)


def test_a_batch_without_any_scored_group_stops_the_run_or_is_passed_over(simulate, story):
    fails = {"stream": "as_scored", "generate": (4.0, 4.0), "fails": lambda item, prompt_id: item.step == 1}
    with pytest.raises(RunStopped, match="in a row: 1;"):
        simulate(story, **fails)
    assert len(story.facts) == 1
    seen = simulate(**fails, max_failed_batches=1)
    assert [len(facts.groups) for facts in seen.story.facts] == [4, 0, 4]
    assert [facts.weight_handle.version for facts in seen.story.facts] == [1, 2, 3]
