"""The sorting task: both rewards against arithmetic, over examples and over every possible response."""

from collections import Counter
from itertools import product

import pytest

from harness.core.errors import UserError
from harness.tasks.sorting import (
    SORTING_PROMPTS,
    SORTING_REWARDS,
    SortingTask,
    inclusion_ordering_reward,
    positions_reward,
)


@pytest.mark.parametrize(
    ("response", "positions", "inclusion_ordering"),
    # the source's three examples for the prompt 3 1 0 2, sorted 0 1 2 3
    [
        ([0, 1, 2, 3], 4, 4 + 3),
        ([7, 2, 2, 5], 1, 1 + 2),  # the third is a 2; of the prompt only 2 occurs; 2 <= 2 and 2 <= 5
        ([0, 3, 1, 2], 1, 4 + 2),  # all occur; only 3 > 1 is out of order
    ],
)
def test_the_rewards_of_the_sources_examples(response, positions, inclusion_ordering):
    assert positions_reward([3, 1, 0, 2], response) == positions
    assert inclusion_ordering_reward([3, 1, 0, 2], response) == inclusion_ordering


@pytest.mark.parametrize("prompt", SORTING_PROMPTS)
def test_the_rewards_over_all_responses(prompt):
    """Three positions, each right in 1 of 5: binomial, 125 * C(3, k) * (1/5)^k * (4/5)^(3 - k).

    Inclusion: each number occurs in 1 - (4/5)^3 = 61/125. Ordering: a pair of equals or risers, 15 of 25, twice.
    """
    positions = Counter(positions_reward(prompt, response) for response in product(range(5), repeat=3))
    assert positions == {0: 64, 1: 48, 2: 12, 3: 1}
    rewards = {response: inclusion_ordering_reward(prompt, response) for response in product(range(5), repeat=3)}
    assert sum(rewards.values()) / 125 == pytest.approx(3 * 61 / 125 + 2 * 15 / 25)  # 2.664
    assert max(rewards.values()) == 5
    assert [response for response, reward in rewards.items() if reward == 5] == [tuple(sorted(prompt))]


def test_the_prompts_and_their_ground_truths():
    task = SortingTask()
    pairs = [(prompt.text, prompt.ground_truth) for prompt in task.train_prompts]
    assert pairs == [("1 0 2", "0 1 2"), ("3 2 4", "2 3 4"), ("1 2 3", "1 2 3")]
    # validation: the same three in turn, so that any multiple of three of them is balanced
    assert [prompt.text for prompt in task.validation_prompts[:7]] == [*("1 0 2", "3 2 4", "1 2 3") * 2, "1 0 2"]
    assert len(task.validation_prompts) == 300


def test_the_task_rewards_text():
    task = SortingTask("inclusion_ordering")
    assert task.reward("0 1 2", "0 1 2") == {"reward": 5.0, "format_reward": 1.0, "answer_reward": 1.0}
    # 1 and 0 occur, and 1 <= 1 is the only ordered pair
    assert task.reward("1 1 0", "0 1 2") == {"reward": 3.0, "format_reward": 1.0, "answer_reward": 0.0}
    assert SortingTask("positions").reward("2 1 002", "0 1 2")["reward"] == 2.0
    with pytest.raises(UserError, match="reward is 'distance', expected positions or inclusion_ordering"):
        SortingTask("distance")  # type: ignore[arg-type]


def test_what_is_not_three_numbers_earns_nothing():
    others = ["", "0 1", "0 1 2 3", "0  1 2", " 0 1 2", "0 1 x", "0 1 ²", "0 1 -2", "0 1 " + "9" * 5000]
    others += ["\u0660 \u0661 \u0662"]  # 0 1 2 in Arabic-Indic digits, which int() would read
    nothing = {"reward": 0.0, "format_reward": 0.0, "answer_reward": 0.0}
    for name, reward in SORTING_REWARDS.items():
        assert [text for text in others if SortingTask(name).reward(text, "0 1 2") != nothing] == []
        with pytest.raises(ValueError, match="the response has 2 numbers, the prompt 3"):
            reward([1, 0, 2], [0, 1])
