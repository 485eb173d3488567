"""Dynamic sampling on simulated stages: what is sampled again, when, with which weights, and what is counted."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace

import pytest

from harness.core.seeds import derive_seed
from harness.core.types import RolloutGroup, ScoredBatch, WorkItem
from harness.loop import Count, LoopPlan, RolloutCounts
from harness.loop.dynamic_sampling import DynamicSampler
from harness.settings.replay import DynamicSamplingSettings
from tests.stand_ins.simulated_parts import varying_lengths

TWICE = DynamicSamplingSettings(attempts=2)


def once_flat(*prompts: int):
    """Groups of these prompts have no spread when a batch is first sampled; all later ones have."""
    return lambda item, prompt_id: item.attempt == 0 and prompt_id in prompts


def told(seen) -> list[list[tuple[int, int]]]:
    """(attempt, version) of each group of each fresh batch."""
    return [[(group.attempt, group.min_version) for group in facts.fresh] for facts in seen.story.facts]


# ---- when


def test_in_turns_the_generator_samples_again_before_the_update(simulate):
    seen = simulate(steps=1, max_lag=0, dynamic_sampling=TWICE, num_prompts=40, is_flat=once_flat(2))
    assert seen.work == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "generate", 1, 9, 0),
        ("scorer", "score", 9, 10, 0),
        ("generator", "generate", 10, 18, 0),
        ("scorer", "score", 18, 19, 0),
        ("learner", "update", 19, 24, 0),
        ("learner", "weight_publish", 24, 25, 1),
    ]
    assert seen.waits("generator") == [
        ("wait_for_weights", 0, 1),
        ("wait_for_weights", 9, 10),
        ("wait_for_weights", 18, 25),
    ]
    # 4 places of 2 rollouts of 8 tokens, one of them sampled twice
    assert (seen.ledger.generated, seen.ledger.trained) == (Count(10, 80), Count(8, 64))
    assert (seen.ledger.discarded, seen.ledger.unused) == (Count(2, 16), Count())


def test_what_is_sampled_again_goes_before_a_new_batch_with_the_newest_weights(simulate):
    seen = simulate(
        steps=3, max_lag=1, dynamic_sampling=TWICE, num_prompts=40, is_flat=lambda item, prompt: item.step == 1 > prompt
    )
    assert [row for row in seen.work if row[0] != "scorer"] == [
        ("learner", "weight_publish", 0, 1, 0),
        ("generator", "generate", 1, 9, 0),  # batch 0
        ("generator", "generate", 9, 17, 0),  # batch 1, whose prompt 0 is flat: scored at 18
        ("learner", "update", 10, 15, 0),
        ("learner", "weight_publish", 15, 16, 1),
        ("generator", "generate", 17, 25, 1),  # batch 2
        ("generator", "generate", 25, 33, 1),  # batch 1 again: one place, of the newer version
        ("learner", "update", 34, 39, 1),
        ("learner", "weight_publish", 39, 40, 2),
        ("learner", "update", 40, 45, 2),
        ("learner", "weight_publish", 45, 46, 3),
    ]
    assert told(seen)[1] == [(1, 1), (0, 0), (0, 0), (0, 0)]


def test_an_idle_generator_samples_again_what_another_one_has_sampled(simulate):
    # Shards of 2: generator1 is done at 3, scored at 4, and waits for weights; generator0 is done at 101.
    seen = simulate(steps=1, max_lag=0, generate=[100, 2], dynamic_sampling=TWICE, num_prompts=40, is_flat=once_flat(0))
    # Scored at 102; generator1 has waited longer, and takes the place of generator0: 102 + 2 + 1 + 5 + 1.
    assert [row for row in seen.work if row[1] == "generate"] == [
        ("generator1", "generate", 1, 3, 0),
        ("generator0", "generate", 1, 101, 0),
        ("generator1", "generate", 102, 104, 0),
    ]
    assert seen.seconds == 111


# ---- how often


def test_a_place_is_sampled_up_to_the_bound_and_then_kept(simulate):
    seen = simulate(steps=2, max_lag=0, dynamic_sampling=TWICE, num_prompts=40)  # every group is flat
    assert [[group.attempt for group in facts.fresh] for facts in seen.story.facts] == [[2] * 4] * 2
    discarded = [Counter(g.attempt for part in facts.scored for g in part.discarded) for facts in seen.story.facts]
    assert discarded == [{0: 4, 1: 4}] * 2
    assert (seen.ledger.generated, seen.ledger.discarded) == (Count(48, 384), Count(32, 256))
    assert seen.seconds == 67  # 1 + 2 * (3 * (8 + 1) + 5 + 1)


def test_the_data_of_a_discarded_group_is_given_up_at_once():
    class Data:
        pass

    sampler = DynamicSampler(plan_of((5, 6), 2, 40), RolloutCounts())
    (item,) = [item for item in plan_of((5, 6), 2, 40).train_orders(1) if item.step == 0]
    data, groups = [Data(), Data()], []
    for prompt, each, rewards in zip((5, 6), data, [(1.0, 1.0), (0.0, 1.0)], strict=True):
        groups.append(RolloutGroup(prompt, 0, 0, 0, (3, 4), each, rewards))
    assert sampler.take_in(ScoredBatch(item, tuple(groups), {})) is None
    seen = [weakref.ref(each) for each in data]
    del data, groups, each
    assert [each() is None for each in seen] == [True, False]
    assert (sampler.waiting.rollouts, sampler.next_order().places) == (2, (0,))


def test_the_oldest_batch_is_sampled_again_first():
    plan = plan_of((5, 6), 2, 40)
    first, second, third = list(plan.train_orders(1))[:3]
    sampler = DynamicSampler(plan, RolloutCounts(), orders=[second, first, third])
    assert [sampler.next_order().step for _ in range(3)] == [0, 1, 2]


# ---- what


def mostly_flat(item: WorkItem, prompt_id: int) -> bool:
    return derive_seed(item.step, prompt_id, item.attempt) % 3 > 0


def sampled(seen) -> list[tuple[list[object], list[object]]]:
    """Prompt, attempt and lengths, which tell the seed, of what each batch kept, in order, and threw away."""

    def facts_of(group: RolloutGroup) -> tuple[int, int, tuple[int, ...]]:
        return group.prompt_id, group.attempt, group.lengths

    return [
        (
            [facts_of(group) for group in facts.fresh],
            sorted(facts_of(group) for part in facts.scored for group in part.discarded or ()),
        )
        for facts in seen.story.facts
    ]


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_the_number_of_generators_changes_no_sample(simulate, max_lag):
    settings = {"steps": 6, "max_lag": max_lag, "batch_prompts": lambda step: tuple(range(4 * step, 4 * step + 4))}
    settings |= {
        "dynamic_sampling": TWICE,
        "num_prompts": 40,
        "is_flat": mostly_flat,
        "lengths": varying_lengths(1, 50),
    }
    one, two, four = (sampled(simulate(generate=seconds, **settings)) for seconds in ([8.0], [8, 3], [8, 3, 5, 1]))
    assert one == two == four
    assert sum(len(discarded) for _, discarded in one) > 10
    # Attempt 0 is what it is without dynamic sampling.
    off = sampled(simulate(**(settings | {"dynamic_sampling": DynamicSamplingSettings()})))
    for (kept, discarded), (plain, _) in zip(one, off, strict=True):
        assert {group for group in (*kept, *discarded) if group[1] == 0} == set(plain)


def plan_of(batch: tuple[int, ...], attempts: int, num_prompts: int) -> LoopPlan:
    options = DynamicSamplingSettings(attempts=attempts)
    return LoopPlan(5, 2, 0, 1, lambda step: batch, (), 3, dynamic_sampling=options, num_prompts=num_prompts)


def test_another_prompt_stood_nowhere_in_the_batch_and_depends_on_batch_place_and_attempt_alone():
    plan = plan_of((7, 1, 5, 3), 3, 20)
    item = next(iter(plan.train_orders(1)))
    assert item.seed == derive_seed(3, "train", 0, 0)
    everywhere: list[int] = []
    for attempt in (1, 2, 3):
        again = plan.order_again(replace(item, attempt=attempt - 1), dict(zip(range(4), item.prompt_ids, strict=True)))
        assert (again.attempt, again.places, again.seed) == (attempt, (0, 1, 2, 3), derive_seed(3, "train", 0, attempt))
        alone = plan.order_again(replace(item, attempt=attempt - 1), {2: 5})
        assert (alone.prompt_ids, alone.places) == (again.prompt_ids[2:3], (2,))
        everywhere += again.prompt_ids
    assert len({*everywhere, 7, 1, 5, 3}) == 16
    assert set(everywhere) <= set(range(20))
    others = plan.order_again(replace(item, step=1), dict.fromkeys(range(4), 0)).prompt_ids
    assert others != tuple(everywhere[:4])  # another batch draws others


def test_where_no_other_prompt_is_left_the_same_one_is_asked_again():
    plan = plan_of((0, 1, 2, 3), 3, 6)  # 4 and 5 are left
    item = next(iter(plan.train_orders(1)))
    first = plan.order_again(item, {0: 0, 1: 1, 2: 2, 3: 3})
    assert set(first.prompt_ids[:2]) == {4, 5}
    assert first.prompt_ids[2:] == (2, 3)
    second = plan.order_again(first, {1: first.prompt_ids[1]})
    assert second.prompt_ids == first.prompt_ids[1:2]
    same = plan_of((0, 1, 2, 3), 3, 0).order_again(item, {1: 1, 3: 3})
    assert (same.prompt_ids, same.places, same.first) == ((1, 3), (1, 3), 1)
