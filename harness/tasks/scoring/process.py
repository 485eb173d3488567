"""The process that a reward function runs in: how it is started, and what it does itself.

Text goes in, and one answer for each response comes back, so that the response at fault is known. What comes back is
not trusted, since the function's code could write it.

    asked      {"reward": the function, pickled}             once, at the start
    answered   {"ready": true} or {"failed": why}
    asked      {"group": 7, "responses": [...], "ground_truth": "..."}
    answered   {"at": [7, 0], "rewards": {...}} or {"at": [7, 0], "failed": why}, the second ends the group
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from harness.core.child_process import START_S, ChildProcess, line_of
from harness.tasks.scoring.group import Reward, RewardFailed, reward_one


def start_reward_process(reward: bytes) -> ChildProcess:
    """Start the process of a reward function, which answers first whether it is ready.

    Args:
        reward: the function, pickled.
    """
    process = ChildProcess("harness.tasks.scoring.process:serve_rewards")
    with suppress(ConnectionError, TimeoutError):  # it has died, which the first receive will tell
        process.send({"reward": base64.b64encode(reward).decode()}, START_S)
    return process


def serve_rewards(connection_fd: int) -> None:
    """Answer one group after the other until the connection ends; what the process does.

    Args:
        connection_fd: the socket.
    """
    os.set_inheritable(connection_fd, False)
    with socket.socket(fileno=connection_fd) as connection, connection.makefile("rb") as requests:
        try:
            reward = pickle.loads(base64.b64decode(json.loads(requests.readline())["reward"]))
        except (Exception, SystemExit) as error:
            connection.sendall(line_of({"failed": f"{type(error).__name__}: {error}"}))
            return
        connection.sendall(line_of({"ready": True}))
        for request in requests:
            for answer in _answers(reward, json.loads(request)):
                connection.sendall(line_of(answer))


def _answers(reward: Reward, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an answer for each response, up to the first one that fails."""
    for index, response in enumerate(request["responses"]):
        at = [request["group"], index]
        try:
            answer = {"at": at, "rewards": reward_one(reward, response, request["ground_truth"])}
        except RewardFailed as error:
            yield {"at": at, "failed": str(error)}
            return
        yield answer
