"""Sort three numbers: the smallest task on which policy gradients can be watched. Three prompts, two rewards.

Training and validation prompts are the same three: validation measures the training task, by many more samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from harness.core.errors import UserError
from harness.core.types import Prompt

SortingReward = Literal["positions", "inclusion_ordering"]
SORTING_PROMPTS: tuple[tuple[int, ...], ...] = ((1, 0, 2), (3, 2, 4), (1, 2, 3))
VALIDATION_REPEATS = 100
_NUMBER = re.compile(r"[0-9]{1,9}")


def positions_reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """Return at how many positions the response equals the sorted prompt: 0 to the prompt's length.

    Raises:
        ValueError: the response has another length than the prompt.
    """
    _require_equal_lengths(prompt, response)
    return float(sum(found == wanted for found, wanted in zip(response, sorted(prompt), strict=True)))


def inclusion_ordering_reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """Return how many numbers of the prompt occur in the response, plus how many neighbours in it do not fall.

    For n different numbers 0 to 2n - 1. Equal neighbours count as ordered, so that writing one number of the prompt n
    times already earns n, without anything being sorted.

    Raises:
        ValueError: the response has another length than the prompt.
    """
    _require_equal_lengths(prompt, response)
    included = sum(number in response for number in prompt)
    ordered = sum(left <= right for left, right in pairwise(response))
    return float(included + ordered)


SORTING_REWARDS: dict[SortingReward, Callable[[Sequence[int], Sequence[int]], float]] = {
    "positions": positions_reward,
    "inclusion_ordering": inclusion_ordering_reward,
}


class SortingTask:
    """Prompts such as ``1 0 2``, whose ground truth is the numbers in order, ``0 1 2``.

    Args:
        reward: ``positions`` or ``inclusion_ordering``, see the functions of these names.

    Raises:
        UserError: there is no such reward.
    """

    def __init__(self, reward: SortingReward = "inclusion_ordering") -> None:
        if reward not in SORTING_REWARDS:
            known = " or ".join(SORTING_REWARDS)
            raise UserError(f"reward is {reward!r}, expected {known}", "task.reward", "set task.reward to positions")
        self.name = reward
        self.train_prompts = tuple(_prompt(numbers) for numbers in SORTING_PROMPTS)
        self.validation_prompts = self.train_prompts * VALIDATION_REPEATS

    def reward(self, response: str, ground_truth: str) -> dict[str, float]:
        """Return the reward, whether the response has as many numbers as the prompt, and whether they are the sorted.

        A response of any other form earns 0.
        """
        wanted, found = numbers_in(ground_truth), numbers_in(response)
        if wanted is None or found is None or len(found) != len(wanted):
            return {"reward": 0.0, "format_reward": 0.0, "answer_reward": 0.0}
        reward = SORTING_REWARDS[self.name](wanted, found)  # neither reward asks for the prompt's order
        return {"reward": reward, "format_reward": 1.0, "answer_reward": float(found == wanted)}


def numbers_in(text: str) -> list[int] | None:
    """Read numbers with blanks between them; None where there is anything else."""
    words = text.split(" ")
    return [int(word) for word in words] if all(map(_NUMBER.fullmatch, words)) else None


def _prompt(numbers: Sequence[int]) -> Prompt:
    return Prompt(" ".join(map(str, numbers)), " ".join(map(str, sorted(numbers))))


def _require_equal_lengths(prompt: Sequence[int], response: Sequence[int]) -> None:
    if len(prompt) != len(response):
        raise ValueError(f"the response has {len(response)} numbers, the prompt {len(prompt)}")
