"""The simulated parts keep the times, versions and books that the tests of the loop rely on."""

import asyncio

import pytest

from harness.core.types import Purpose, RolloutGroup, WeightHandle, WorkItem
from harness.simulate.clock import run_virtual
from tests.stand_ins.simulated_parts import constant, simulated_generator, simulated_learner

ITEM = WorkItem(Purpose.TRAIN, step=3, shard=0, prompt_ids=(4, 5), group_size=2, seed=11)


def weight_handle(version: int) -> WeightHandle:
    return WeightHandle(version, num_bytes=0, num_tensors=1)


def test_groups_tell_the_version_loaded_last_and_the_lengths_of_their_responses():
    async def main(tracer):
        generator = simulated_generator(tracer, constant(8), lengths=lambda item, prompt: (prompt, item.step))
        await generator.load_weights(weight_handle(1))
        await generator.load_weights(weight_handle(2))
        return await generator.generate(ITEM)

    groups, _ = run_virtual(main)
    assert groups == (RolloutGroup(4, 3, 2, 2, (4, 3)), RolloutGroup(5, 3, 2, 2, (5, 3)))
    assert [group.token_version for group in groups] == [2, 2]


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


async def generates_without_weights(learner, generator):
    await generator.generate(ITEM)


async def loads_what_was_forgotten(learner, generator):
    first = await learner.publish_weights(0, frozenset())
    second = await learner.publish_weights(1, frozenset({0}))
    await learner.publish_weights(2, frozenset({1}))
    assert learner.readable == {1, 2}
    await generator.load_weights(second)
    await generator.load_weights(first)


async def loads_what_is_forgotten_meanwhile(learner, generator):
    first = await learner.publish_weights(0, frozenset())
    await asyncio.gather(generator.load_weights(first), learner.publish_weights(1, frozenset()))


async def asks_for_what_is_gone(learner, generator):
    await learner.publish_weights(0, frozenset())
    await learner.publish_weights(1, frozenset())
    await learner.publish_weights(2, frozenset({0, 1}))


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (generates_without_weights, "generator generates for step 3 without weights"),
        (loads_what_was_forgotten, "version 0 is gone"),
        (loads_what_is_forgotten_meanwhile, "version 0 is gone"),
        (asks_for_what_is_gone, r"versions \{0\} are gone already"),
    ],
)
def test_the_loop_is_held_to_its_side_of_the_protocols(calls, message):
    async def main(tracer):
        generator = simulated_generator(tracer, constant(1), transfer_cost=constant(2))
        await calls(simulated_learner(tracer, constant(1)), generator)

    with pytest.raises(AssertionError, match=message):
        run_virtual(main)
