"""The process that a reward function runs in: seen from outside, and what it does itself.

The two sides talk over a socket in lines of JSON. Text goes in, and one answer for each response comes back, so that
the response at fault is known. What comes back is not trusted, since the function's code could write it.

    asked      {"reward": the function, pickled}             once, at the start
    answered   {"ready": true} or {"failed": why}
    asked      {"group": 7, "responses": [...], "ground_truth": "..."}
    answered   {"at": [7, 0], "rewards": {...}} or {"at": [7, 0], "failed": why}, the second ends the group
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from harness.errors import Interrupted
from harness.scoring.group import Reward, RewardFailed, reward_one, short

START_S = 60.0
"""Seconds that the process may take to start and to import the function."""
GRACE_S = 2.0
"""Seconds that it may take to end by itself."""
POLL_S = 0.05
"""Seconds between two looks at ``should_stop`` while the function works."""

_AT_ONCE_S = 0.001
_LONGEST_ANSWER = 1 << 20  # bytes
_PROGRAM = (
    "import sys; _, connection, lifeline, *sys.path[:] = sys.argv; del sys.argv[1:]; "
    "from harness.scoring.process import serve_rewards; serve_rewards(int(connection), int(lifeline))"
)


class RewardProcess:
    """The process, seen from outside.

    It has this process's import path, working folder, output and environment. It ends with this process, however that
    ends, and when it is killed, so is all that the function has started in it.

    Args:
        reward: the function, pickled.

    Attributes:
        idle: it has started, and answered all that it was asked.
    """

    def __init__(self, reward: bytes) -> None:
        self._connection, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, str(theirs.fileno()), str(lifeline), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,  # Ctrl-C is not for it, and its own children can be killed with it
            )
        os.close(lifeline)
        self.idle = False
        self._received = b""
        with suppress(ConnectionError, TimeoutError):  # it has died, which the first receive will tell
            self.send({"reward": base64.b64encode(reward).decode()}, START_S)

    def send(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send one line.

        Raises:
            ConnectionError: the process has ended.
            TimeoutError: it does not read.
        """
        self._connection.settimeout(timeout_s)
        self._connection.sendall(_line(message))

    def receive(self, deadline: float, should_stop: Callable[[], bool]) -> dict[str, Any]:
        """Return the next answer.

        Args:
            deadline: when to give up, on the clock of ``time.monotonic``. What has come by then still counts.
            should_stop: asked every ``POLL_S``.

        Raises:
            TimeoutError: none came in time.
            ConnectionError: the process has ended, or sent what is no answer; the message says how, or what.
            Interrupted: ``should_stop`` said so.
        """
        while b"\n" not in self._received:
            if should_stop():
                raise Interrupted("stopped while scoring")
            left_s = deadline - time.monotonic()
            if not self._receive_some(min(max(left_s, _AT_ONCE_S), POLL_S)) and left_s <= 0:
                raise TimeoutError
        line, _, self._received = self._received.partition(b"\n")
        return _parse(line)

    def _receive_some(self, timeout_s: float) -> bool:
        """Wait for bytes; return whether any came."""
        self._connection.settimeout(timeout_s)
        try:
            data = self._connection.recv(65536)
        except TimeoutError:
            return False
        except ConnectionResetError:  # it ended without reading all that it was sent
            data = b""
        if not data:
            raise ConnectionError(self._how_it_ended())
        self._received += data
        if len(self._received) > _LONGEST_ANSWER:
            raise ConnectionError(f"sent more than {_LONGEST_ANSWER} bytes at once")
        return True

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return (
            f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        )

    def close(self) -> None:
        """Let the process end by itself, or kill it."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        os.close(self._lifeline)


def serve_rewards(connection_fd: int, lifeline_fd: int) -> None:
    """Answer one group after the other until the connection ends; what the process does.

    Args:
        connection_fd: the socket.
        lifeline_fd: read end of a pipe whose other end is open as long as the parent lives.
    """
    _end_with(lifeline_fd)
    os.set_inheritable(connection_fd, False)
    with socket.socket(fileno=connection_fd) as connection, connection.makefile("rb") as requests:
        try:
            reward = pickle.loads(base64.b64decode(json.loads(requests.readline())["reward"]))
        except (Exception, SystemExit) as error:
            connection.sendall(_line({"failed": f"{type(error).__name__}: {error}"}))
            return
        connection.sendall(_line({"ready": True}))
        for request in requests:
            for answer in _answers(reward, json.loads(request)):
                connection.sendall(_line(answer))


def _end_with(lifeline_fd: int) -> None:
    """Have the kernel kill this process when the pipe loses its writer.

    It works even while a function holds the interpreter lock, as a regular expression does. PR_SET_PDEATHSIG would kill
    the process as soon as the thread that had started it ends.
    """
    os.set_inheritable(lifeline_fd, False)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC)


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


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ConnectionError(f"sent {short(line)}, which is no answer")
    return answer
