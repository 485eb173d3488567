"""A process beside this one that answers questions: seen from outside, and what it does to end with its parent.

The two sides talk over a socket in lines of JSON. What comes back is not trusted. The process can be killed at any
moment, from any thread, and no question to it outlasts its deadline.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from harness.core.errors import Interrupted

START_S = 60.0
"""Seconds that the process may take to start."""
GRACE_S = 2.0
"""Seconds that it may take to end by itself."""
POLL_S = 0.05
"""Seconds between two looks at ``should_stop`` while it works."""

_AT_ONCE_S = 0.001
_LONGEST_ANSWER = 1 << 20  # bytes
_PROGRAM = (
    "import sys; _, module, function, connection, lifeline, *sys.path[:] = sys.argv; del sys.argv[1:]; "
    "from importlib import import_module; from harness.core.child_process import end_with; end_with(int(lifeline)); "
    "getattr(import_module(module), function)(int(connection))"
)


class ChildProcess:
    """The process, seen from outside.

    It has this process's import path, working folder and output. It ends with this process, however that ends, and when
    it is killed, so is all that it has started.

    Args:
        serve: what the process does, as ``package.module:function``. The function is called with the number of a file
            descriptor, that of a connected socket, and returns when the connection ends.
        environment: its environment variables; None for this process's.

    Attributes:
        idle: it has started, and answered all that it was asked. For the caller to keep.
    """

    def __init__(self, serve: str, environment: Mapping[str, str] | None = None) -> None:
        self._connection, theirs = socket.socketpair()
        lifeline, writer = os.pipe()
        self._lifeline: int | None = writer
        with theirs:
            arguments = [*serve.split(":"), str(theirs.fileno()), str(lifeline), *sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,  # Ctrl-C is not for it, and its own children can be killed with it
                env=environment,
            )
        os.close(lifeline)
        self.idle = False
        self._received = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send one line.

        Raises:
            ConnectionError: the process has ended.
            TimeoutError: it does not read.
        """
        self._connection.settimeout(timeout_s)
        self._connection.sendall(line_of(message))

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
        is_late = False
        while b"\n" not in self._received:
            if is_late:  # bytes may come for ever without making an answer
                raise TimeoutError
            if should_stop():
                raise Interrupted("stopped while scoring")
            left_s = deadline - time.monotonic()
            is_late = left_s <= 0
            self._receive_some(min(max(left_s, _AT_ONCE_S), POLL_S))
        line, _, self._received = self._received.partition(b"\n")
        return _parse(line)

    def _receive_some(self, timeout_s: float) -> None:
        """Wait for bytes, and take what has come."""
        self._connection.settimeout(timeout_s)
        try:
            data = self._connection.recv(_LONGEST_ANSWER)
        except TimeoutError:
            return
        except ConnectionResetError:  # it ended without reading all that it was sent
            data = b""
        if not data:
            raise ConnectionError(self._how_it_ended())
        self._received += data
        if len(self._received) > _LONGEST_ANSWER:
            raise ConnectionError(f"sent more than {_LONGEST_ANSWER} bytes at once")

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
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:  # by a second call its number may be another file's
            os.close(lifeline)


def end_with(lifeline_fd: int) -> None:
    """Have the kernel kill this process when the pipe loses its writer.

    It works even while a function holds the interpreter lock, as a regular expression does. PR_SET_PDEATHSIG would kill
    the process as soon as the thread that had started it ends.

    Args:
        lifeline_fd: read end of a pipe whose other end is open as long as the parent lives.
    """
    os.set_inheritable(lifeline_fd, False)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC)


def line_of(message: dict[str, Any]) -> bytes:
    """Return a message as it travels: JSON in ASCII, and the end of the line."""
    return json.dumps(message).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        text = repr(line)
        raise ConnectionError(f"sent {text if len(text) <= 80 else f'{text[:77]}...'}, which is no answer")
    return answer
