"""The rewards of one group, from a function that may fail.

A reward function is somebody's code and reads what a model wrote. It may raise, hang or take its process with it, and
any of these costs its group and nothing else. ``DirectRewards`` calls it in this process, ``TimedRewards`` in one that
is killed when a group takes too long.
"""

from __future__ import annotations

import base64
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from harness.core.child_process import START_S, ChildProcess, Message
from harness.core.errors import HarnessError, Interrupted, UserError, quoted
from harness.core.plugins import is_ctrl_c
from harness.core.rewards import reward_number
from harness.tasks.rewards import NAMED, PARTS, Row, UserReward

Reward = Callable[[str, str], dict[str, float]]
"""Rewards one response: ``reward(response, ground_truth)``, see ``protocols.Task.reward``."""


class RewardFailed(HarnessError):
    """A group has no rewards: its reward function raised, ran out of time or ended its process."""


class GroupRewards(Protocol):
    """Rewards the responses of one group."""

    def __call__(self, responses: Sequence[str], ground_truth: str, row: Row | None = None) -> list[dict[str, float]]:
        """Return ``reward``, ``format_reward``, ``answer_reward`` and named parts of each response, in their order.

        Args:
            responses: to one prompt.
            ground_truth: the prompt's.
            row: of the data file that the prompt comes from, where the reward takes it.

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

    def __call__(self, responses: Sequence[str], ground_truth: str, row: Row | None = None) -> list[dict[str, float]]:
        each = _rewards_of(self._reward, responses, ground_truth, row)
        rewards = []
        for _ in responses:
            if self._should_stop():
                raise Interrupted("stopped while scoring")
            rewards.append(next(each))
        return rewards

    def close(self) -> None:
        close = getattr(self._reward, "close", None)
        if callable(close):
            close()


def _rewards_of(
    reward: Reward, responses: Sequence[str], ground_truth: str, row: Row | None
) -> Iterator[dict[str, float]]:
    """Yield the rewards of one response after the other; a user's functions for whole groups are called first.

    Raises:
        RewardFailed: a function raised or called ``sys.exit``, left the current folder, or gave anything but finite
            numbers. The message names the response, unless it is one of a function for whole groups.
    """
    if isinstance(reward, UserReward):
        with _failing_for("the group"):
            each = reward.of_group(responses, ground_truth, row)
    else:
        each = (reward(response, ground_truth) for response in responses)
    for index, response in enumerate(responses):
        with _numbered(index, responses):
            with _failing_for(_arguments(response, ground_truth)):
                value = next(each)
            rewards = checked(value)
        yield rewards


@contextmanager
def _failing_for(asked: str) -> Iterator[None]:
    """Raise what a reward function raises as a ``RewardFailed``, and go back to the current folder if it has left it.

    Paths of others are relative to that folder.
    """
    here = os.getcwd()
    try:
        yield
    except UserError as error:  # it has named the function and its arguments
        raise RewardFailed(f"{error.what} ({error.where})" if error.where else error.what) from error
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise RewardFailed(f"the reward function raised {type(error).__name__}: {error}, for {asked}") from error
    finally:
        try:
            there = os.getcwd()
        except FileNotFoundError:  # it was removed
            there = "one that it removed"
        if there != here:
            os.chdir(here)
    if there != here:
        raise RewardFailed(f"the reward function changed the current folder to {there}")


def checked(value: Any) -> dict[str, float]:
    """Return the parts of a reward as floats, the three that every reward has first.

    Raises:
        RewardFailed: one of the three is missing, one has another name, or one is not a finite number.
    """
    if isinstance(value, Mapping) and set(PARTS) <= set(value):
        named = [key for key in value if key not in PARTS]
        if all(isinstance(key, str) and key.endswith(NAMED) for key in named):
            with suppress(ValueError):
                return {part: reward_number(value[part]) for part in (*PARTS, *named)}
    raise RewardFailed(f"the reward function gave {quoted(value)}; expected finite numbers for {', '.join(PARTS)}")


@contextmanager
def _numbered(index: int, responses: Sequence[str]) -> Iterator[None]:
    """Put the number of the response in front of what failed in the block."""
    try:
        yield
    except RewardFailed as error:
        raise RewardFailed(f"response {index + 1} of {len(responses)}: {error}") from error.__cause__


def _arguments(response: str, ground_truth: str) -> str:
    return f"the response {quoted(response)} and the ground truth {quoted(ground_truth)}"


def prepare_rewards(messages: Iterator[Message]) -> Callable[[Message], Iterator[Message]]:
    """Make the process ready that calls a reward function: the first message brings it.

    A question has ``group`` (its number), ``responses``, ``ground_truth`` and ``row``. It gets an answer for each
    response, up to the first one that fails: ``at``, the numbers of group and response from 0, and ``rewards`` or
    ``failed``, why there are none.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # no Ctrl-C is for this process: see ``is_ctrl_c``
    with suppress(OSError):  # where memory runs out, the kernel is to take this process, and cost one group
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    reward = pickle.loads(base64.b64decode(next(messages)["reward"]))

    def answers(question: Message) -> Iterator[Message]:
        index = 0
        try:
            for rewards in _rewards_of(reward, question["responses"], question["ground_truth"], question["row"]):
                yield {"at": [question["group"], index], "rewards": rewards}
                index += 1
        except RewardFailed as error:
            yield {"at": [question["group"], index], "failed": str(error)}

    return answers


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
        self._pickled = base64.b64encode(pickle.dumps(reward)).decode()
        self._calls_groups = isinstance(reward, UserReward) and reward.calls_groups
        self._groups = 0
        self._process: ChildProcess | None = self._start()

    def _start(self) -> ChildProcess:
        process = ChildProcess("harness.tasks.scoring:prepare_rewards")
        process.send({"reward": self._pickled}, START_S)
        return process

    def __call__(self, responses: Sequence[str], ground_truth: str, row: Row | None = None) -> list[dict[str, float]]:
        process = self._process = self._process or self._start()
        try:
            if not process.idle:
                try:
                    process.wait_until_ready(self._should_stop)
                except ConnectionError as error:
                    raise RewardFailed(f"the process of the reward function {error}"[:_LONGEST_REASON]) from None
            process.idle = False
            return self._ask(process, responses, ground_truth, row)
        finally:
            if not process.idle:  # an answer is still to come, or never will
                self._process = None
                process.kill()

    def _ask(
        self, process: ChildProcess, responses: Sequence[str], ground_truth: str, row: Row | None
    ) -> list[dict[str, float]]:
        self._groups += 1
        deadline = time.monotonic() + self._timeout_s
        process.send(
            {"group": self._groups, "responses": list(responses), "ground_truth": ground_truth, "row": row},
            self._timeout_s,
        )
        rewards = []
        for index, response in enumerate(responses):
            asked, at = _arguments(response, ground_truth), [self._groups, index]
            if index == 0 and self._calls_groups:  # which of its functions is at work cannot be seen from here
                answer = self._receive(process, deadline, f"the whole group, {asked} first")
            else:
                with _numbered(index, responses):
                    answer = self._receive(process, deadline, asked)
            if "failed" in answer and answer.get("at") == at:
                process.idle = True
                raise RewardFailed(str(answer["failed"])[:_LONGEST_REASON])
            with _numbered(index, responses):
                if answer.get("at") != at:  # it would reward the wrong text
                    what = f"answered {quoted(answer)}, and was not asked for it"
                    raise RewardFailed(f"the process of the reward function {what}")
                rewards.append(checked(answer.get("rewards")))
        process.idle = True
        return rewards

    def _receive(self, process: ChildProcess, deadline: float, asked: str) -> Message:
        try:
            return process.receive(deadline, self._should_stop)
        except TimeoutError:
            limit = f"the {self._timeout_s:g} s that it has for a group (task.reward_timeout_s)"
            raise RewardFailed(f"the reward function took longer than {limit}, and was busy with {asked}") from None
        except ConnectionError as error:
            raise RewardFailed(f"the process of the reward function {error}, for {asked}") from None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
