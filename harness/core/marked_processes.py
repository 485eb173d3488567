"""Processes told by a mark in the environment that they were started with, and what descends from them.

A mark stays where a family is lost: in a process with a session of its own (setsid) or whose parent has ended (a double
fork). What was given another environment is found as a descendant, as long as its ancestors live.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

MARKS = "GRPO_HARNESS_MARKS"
"""The environment variable: the marks of a process, with spaces between, those of its ancestors first."""
GONE_S = 5.0
"""Seconds that killed processes may take to go."""
STARTING_S = 3.0
"""Seconds within which a process can be read after its start, which psutil tells to a second."""


def with_mark(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return an environment with a new mark added, and the mark."""
    mark = secrets.token_hex(8)
    return {**environment, MARKS: f"{environment.get(MARKS, '')} {mark}".lstrip()}, mark


def marked(mark: str, known: Iterable[psutil.Process] = ()) -> set[psutil.Process]:
    """Return the processes of this user that bear the mark, and their descendants, but this process.

    Args:
        mark: of ``with_mark``.
        known: more that live or have lived, of which the descendants are wanted. A process that shows another title, as
            Ray's and vLLM's do, may have written it over its mark.
    """
    import psutil

    processes = {each.pid: each for each in psutil.process_iter(["ppid", "environ"])}
    found = {pid for pid, each in processes.items() if mark in (each.info["environ"] or {}).get(MARKS, "").split()}
    found |= {each.pid for each in known if each.pid in processes and each == processes[each.pid]}
    while more := {pid for pid, each in processes.items() if each.info["ppid"] in found} - found:
        found |= more
    return {each for pid, each in processes.items() if pid in found and pid != os.getpid() and _lives(each)}


def _lives(process: psutil.Process) -> bool:
    """Whether it still runs; a killed one whose parent has not looked at it yet does not."""
    import psutil

    try:
        return str(process.status()) not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _starts(process: psutil.Process) -> bool:
    """Whether it has just been started and shows no environment yet, as between its old program and its new one."""
    import psutil

    try:
        return time.time() - process.create_time() < STARTING_S and not process.environ() and _lives(process)
    except psutil.Error:
        return False


def end_marked(mark: str, known: Iterable[psutil.Process] = ()) -> None:
    """Kill every process that ``marked`` finds; by its number and start, so that no other one is struck.

    All are stopped before the first one is killed, since whoever forks faster than it is killed would escape. What this
    process has just started is looked at again once its environment, with the mark or without, can be read.
    """
    import psutil

    stopped: set[psutil.Process] = set()
    while True:
        starts = any(map(_starts, set(psutil.Process().children(recursive=True)) - stopped))
        found = marked(mark, {*known, *stopped}) - stopped
        if not (found or starts):
            break
        for process in found:
            with suppress(psutil.Error):
                process.suspend()
        stopped |= found
    for process in stopped:
        with suppress(psutil.Error):
            process.kill()
    ends_by = time.monotonic() + GONE_S
    while stopped and any(map(_lives, stopped)) and time.monotonic() < ends_by:
        time.sleep(0.005)
