"""Locks on files and folders, which end with the process that holds them, however it ends.

A file system without locks has none to give: there everybody gets what is asked for.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from harness.core.regular_files import open_regular


def lock(file: int | IO[bytes], *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file until it is closed; return False where another process has it and this one does not wait."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock of a regular file: it writes there. False where there is no such file."""
    try:
        with open_regular(path) as file:
            return not lock(file, shared=True)
    except OSError:
        return False


@contextmanager
def holding(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a file or folder for the length of a block, which gets whether it does.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield lock(descriptor, wait=wait)
    finally:
        os.close(descriptor)
