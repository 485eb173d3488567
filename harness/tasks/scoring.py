"""The rewards of one group, from a function that may fail.

A reward function is somebody's code and reads what a model wrote. It may raise, hang or take its process with it, and
any of these costs its group and nothing else. ``DirectRewards`` calls it in this process, ``TimedRewards`` in one that
is killed when a group takes too long (our own ``core.child_process``: a pool of processes would not kill what a reward
function has started itself).
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from harness.core.child_process import START_S, ChildProcess, line_of
from harness.core.errors import HarnessError, Interrupted, UserError
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
        """See ``GroupRewards``."""
        each = rewards_of_group(self._reward, responses, ground_truth, row)
        rewards = []
        for _ in responses:
            if self._should_stop():
                raise Interrupted("stopped while scoring")
            rewards.append(next(each))
        return rewards

    def close(self) -> None:
        """Let the function give back what it holds, where it has a ``close``."""
        close = getattr(self._reward, "close", None)
        if callable(close):
            close()


def rewards_of_group(
    reward: Reward, responses: Sequence[str], ground_truth: str, row: Row | None
) -> Iterator[dict[str, float]]:
    """Yield the rewards of one response after the other; a user's functions for whole groups are called first.

    Raises:
        RewardFailed: a function raised or called ``sys.exit``, or gave anything but finite numbers. The message names
            the response, unless it is one of a function for whole groups.
    """
    if not responses:
        return
    if isinstance(reward, UserReward):
        with _as_failure("the group"), _staying_here():  # its own errors say more
            each = reward.of_group(responses, ground_truth, row)
    else:
        each = (reward(response, ground_truth) for response in responses)
    for index, response in enumerate(responses):
        with numbered(index, responses):
            with _as_failure(arguments(response, ground_truth)), _staying_here():
                value = next(each)
            rewards = checked(value)
        yield rewards


@contextmanager
def _as_failure(asked: str) -> Iterator[None]:
    """Raise what a reward function raises as a ``RewardFailed``."""
    try:
        yield
    except RewardFailed:
        raise
    except UserError as error:  # the task has named the function and its arguments
        raise RewardFailed(f"{error.what} ({error.where})" if error.where else error.what) from error
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise RewardFailed(f"the reward function raised {type(error).__name__}: {error}, for {asked}") from error


@contextmanager
def _staying_here() -> Iterator[None]:
    """Go back to the current folder behind a reward function that has left it: paths of others are relative to it.

    Raises:
        RewardFailed: it has.
    """
    here = os.getcwd()
    try:
        yield
    finally:
        there = _current_folder()
        if there != here:
            os.chdir(here)
    if there != here:
        raise RewardFailed(f"the reward function changed the current folder to {there}")


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return None


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
    raise RewardFailed(f"the reward function gave {short(value)}; expected finite numbers for {', '.join(PARTS)}")


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


def start_reward_process(reward: bytes) -> ChildProcess:
    """Start the process of a reward function, which answers first whether it is ready.

    Args:
        reward: the function, pickled.
    """
    process = ChildProcess("harness.tasks.scoring:serve_rewards")
    with suppress(ConnectionError, TimeoutError):  # it has died, which the first receive will tell
        process.send({"reward": base64.b64encode(reward).decode()}, START_S)
    return process


def serve_rewards(connection_fd: int) -> None:
    """Answer one group after the other until the connection ends; what the process does.

    Args:
        connection_fd: the socket.
    """
    os.set_inheritable(connection_fd, False)
    signal.signal(signal.SIGINT, lambda *_: None)  # no Ctrl-C is for this process: see ``is_ctrl_c``
    with suppress(OSError):  # where memory runs out, the kernel is to take this process, and cost one group
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with socket.socket(fileno=connection_fd) as connection, connection.makefile("rb") as requests:
        try:
            reward = pickle.loads(base64.b64decode(json.loads(requests.readline())["reward"]))
        except BaseException as error:
            connection.sendall(line_of({"failed": f"{type(error).__name__}: {error}"}))
            return
        connection.sendall(line_of({"ready": True}))
        for request in requests:
            for answer in _answers(reward, json.loads(request)):
                connection.sendall(line_of(answer))


def _answers(reward: Reward, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an answer for each response, up to the first one that fails."""
    index = 0
    try:
        for rewards in rewards_of_group(reward, request["responses"], request["ground_truth"], request["row"]):
            yield {"at": [request["group"], index], "rewards": rewards}
            index += 1
    except RewardFailed as error:
        yield {"at": [request["group"], index], "failed": str(error)}


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
        self._calls_groups = isinstance(reward, UserReward) and reward.calls_groups
        self._groups = 0
        self._process: ChildProcess | None = start_reward_process(self._pickled)

    def __call__(self, responses: Sequence[str], ground_truth: str, row: Row | None = None) -> list[dict[str, float]]:
        """See ``GroupRewards``."""
        process = self._process = self._process or start_reward_process(self._pickled)
        try:
            if not process.idle:
                self._wait_for_start(process)
            return self._ask(process, responses, ground_truth, row)
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

    def _ask(
        self, process: ChildProcess, responses: Sequence[str], ground_truth: str, row: Row | None
    ) -> list[dict[str, float]]:
        self._groups += 1
        question = {"group": self._groups, "responses": list(responses), "ground_truth": ground_truth, "row": row}
        deadline = time.monotonic() + self._timeout_s
        process.idle = False
        with suppress(ConnectionError, TimeoutError):  # then no answer comes either, and it is told which one
            process.send(question, self._timeout_s)
        rewards = []
        for index, response in enumerate(responses):
            if index == 0 and self._calls_groups:  # which of its functions is at work cannot be seen from here
                answer = self._receive(process, deadline, f"the whole group, {arguments(response, ground_truth)} first")
            else:
                with numbered(index, responses):
                    answer = self._receive(process, deadline, arguments(response, ground_truth))
            if "failed" in answer and answer.get("at") == [self._groups, index]:
                process.idle = True
                raise RewardFailed(_cut(answer["failed"]))
            with numbered(index, responses):
                rewards.append(_read(answer, [self._groups, index]))
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


def _read(answer: dict[str, Any], at: list[int]) -> dict[str, float]:
    """Return the rewards in an answer; ``at`` is the group and the index of the response it must be for.

    Raises:
        RewardFailed: these are no rewards, or the answer is to something else and would reward the wrong text.
    """
    if answer.get("at") != at:
        raise RewardFailed(f"the process of the reward function answered {short(answer)}, and was not asked for it")
    return checked(answer.get("rewards"))


def _cut(reason: Any) -> str:
    return str(reason)[:_LONGEST_REASON]
