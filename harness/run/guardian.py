"""A process beside a command that ends what the command has started, when the command itself was killed.

Ray's agents, for one, live on for a minute after a SIGKILL of the driver, and what a reward function has sent into the
background lives for ever.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from harness.core.marked_processes import MARKS, end_marked, marked, with_mark
from harness.core.private_dir import remove_abandoned

LOOK_S = 1.0
"""Seconds between two looks at what there is, while the parts of a run start, and at folders after the end."""
LAST_LOOKS = 3
"""Looks at folders after the end: a process of vLLM that lost its mark and its parents may write on for a while."""
_STARTING, _STARTED = b"+", b"-"
_PROGRAM = (
    "import sys; _, parent, mark, *sys.path[:] = sys.argv; "
    "from harness.run.guardian import guard; guard(int(parent), mark)"
)


class Guardian:
    """Ends, if this process ends before ``close``, every program started in between, and what those have started.

    They are told by a mark in the environment that they inherit. A copy that this process forks and that starts no
    program bears none, and lives on. Folders that killed commands have left are removed.
    """

    def __init__(self) -> None:
        remove_abandoned()
        environment, self._mark = with_mark(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(os.getpid()), self._mark, *sys.path],
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the command's group is not for it
        )
        os.environ[MARKS] = environment[MARKS]

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Have the guardian note what starts in the block, while its parents live and tell whose it is."""
        self._say(_STARTING)
        try:
            yield
        finally:
            self._say(_STARTED)

    def _say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone
            self._process.stdin.write(word)
            self._process.stdin.flush()

    def close(self) -> None:
        """Send it away: who ends in order has ended the parts. Closing twice does no harm.

        What other libraries keep beside this process (a tracker's service, multiprocessing's) serves the next run, too.
        """
        if self._process.stdin is None or self._process.stdin.closed:
            return
        if others := [mark for mark in os.environ.get(MARKS, "").split() if mark != self._mark]:
            os.environ[MARKS] = " ".join(others)  # of guardians in other threads, or of a command that started this one
        else:
            os.environ.pop(MARKS, None)
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


def guard(parent: int, mark: str) -> None:
    """Wait for the end of a process, then end what bears its mark and remove its folders; what the guardian does.

    Standard input is a pipe whose other end only the parent holds. A child that it forked without starting a program
    holds it too, which is why the parent's end is waited for as well, where the system can tell it.

    Args:
        parent: the process's number.
        mark: see ``core.marked_processes``.
    """
    watched, known, starting = [0], set[psutil.Process](), 0
    with suppress(OSError, AttributeError):
        watched.append(os.pidfd_open(parent))
    while os.getppid() == parent:
        ready = select.select(watched, [], [], LOOK_S if starting else None)[0]
        word = os.read(0, 1) if 0 in ready else b""
        if ready and not word:
            break
        starting += (word == _STARTING) - (word == _STARTED)
        known |= marked(mark, known)
    end_marked(mark, known)
    for _ in range(LAST_LOOKS):
        remove_abandoned()
        time.sleep(LOOK_S)
