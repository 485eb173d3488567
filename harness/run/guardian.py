"""A process beside a command that ends what the command has started, when the command itself was killed.

Ray's agents, for one, live on for a minute after a SIGKILL of the driver, and what a reward function has sent into the
background lives for ever.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from harness.core.marked_processes import MARKS, end_marked, marked, with_mark
from harness.core.own_folder import remove_abandoned

LOOK_S = 1.0
"""Seconds between two looks at what there is, while the parts of a run start."""
_STARTING, _STARTED = b"+", b"-"
_PROGRAM = (
    "import sys; _, parent, mark, *sys.path[:] = sys.argv; "
    "from harness.run.guardian import guard; guard(int(parent), mark)"
)


class Guardian:
    """Ends, with this process or at ``close``, every process that was started in between, and what those have started.

    They are told by a mark in the environment that they inherit. Folders that killed commands have left are removed.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self._before = os.environ.get(MARKS)
        environment, self._mark = with_mark(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(os.getpid()), self._mark, *sys.path],
            stdin=subprocess.PIPE,
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
        """End what is left of what was started; closing twice does no harm."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        end_marked(self._mark)
        if self._before is None:
            os.environ.pop(MARKS, None)
        else:
            os.environ[MARKS] = self._before
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
    watched, known, pause_s = [0], set[psutil.Process](), None
    with suppress(OSError, AttributeError):
        watched.append(os.pidfd_open(parent))
    while os.getppid() == parent:
        ready = select.select(watched, [], [], pause_s)[0]
        word = os.read(0, 1) if 0 in ready else b""
        if ready and not word:
            break
        pause_s = None if word == _STARTED else LOOK_S
        known |= marked(mark, known)
    end_marked(mark, known)
    remove_abandoned()
