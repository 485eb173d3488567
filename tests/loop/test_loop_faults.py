"""Parts that die and groups that fail: what is repeated, what is lost (nothing) and what stops the run."""

import pytest

from harness.core.errors import PartReplaced, RunStopped
from harness.core.types import Metric, Purpose, WeightHandle, WorkItem
from harness.loop import Count
from harness.loop.state import LoopState
from harness.loop.state_files import decode, encode
from harness.results.step_metrics import step_metrics
from harness.settings.replay import DynamicSamplingSettings, ReplaySettings
from harness.simulate.parts import SimulatedGenerator


def dies_in(**seconds_by_call: float):
    """``call2=3``: the part dies 3 s into its second call."""
    return lambda call: seconds_by_call.get(f"call{call}")


def orders(seen) -> list[list[tuple[int, int, int]]]:
    """(batch, shard, seed) of the orders that each step trained on."""
    items = [[part.item for part in facts.scored] for facts in seen.story.facts]
    return [[(item.step, item.shard, item.seed) for item in batch] for batch in items]


# ---- a Generator dies


def test_a_generator_that_dies_while_it_generates_loads_again_and_repeats_the_order(simulate):
    settings = {"steps": 2, "max_lag": 0, "load": [0.5]}
    seen = simulate(**settings, generator_dies=[dies_in(call2=3)])  # calls: load, generate, ...
    assert seen.work == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "weight_load", 1, 1.5, 0),
        ("generator", "generate", 1.5, 4.5, 0),  # dies 3 s into it
        ("generator", "weight_load", 4.5, 5, 0),
        ("generator", "generate", 5, 13, 0),
        ("scorer", "score", 13, 14, 0),
        ("learner", "update", 14, 19, 0),
        ("learner", "weight_publish", 19, 20, 1),
        ("generator", "weight_load", 20, 20.5, 1),
        ("generator", "generate", 20.5, 28.5, 1),
        ("scorer", "score", 28.5, 29.5, 1),
        ("learner", "update", 29.5, 34.5, 1),
        ("learner", "weight_publish", 34.5, 35.5, 2),
    ]
    assert seen.story.events == [
        ("version", "learner", 0),
        ("version", "generator", 0),
        ("replaced", "generator", "generator died in call 2"),
        ("version", "generator", 0),
        ("version", "learner", 1),
        ("version", "generator", 1),
        ("step", 0),
        ("version", "learner", 2),
        ("step", 1),
    ]
    assert orders(seen) == orders(simulate(**settings))  # the same seeds
    assert seen.ledger.generated == seen.ledger.trained == Count(16, 128)  # nothing twice


def test_a_generator_that_dies_while_it_loads_loads_again(simulate):
    seen = simulate(steps=1, load=[4], generator_dies=[dies_in(call1=3, call2=1)])
    assert seen.work[:4] == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "weight_load", 1, 4, 0),
        ("generator", "weight_load", 4, 5, 0),
        ("generator", "weight_load", 5, 9, 0),
    ]
    assert [event[:2] for event in seen.story.events[:4]] == [
        ("version", "learner"),
        ("replaced", "generator"),
        ("replaced", "generator"),
        ("version", "generator"),
    ]


def test_a_generator_that_dies_in_an_evaluation_repeats_it_with_exactly_its_weights(simulate):
    # Lag 2 in flight: after batch 2 the Generator holds version 2 and is to evaluate version 1.
    seen = simulate(
        max_lag=2,
        lag_control="in_flight",
        update=3,
        generate=[lambda step: [1, 1, 20][step]],
        load=[0.25],
        validation_prompts=(7,),
        # load 0, evaluate 0, batches 0, 1, 2, load 1, load 2; then load 1 and evaluate it: call 9
        generator_dies=[dies_in(call9=1)],
    )
    rows = [row for row in seen.work if row[0] == "generator" and row[2] > 25]
    # Version 0 at 1.25 to 3.25, batches until 25.25; score 26.25, update 29.25, publish 30.25.
    assert rows == [
        ("generator", "weight_load", 30.25, 30.5, 1),
        ("generator", "evaluate", 30.5, 31.5, 1),  # dies 1 s into it
        ("generator", "weight_load", 31.5, 31.75, 1),
        ("generator", "evaluate", 31.75, 33.75, 1),
        ("generator", "weight_load", 33.75, 34, 2),
        ("generator", "evaluate", 34, 36, 2),
        ("generator", "weight_load", 36, 36.25, 3),
        ("generator", "evaluate", 36.25, 38.25, 3),
    ]
    assert [event for event in seen.story.events if event[0] == "evaluation"] == [
        ("evaluation", version, (7,)) for version in range(4)
    ]


def test_weights_under_evaluation_stay_readable_until_it_is_done(simulate):
    # Version 0 from 0.25 on; batches 0, 1, 2 from 2.25 to 5.25, scored at 4.25, 5.25, 6.25, each an update of 0.5 s and
    # a publish of 0.25 s: versions 1, 2, 3 come at 5, 6, 7. The evaluation of version 1 dies 1.875 s into it, at 7.125,
    # when it was neither the newest nor due any more at the last publish.
    seen = simulate(
        steps=4,
        max_lag=3,
        generate=[1],
        update=0.5,
        publish=0.25,
        validation_prompts=(7,),
        # calls: load 0, evaluate 0, batches 0, 1, 2, load 1, evaluate 1
        generator_dies=[dies_in(call7=1.875)],
    )
    assert [row[2:] for row in seen.work if row[:2] == ("generator", "evaluate")] == [
        (0.25, 2.25, 0),
        (5.25, 7.125, 1),
        (7.125, 9.125, 1),
        (9.125, 11.125, 2),
        (11.125, 13.125, 3),
        (15.875, 17.875, 4),  # batch 3 until 14.125, scored 15.125, update 15.625, publish 15.875
    ]


def test_weights_that_are_being_loaded_stay_readable_until_they_are(simulate):
    # Batches 0, 1 and 2 from 0.5 to 3.5, scored at 2, 3 and 4; an update of 1 s and a publish of 0.5 s each: versions
    # 1, 2 and 3 come at 3.5, 5 and 6.5. The load of version 1 dies at 9.5 and is repeated: at the publish of version 3
    # it was neither the newest nor due for an evaluation.
    seen = simulate(
        steps=4,
        max_lag=3,
        generate=[1],
        load=[lambda version: 10 if version else 0],
        score=[0.5],
        update=1,
        publish=0.5,
        generator_dies=[dies_in(call5=6)],  # calls: load 0, batches 0, 1, 2, load 1
    )
    loads = [row[2:] for row in seen.work if row[1] == "weight_load"]
    assert loads[:2] == [(3.5, 9.5, 1), (9.5, 19.5, 1)]


@pytest.mark.parametrize(("dying_call", "after_s"), [(3, 5.5), (4, 0.5)], ids=["batch dies", "load dies"])
def test_a_death_that_two_calls_hear_of_is_one_death(simulate, dying_call, after_s):
    # In flight. Calls: 1 loads version 0, 2 is batch 0, 3 batch 1 from 10.5 on, 4 loads version 1 from 15.5 on. The
    # part dies at 16, whichever of the two kills it.
    dies = [dies_in(**{f"call{dying_call}": after_s})]
    seen = simulate(steps=2, lag_control="in_flight", update=3, load=[1.5], generator_dies=dies)
    assert [row for row in seen.work if row[0] == "generator"] == [
        ("generator", "weight_load", 1, 2.5, 0),
        ("generator", "generate", 2.5, 10.5, 0),
        ("generator", "generate", 10.5, 16, 0),
        ("generator", "weight_load", 15.5, 16, 1),  # published at 15.5: score 11.5, update 14.5
        ("generator", "weight_load", 16, 17.5, 1),
        ("generator", "generate", 17.5, 25.5, 1),
    ]
    assert [event[0] for event in seen.story.events].count("replaced") == 1
    assert seen.ledger.generated == seen.ledger.trained == Count(16, 128)


def test_a_death_heard_of_after_a_newer_one_takes_no_weights_away(simulate, monkeypatch):
    generate, load_weights, heard = SimulatedGenerator.generate, SimulatedGenerator.load_weights, []

    async def told_late(generator: SimulatedGenerator, item: WorkItem):
        """The first call for batch 1 tells at its end of a first death; the load has told of a second one by then."""
        groups = await generate(generator, item)
        if item.step == 1 and 1 not in heard:
            heard.append(1)
            raise PartReplaced("generator died", 1)
        return groups

    async def told_at_once(generator: SimulatedGenerator, handle: WeightHandle):
        if handle.version == 1 and 2 not in heard:
            heard.append(2)
            raise PartReplaced("generator died again", 2)
        return await load_weights(generator, handle)

    monkeypatch.setattr(SimulatedGenerator, "generate", told_late)
    monkeypatch.setattr(SimulatedGenerator, "load_weights", told_at_once)
    # Batch 1 from 9.5 on; version 1 comes at 14.5 (score 10.5, update 13.5) and is loaded until 15, once.
    seen = simulate(steps=2, lag_control="in_flight", update=3, load=[0.5])
    assert heard == [2, 1]
    assert [row[2:] for row in seen.work if row[1] == "weight_load"] == [(1, 1.5, 0), (14.5, 15, 1)]
    assert [event[2] for event in seen.story.events if event[0] == "replaced"] == [
        "generator died again",
        "generator died",
    ]


def test_under_drop_the_repeated_order_takes_the_newest_weights(simulate):
    # Calls: 1 loads version 0, 2 to 6 are batches 0 to 4, 7 loads version 1 at 14, 8 is batch 5, 9 batch 6 from 23 on,
    # with version 1; it dies at 24.5, when version 2 is there.
    seen = simulate(lag_control="drop", generate=[2], update=9, generator_dies=[dies_in(call9=1.5)])
    assert [row for row in seen.work if row[1] == "generate" and row[2] >= 14] == [
        ("generator", "generate", 14, 16, 1),
        ("generator", "generate", 23, 24.5, 1),
        ("generator", "generate", 24.5, 26.5, 2),
        ("generator", "generate", 26.5, 28.5, 2),
        ("generator", "generate", 28.5, 30.5, 2),
        ("generator", "generate", 30.5, 32.5, 2),
    ]
    assert seen.trained == [[0] * 4, [1] * 4, [5] * 4]  # as without the death
    assert seen.ledger.dropped == Count(24, 192)  # batches 2, 3 and 4; the repeated 6 is of version 2 now
    assert seen.ledger.unused == Count(32, 256)  # 6, 7, 8 and 9


def test_another_generator_goes_on_while_one_is_dead(simulate):
    seen = simulate(steps=1, max_lag=0, generate=[2, 2], load=[5, 1], generator_dies=[dies_in(call2=1)])
    assert [row for row in seen.work if row[1] == "generate"] == [
        ("generator1", "generate", 2, 4, 0),
        ("generator0", "generate", 6, 7, 0),  # dies 1 s into it; loads from 7 to 12
        ("generator0", "generate", 12, 14, 0),
    ]
    assert [group.prompt_id for group in seen.story.facts[0].groups] == [0, 1, 2, 3]


# ---- a Scorer dies


def test_a_scorer_that_dies_scores_again(simulate):
    seen = simulate(steps=1, max_lag=0, scorer_dies=[dies_in(call1=0.5)], validation_prompts=(7,))
    assert [row for row in seen.work if row[0] == "scorer"] == [
        ("scorer", "evaluate", 3, 3.5, 0),  # dies halfway
        ("scorer", "evaluate", 3.5, 4.5, 0),
        ("scorer", "score", 12.5, 13.5, 0),  # at lag 0 generating waits for the evaluation: 4.5 + 8
        ("scorer", "evaluate", 21.5, 22.5, 1),  # update 18.5, publish 19.5, evaluate 21.5
    ]
    assert ("replaced", "scorer", "scorer died in call 1") in seen.story.events
    assert [event for event in seen.story.events if event[0] == "evaluation"] == [
        ("evaluation", 0, (7,)),
        ("evaluation", 1, (7,)),
    ]
    assert seen.ledger.trained == Count(8, 64)


# ---- groups fail


@pytest.mark.parametrize("lag_control", ["wait", "drop", "in_flight"])
@pytest.mark.parametrize("generators", [1, 2, 4])
def test_one_failing_group_costs_that_group_only(simulate, lag_control, generators):
    def fails(item: WorkItem, prompt_id: int) -> bool:
        return item.purpose is Purpose.TRAIN and (item.step, prompt_id) == (1, 2)

    # Four Generators have one prompt each: then a whole shard fails. Batches 0 and 1 are of version 0; version 1 comes
    # at 15 at the latest (score 10, update 14), before batch 2 starts at 17: nothing is dropped.
    seen = simulate(lag_control=lag_control, generate=[8] * generators, score=[0.25], update=4, fails=fails)
    assert [sorted((group.step, group.prompt_id) for group in facts.groups) for facts in seen.story.facts] == [
        [(0, 0), (0, 1), (0, 2), (0, 3)],
        [(1, 0), (1, 1), (1, 3)],
        [(2, 0), (2, 1), (2, 2), (2, 3)],
    ]
    assert sum(part.failed_groups for part in seen.story.facts[1].scored) == 1
    assert seen.ledger.failed == Count(2, 16)
    assert seen.ledger.trained == Count(22, 176)  # 24 rollouts less 2


def test_failed_groups_take_no_room_under_drop(simulate):
    # Room is for 2 * (1 + 1) batches of 4 groups: 16 groups. One of each of the 20 batches fails.
    seen = simulate(steps=20, lag_control="drop", fails=lambda item, prompt_id: prompt_id == 0)
    assert seen.ledger.trained == Count(20 * 3 * 2, 20 * 3 * 2 * 8)


@pytest.mark.parametrize("lag_control", ["wait", "drop", "in_flight"])
@pytest.mark.parametrize("generators", [1, 2])
def test_a_batch_without_any_group_stops_the_run_and_says_why(simulate, story, lag_control, generators):
    def fails(item: WorkItem, prompt_id: int) -> bool:
        return item.step == 1

    with pytest.raises(RunStopped) as caught:
        simulate(story, lag_control=lag_control, generate=[8, 8.5][:generators], fails=fails)
    assert str(caught.value) == (
        "no group of a rollout batch could be scored; the first failure: the reward of prompt 0 failed (batches in a "
        "row: 1; the run goes on over at most max_failed_batches of them, 0)"
    )
    assert [facts.step for facts in story.facts] == [0]
    assert story.ledger is None  # the run did not finish


@pytest.mark.parametrize(
    ("lag_control", "max_lag", "generators"),
    [("wait", 0, 1), ("wait", 0, 2), ("wait", 1, 2), ("in_flight", 1, 1), ("in_flight", 1, 2), ("drop", 1, 1)],
)
@pytest.mark.parametrize("again", [0, 1])
def test_so_many_batches_in_a_row_may_fail(simulate, lag_control, max_lag, generators, again):
    """Their steps train on nothing and publish the same policy; after a good batch they are counted from 0 again."""
    dead = {1, 2, 4}
    seen = simulate(
        steps=6,
        max_lag=max_lag,
        generate=[8, 8.5][:generators],
        fails=lambda item, prompt_id: item.step in dead,
        is_flat=lambda item, prompt_id: False,
        dynamic_sampling=DynamicSamplingSettings(attempts=again),
        max_failed_batches=2,
        lag_control=lag_control,
    )
    trained = [sorted((group.step, group.prompt_id) for group in facts.groups) for facts in seen.story.facts]
    assert [len(groups) for groups in trained] == [0 if step in dead else 4 for step in range(6)]
    assert [facts.weight_handle.version for facts in seen.story.facts] == [1, 2, 3, 4, 5, 6]
    assert (seen.ledger.trained.rollouts, seen.ledger.failed.rollouts) == (24, 24)
    for facts in seen.story.facts:
        metrics = step_metrics(facts, 1.0)
        assert metrics.get("score/failed_batches") == (Metric(1, "sum") if facts.step in dead else None)
        assert ("off_policy/mean" in metrics) == (facts.step not in dead)


def test_one_batch_more_than_may_fail_ends_the_run(simulate, story):
    with pytest.raises(RunStopped, match=r"batches in a row: 3; .* max_failed_batches of them, 2\)"):
        simulate(story, steps=9, fails=lambda item, prompt_id: item.step in (1, 2, 4, 5, 6), max_failed_batches=2)
    assert [facts.step for facts in story.facts] == [0, 1, 2, 3, 4, 5]


def test_where_a_batch_fails_the_replay_buffer_goes_on(simulate):
    replay = ReplaySettings(capacity=8, max_age=9, sampling="newest", sample_groups=4)
    seen = simulate(
        steps=4, max_lag=0, replay=replay, fails=lambda item, prompt_id: item.step in (0, 2), max_failed_batches=1
    )
    assert [[group.step for group in facts.groups] for facts in seen.story.facts] == [[], [1] * 4, [1] * 4, [3] * 4]
    assert seen.ledger.trained_again == Count(8, 64)


def test_a_run_that_goes_on_knows_how_many_batches_failed_last():
    state = LoopState(seed=0, shards=1, group_size=2, lag_control="wait", version=3, evaluated=0, failed_batches=2)
    assert decode(*encode(state), LoopState) == state


def test_failing_validation_groups_are_told_and_stop_nothing(simulate):
    seen = simulate(
        steps=1, max_lag=0, validation_prompts=(7,), fails=lambda item, prompt_id: item.purpose is Purpose.EVALUATE
    )
    assert [event for event in seen.story.events if event[0] == "evaluation"] == [
        ("evaluation", 0, (7,)),
        ("evaluation", 1, (7,)),
    ]
    assert seen.ledger.failed == Count()  # of what was generated for training
