"""Prompts are drawn without replacement, shuffled anew each pass."""

from collections import Counter

import pytest

from harness.loop.plan import prompt_schedule


def test_each_pass_uses_every_prompt_once() -> None:
    prompts = prompt_schedule(num_prompts=10, prompts_per_batch=4, seed=3)
    drawn = [prompt for step in range(5) for prompt in prompts(step)]  # 20 draws: two passes over 10
    assert Counter(drawn[:10]) == Counter(range(10))
    assert Counter(drawn[10:]) == Counter(range(10))
    assert drawn[:10] != drawn[10:]


@pytest.mark.parametrize(("num_prompts", "each"), [(10, 4), (7, 3), (5, 4), (9, 9), (11, 10)])
def test_a_prompt_stands_once_in_a_batch_also_where_two_passes_meet(num_prompts: int, each: int) -> None:
    """Of 10 prompts in fours, step 27 once held prompt 9 twice."""
    for seed in range(20):
        prompts = prompt_schedule(num_prompts, each, seed)
        batches = [prompts(step) for step in range(4 * num_prompts)]
        assert [len(set(batch)) for batch in batches] == [each] * len(batches)
        drawn = [prompt for batch in batches for prompt in batch]
        for start in range(0, len(drawn), num_prompts):
            assert sorted(drawn[start : start + num_prompts]) == list(range(num_prompts))


def test_a_step_has_the_same_prompts_whenever_it_is_asked_for() -> None:
    forward, scattered = prompt_schedule(7, 3, seed=1), prompt_schedule(7, 3, seed=1)
    expected = {step: forward(step) for step in range(10)}
    assert {step: scattered(step) for step in (0, 5, 2, 9, 0)} == {step: expected[step] for step in (0, 5, 2, 9)}


def test_another_seed_gives_other_prompts() -> None:
    one, other = prompt_schedule(50, 20, seed=1), prompt_schedule(50, 20, seed=2)
    assert one(0) != other(0)
