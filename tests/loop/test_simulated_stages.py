"""The simulated parts keep the times, versions and books that the tests of the loop rely on."""

import asyncio

import pytest

from harness.core.errors import PartReplaced
from harness.core.types import Purpose, RolloutGroup, WeightHandle, WorkItem
from harness.simulate.clock import run_virtual
from tests.stand_ins.simulated_parts import (
    MortalGenerator,
    MortalScorer,
    constant,
    equal_lengths,
    simulated_generator,
    simulated_learner,
    simulated_scorer,
    varying_lengths,
)

ITEM = WorkItem(Purpose.TRAIN, step=3, shard=0, prompt_ids=(4, 5), group_size=2, seed=11)


def weight_handle(version: int) -> WeightHandle:
    return WeightHandle(version, num_bytes=0, num_tensors=1)


def elapsed() -> float:
    return asyncio.get_running_loop().time()


def test_groups_tell_the_version_and_the_lengths_of_their_responses():
    async def main(tracer):
        generator = simulated_generator(tracer, constant(8), lengths=lambda item, prompt: (prompt, item.step))
        await generator.load_weights(weight_handle(2))
        return await generator.generate(ITEM)

    groups, _ = run_virtual(main)
    assert groups == (RolloutGroup(4, 3, 2, 2, (4, 3)), RolloutGroup(5, 3, 2, 2, (5, 3)))
    assert [group.token_version for group in groups] == [2, 2]


def test_lengths_vary_by_prompt_and_seed_within_their_bounds():
    lengths = varying_lengths(2, 4)
    drawn = {
        (seed, prompt): lengths(WorkItem(Purpose.TRAIN, 0, 0, (), 50, seed), prompt)
        for seed in (1, 2)
        for prompt in (3, 4)
    }
    assert {length for row in drawn.values() for length in row} == {2, 3, 4}
    assert len(set(drawn.values())) == 4
    assert drawn[1, 3] == lengths(WorkItem(Purpose.TRAIN, 9, 1, (), 50, 1), 3)
    assert equal_lengths(6)(ITEM, 4) == (6, 6)


def test_weights_loaded_on_the_way_count_by_their_share_of_the_time():
    async def main(tracer):
        generator = simulated_generator(tracer, constant(10), transfer_cost=constant(1), load_cost=constant(1))
        await generator.load_weights(weight_handle(4))
        work = asyncio.ensure_future(generator.generate(ITEM))
        await asyncio.sleep(3)
        await generator.load_weights(weight_handle(5))  # in use from 5 s on
        await asyncio.sleep(1)
        await generator.load_weights(weight_handle(7))  # from 8 s on
        return await work

    group = run_virtual(main)[0][0]
    # 5 s of version 4, 3 s of 5, 2 s of 7: (20 + 15 + 14) / 10
    assert (group.min_version, group.max_version, group.mean_version) == (4, 7, 4.9)


def test_the_next_order_begins_with_what_was_loaded_last():
    async def main(tracer):
        generator = simulated_generator(tracer, constant(10))
        await generator.load_weights(weight_handle(4))
        await generator.load_weights(weight_handle(5))
        return await generator.generate(ITEM)

    group = run_virtual(main)[0][0]
    assert (group.min_version, group.max_version, group.mean_version) == (5, 5, None)


def test_generating_without_weights_is_an_error():
    async def main(tracer):
        await simulated_generator(tracer, constant(1)).generate(ITEM)

    with pytest.raises(AssertionError, match="generator generates for step 3 without weights"):
        run_virtual(main)


def test_loading_what_the_learner_was_allowed_to_forget_is_an_error():
    async def main(tracer):
        learner, generator = simulated_learner(tracer, constant(1)), simulated_generator(tracer, constant(1))
        first = await learner.publish_weights(0, frozenset())
        second = await learner.publish_weights(1, frozenset({0}))
        await learner.publish_weights(2, frozenset({1}))
        assert learner.readable == {1, 2}
        await generator.load_weights(second)
        await generator.load_weights(first)

    with pytest.raises(AssertionError, match="version 0 is gone"):
        run_virtual(main)


def test_what_is_forgotten_during_a_transfer_did_not_arrive():
    async def main(tracer):
        learner = simulated_learner(tracer, constant(1))
        generator = simulated_generator(tracer, constant(1), transfer_cost=constant(2))
        first = await learner.publish_weights(0, frozenset())
        await asyncio.gather(generator.load_weights(first), learner.publish_weights(1, frozenset()))

    with pytest.raises(AssertionError, match="version 0 is gone"):
        run_virtual(main)


def test_asking_for_what_is_gone_is_an_error():
    async def main(tracer):
        learner = simulated_learner(tracer, constant(1))
        await learner.publish_weights(0, frozenset())
        await learner.publish_weights(1, frozenset())
        await learner.publish_weights(2, frozenset({0, 1}))

    with pytest.raises(AssertionError, match=r"versions \{0\} are gone already"):
        run_virtual(main)


def test_a_scorer_leaves_failed_groups_out_and_counts_them():
    async def main(tracer):
        scorer = simulated_scorer(tracer, constant(1), reward=0.25, fails=lambda item, prompt: prompt == 4)
        groups = (RolloutGroup(4, 3, 1, 2, (3, 5)), RolloutGroup(5, 3, 1, 2, (2, 4), mean_version=1.5))
        return await scorer.score(ITEM, groups), await scorer.score(ITEM, groups[:1])

    (scored, nothing), _ = run_virtual(main)
    assert scored.groups == (RolloutGroup(5, 3, 1, 2, (2, 4), rewards=(0.25, 0.25), mean_version=1.5),)
    assert (scored.failed_groups, scored.failure) == (1, "the reward of prompt 4 failed")
    assert scored.metrics["response_length"].value == 3  # of the group that is left: (2 + 4) / 2
    assert (nothing.groups, nothing.failed_groups, nothing.metrics) == ((), 1, {})


@pytest.mark.parametrize(("after_s", "dead_at"), [(0, 0), (3, 3), (8, 8), (99, 8)])
def test_a_part_dies_some_way_into_its_call_or_at_its_end(after_s, dead_at):
    async def main(tracer):
        groups = (RolloutGroup(4, 3, 0, 0, (1,)),)
        scorer = MortalScorer(
            lambda: simulated_scorer(tracer, constant(8)), lambda call: after_s if call == 1 else None
        )
        with pytest.raises(PartReplaced) as caught:
            await scorer.score(ITEM, groups)
        assert elapsed() == dead_at
        await scorer.score(ITEM, groups)
        return caught.value, elapsed()

    (error, seconds), tracer = run_virtual(main)
    assert (error.reason, error.incarnation) == ("scorer died in call 1", 1)
    assert seconds == dead_at + 8
    assert [(span.start_ns / 1e9, span.end_ns / 1e9) for span in tracer.drain()] == [(0, dead_at), (dead_at, seconds)]


def test_a_new_generator_holds_no_weights():
    async def main(tracer):
        generator = MortalGenerator(
            lambda: simulated_generator(tracer, constant(8)), lambda call: 1 if call == 2 else None
        )
        await generator.load_weights(weight_handle(0))
        with pytest.raises(PartReplaced):
            await generator.generate(ITEM)
        assert not tracer.still_open()
        await generator.generate(ITEM)

    with pytest.raises(AssertionError, match="without weights"):
        run_virtual(main)


def test_all_calls_under_way_hear_of_one_death():
    async def main(tracer):
        generator = MortalGenerator(
            lambda: simulated_generator(tracer, constant(8), load_cost=constant(4)),
            lambda call: 2 if call == 3 else None,
        )
        await generator.load_weights(weight_handle(0))
        calls = generator.generate(ITEM), generator.load_weights(weight_handle(1))
        return await asyncio.gather(*calls, return_exceptions=True), elapsed(), generator.incarnation

    (errors, seconds, incarnation), _ = run_virtual(main)
    assert [(type(error), error.incarnation) for error in errors] == [(PartReplaced, 1)] * 2
    assert (seconds, incarnation) == (6, 1)


def test_the_error_of_a_dying_part_is_not_hidden_by_its_death():
    async def main(tracer):
        await MortalGenerator(lambda: simulated_generator(tracer, constant(1)), lambda call: 5).generate(ITEM)

    with pytest.raises(AssertionError, match="without weights"):
        run_virtual(main)
