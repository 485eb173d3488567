"""Rewards from a function that is given up when a group takes too long."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from harness.core.child_process import START_S, ChildProcess
from harness.tasks.scoring.group import Reward, RewardFailed, arguments, checked, numbered, short
from harness.tasks.scoring.process import start_reward_process

_LONGEST_REASON = 2000  # characters


class TimedRewards:
    """Calls the reward function in a process of its own, which is killed and replaced when a group takes too long.

    The process starts with this object and lives on from group to group.

    Args:
        reward: the function; it travels by pickle, so that a plain one is imported again by its name.
        timeout_s: seconds that the function may take for one group. The start of its process does not count.
        should_stop: asked while the function works.
    """

    def __init__(self, reward: Reward, timeout_s: float, should_stop: Callable[[], bool]) -> None:
        self._timeout_s, self._should_stop = timeout_s, should_stop
        self._pickled = pickle.dumps(reward)
        self._groups = 0
        self._process: ChildProcess | None = start_reward_process(self._pickled)

    def __call__(self, responses: Sequence[str], ground_truth: str) -> list[dict[str, float]]:
        """See ``GroupRewards``."""
        process = self._process = self._process or start_reward_process(self._pickled)
        try:
            if not process.idle:
                self._wait_for_start(process)
            return self._ask(process, responses, ground_truth)
        finally:
            if not process.idle:  # an answer is still to come, or never will
                self._process = None
                process.kill()

    def _wait_for_start(self, process: ChildProcess) -> None:
        try:
            answer = process.receive(time.monotonic() + START_S, self._should_stop)
        except TimeoutError:
            raise RewardFailed(f"the process of the reward function was not ready within {START_S:g} s") from None
        except ConnectionError as error:
            raise RewardFailed(f"the process of the reward function {error} while it started") from None
        if "failed" in answer:
            raise RewardFailed(f"the reward function cannot be had in a process of its own: {_cut(answer['failed'])}")
        process.idle = True

    def _ask(self, process: ChildProcess, responses: Sequence[str], ground_truth: str) -> list[dict[str, float]]:
        self._groups += 1
        deadline = time.monotonic() + self._timeout_s
        process.idle = False
        with suppress(ConnectionError, TimeoutError):  # then no answer comes either, and it is told which one
            process.send(
                {"group": self._groups, "responses": list(responses), "ground_truth": ground_truth}, self._timeout_s
            )
        rewards = []
        for index, response in enumerate(responses):
            with numbered(index, responses):
                answer = self._receive(process, deadline, arguments(response, ground_truth))
                rewards.append(_read(process, answer, [self._groups, index]))
        process.idle = True
        return rewards

    def _receive(self, process: ChildProcess, deadline: float, asked: str) -> dict[str, Any]:
        try:
            return process.receive(deadline, self._should_stop)
        except TimeoutError:
            limit = f"the {self._timeout_s:g} s that it has for a group (task.reward_timeout_s)"
            raise RewardFailed(f"the reward function took longer than {limit}, and was busy with {asked}") from None
        except ConnectionError as error:
            raise RewardFailed(f"the process of the reward function {error}, for {asked}") from None

    def close(self) -> None:
        """See ``GroupRewards``."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _read(process: ChildProcess, answer: dict[str, Any], at: list[int]) -> dict[str, float]:
    """Return the rewards in an answer; ``at`` is the group and the index of the response it must be for.

    Raises:
        RewardFailed: the function failed, or this is the answer to something else and would reward the wrong text.
    """
    if answer.get("at") != at:
        raise RewardFailed(f"the process of the reward function answered {short(answer)}, and was not asked for it")
    if "failed" in answer:
        process.idle = True
        raise RewardFailed(_cut(answer["failed"]))
    return checked(answer.get("rewards"))


def _cut(reason: Any) -> str:
    return str(reason)[:_LONGEST_REASON]
