"""A process beside this one that answers questions, and that can be killed at any moment from any thread.

The two sides talk over a socket in lines of JSON. What comes back is not trusted, and no question outlasts its
deadline. ``multiprocessing`` would import the caller's main module again, trust what comes back as a pickle, and leave
alone what the process has started.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

from harness.core.errors import Interrupted, quoted
from harness.core.marked_processes import end_marked, with_mark
from harness.core.terminal_text import plain

START_S = 60.0
"""Seconds that the process may take to start."""
GRACE_S = 2.0
"""Seconds that it may take to end by itself."""
POLL_S = 0.05
"""Seconds between two looks at ``should_stop`` while it works."""
Message = dict[str, Any]

_AT_ONCE_S = 0.001
_LONGEST_ANSWER = 1 << 20  # bytes
_PIPE = 1 << 16  # bytes that a pipe holds
_SET_CHILD_SUBREAPER = 36  # of prctl
_PROGRAM = (
    "import sys; _, module, function, connection, lifeline, *sys.path[:] = sys.argv; del sys.argv[1:]; "
    "from importlib import import_module; from harness.core.child_process import end_with, serve; "
    "end_with(int(lifeline)); serve(int(connection), getattr(import_module(module), function))"
)


class ChildProcess:
    """The process, seen from outside.

    It has this process's import path and working folder. What it prints is printed here, control characters written
    out. It ends with this process, however that ends. When it is killed, so is all that it has started, in sessions of
    their own too; but for what has another environment, where this process had ended by itself before.

    Args:
        prepare: what the process is to ``serve``, as ``package.module:function``.
        environment: its environment variables; None for this process's.

    Attributes:
        idle: it has started, and answered all that it was asked. For the caller to keep.
    """

    def __init__(self, prepare: str, environment: Mapping[str, str] | None = None) -> None:
        self.idle = False
        self._received = b""
        self._connection, theirs = socket.socketpair()
        lifeline, writer = os.pipe()
        self._lifeline: int | None = writer
        environment, self._mark = with_mark(os.environ if environment is None else environment)
        with theirs:
            arguments = [*prepare.split(":"), str(theirs.fileno()), str(lifeline), *sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,  # Ctrl-C is not for it, and its own children can be killed with it
                env=environment,
            )
        os.close(lifeline)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._outputs = [_Output(self._process.stdout, "stdout"), _Output(self._process.stderr, "stderr")]

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message, timeout_s: float) -> None:
        """Send one line; where the process has ended or does not read, ``receive`` will tell."""
        self._connection.settimeout(timeout_s)
        with suppress(ConnectionError, TimeoutError):
            self._connection.sendall(_line(message))

    def wait_until_ready(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Return when it can be asked.

        Raises:
            ConnectionError: it cannot start; the message says why.
            Interrupted: ``should_stop`` said so.
        """
        try:
            answer = self.receive(time.monotonic() + START_S, should_stop)
        except TimeoutError:
            raise ConnectionError(f"was not ready within {START_S:g} s") from None
        except ConnectionError as error:
            raise ConnectionError(f"{error} while it started") from None
        if answer.get("ready") is not True:
            raise ConnectionError(f"cannot start: {answer.get('failed')}")

    def receive(self, deadline: float, should_stop: Callable[[], bool] = lambda: False) -> Message:
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
            self._wait(min(max(left_s, _AT_ONCE_S), POLL_S))
        self._show()  # what was printed before the answer
        line, _, self._received = self._received.partition(b"\n")
        with suppress(ValueError, RecursionError):
            if isinstance(answer := json.loads(line), dict):
                return answer
        raise ConnectionError(f"sent {quoted(line)}, which is no answer")

    def _wait(self, timeout_s: float) -> None:
        """Wait for bytes of an answer and take them; show what was printed meanwhile."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        for output in self._outputs:
            if not output.is_over:
                poll.register(output.pipe, select.POLLIN)
        ready = [number for number, _ in poll.poll(timeout_s * 1e3)]
        self._show()
        if self._connection.fileno() not in ready:
            return
        try:
            data = self._connection.recv(_LONGEST_ANSWER, socket.MSG_DONTWAIT)
        except ConnectionResetError:  # it ended without reading all that it was sent
            data = b""
        if not data:
            raise ConnectionError(self._how_it_ended())
        self._received += data
        if len(self._received) > _LONGEST_ANSWER:
            raise ConnectionError(f"sent more than {_LONGEST_ANSWER} bytes at once")

    def _show(self) -> None:
        for output in self._outputs:
            output.show()

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"

    def close(self) -> None:
        """Let the process end by itself, or kill it."""
        self._connection.close()
        ends_by = time.monotonic() + GRACE_S
        while self._process.poll() is None and time.monotonic() < ends_by:
            self._show()  # it may wait for room to print
            time.sleep(_AT_ONCE_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process, and what it has started."""
        lifeline, self._lifeline = self._lifeline, None  # by a second call its number may be another file's
        if lifeline is None:
            return
        try:
            end_marked(self._mark)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._connection.close()
            for output in self._outputs:
                output.close()
            os.close(lifeline)


class _Output:
    """What a process prints into a pipe, on its way to this process's output."""

    def __init__(self, pipe: IO[bytes], name: str) -> None:
        self.pipe, self.is_over, self._name, self._begun = pipe, False, name, b""
        os.set_blocking(pipe.fileno(), False)

    def show(self) -> None:
        """Print the lines that have come, as many as the pipe holds: whoever prints without end does not hold us up."""
        with suppress(BlockingIOError, ValueError):  # nothing has, or it is closed
            data = os.read(self.pipe.fileno(), _PIPE)
            self.is_over = not data
            *lines, self._begun = (self._begun + data).split(b"\n")
            if len(self._begun) > _PIPE:
                lines, self._begun = [*lines, self._begun], b""
            self._print(lines)

    def close(self) -> None:
        """Print the rest, and close the pipe."""
        self.show()
        self._print([self._begun] if self._begun else [])
        self.pipe.close()

    def _print(self, lines: list[bytes]) -> None:
        with suppress(OSError, ValueError):  # nobody reads this process's output any more
            text = "".join(f"{plain(line.decode(errors='backslashreplace'))}\n" for line in lines)
            print(text, end="", file=getattr(sys, self._name), flush=True)


def end_with(lifeline_fd: int) -> None:
    """Have the kernel kill this process when the pipe loses its writer, and make it the parent of orphans of its own.

    It works even while a function holds the interpreter lock, as a regular expression does. PR_SET_PDEATHSIG would kill
    the process as soon as the thread that had started it ends.

    Args:
        lifeline_fd: read end of a pipe whose other end is open as long as the parent lives.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(lifeline_fd, False)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC)


def serve(connection_fd: int, prepare: Callable[[Iterator[Message]], Callable[[Message], Iterable[Message]]]) -> None:
    """Answer one question after the other until the connection ends.

    Args:
        connection_fd: a connected socket.
        prepare: is called once, may take the first messages as its own, and returns what answers each question.
    """
    os.set_inheritable(connection_fd, False)
    with socket.socket(fileno=connection_fd) as connection, connection.makefile("rb") as lines:
        questions = map(json.loads, lines)
        try:
            answers_to = prepare(questions)
        except BaseException as error:
            connection.sendall(_line({"failed": f"{type(error).__name__}: {error}"}))
            return
        connection.sendall(_line({"ready": True}))
        for question in questions:
            for answer in answers_to(question):
                connection.sendall(_line(answer))


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"
