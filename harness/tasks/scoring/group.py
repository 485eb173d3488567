"""What the rewards of a group are, and the plain way to get them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from harness.core.errors import HarnessError, Interrupted, UserError
from harness.tasks.rewards import PARTS

Reward = Callable[[str, str], dict[str, float]]
"""Rewards one response: ``reward(response, ground_truth)``, see ``protocols.Task.reward``."""


class RewardFailed(HarnessError):
    """A group has no rewards: its reward function raised, ran out of time or ended its process."""


class GroupRewards(Protocol):
    """Rewards the responses of one group."""

    def __call__(self, responses: Sequence[str], ground_truth: str) -> list[dict[str, float]]:
        """Return ``reward``, ``format_reward`` and ``answer_reward`` of each response, in their order.

        Raises:
            RewardFailed: the message names the response, by its number from 1, and what happened.
            Interrupted: the user asked the run to stop.
        """

    def close(self) -> None:
        """End what the function runs in."""


class DirectRewards:
    """Calls the reward function in this process; one that hangs holds everything up.

    Args:
        reward: the function.
        should_stop: asked before each response.
    """

    def __init__(self, reward: Reward, should_stop: Callable[[], bool]) -> None:
        self._reward, self._should_stop = reward, should_stop

    def __call__(self, responses: Sequence[str], ground_truth: str) -> list[dict[str, float]]:
        """See ``GroupRewards``."""
        rewards = []
        for index, response in enumerate(responses):
            if self._should_stop():
                raise Interrupted("stopped while scoring")
            with numbered(index, responses):
                rewards.append(reward_one(self._reward, response, ground_truth))
        return rewards

    def close(self) -> None:
        """Let the function give back what it holds, where it has a ``close``."""
        close = getattr(self._reward, "close", None)
        if callable(close):
            close()


def reward_one(reward: Reward, response: str, ground_truth: str) -> dict[str, float]:
    """Return the rewards of one response.

    Raises:
        RewardFailed: the function raised or called ``sys.exit``, or gave anything but three finite numbers.
    """
    try:
        value = reward(response, ground_truth)
    except UserError as error:  # the task has named the function and its arguments
        raise RewardFailed(f"{error.what} ({error.where})" if error.where else error.what) from error
    except (Exception, SystemExit) as error:
        asked = arguments(response, ground_truth)
        raise RewardFailed(f"the reward function raised {type(error).__name__}: {error}, for {asked}") from error
    return checked(value)


def checked(value: Any) -> dict[str, float]:
    """Return the parts of a reward as floats.

    Raises:
        RewardFailed: they are not three finite numbers.
    """
    if isinstance(value, Mapping) and set(value) == set(PARTS) and all(map(_is_finite, value.values())):
        return {part: float(value[part]) for part in PARTS}
    raise RewardFailed(f"the reward function gave {short(value)}; expected finite numbers for {', '.join(PARTS)}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


@contextmanager
def numbered(index: int, responses: Sequence[str]) -> Iterator[None]:
    """Put the number of the response in front of what failed in the block."""
    try:
        yield
    except RewardFailed as error:
        raise RewardFailed(f"response {index + 1} of {len(responses)}: {error}") from error.__cause__


def arguments(response: str, ground_truth: str) -> str:
    """Return the words for what the function was asked."""
    return f"the response {short(response)} and the ground truth {short(ground_truth)}"


def short(value: Any, limit: int = 80) -> str:
    """Return how the value is written in code, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
