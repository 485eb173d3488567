"""Files that others may have put there: only regular ones are read, at once and up to a bound."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_BYTES = 2**30
"""What is read of one file at most, where the caller has no bound of its own: 100 times our longest run's spans."""


def open_regular(path: str | Path) -> BufferedReader:
    """Open a file for reading. A pipe or a device, which may never end, is refused without waiting for it.

    Raises:
        OSError: there is no such file, it is no regular one, it may not be read, or no file can have that name;
            ``strerror`` says which.
    """
    try:
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  (the caller's to close)
    except ValueError:  # a null byte, or half of a surrogate pair
        raise OSError(errno.EINVAL, "no file can have that name", str(path)) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def read_regular(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what a file holds.

    Raises:
        OSError: as ``open_regular``, or it has more than ``most_bytes`` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most_bytes else file.read(most_bytes + 1)  # those of /proc say that they are empty
        if max(size, len(content)) > most_bytes:
            size = max(size, len(content))
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, must have at most {most_bytes:,}", str(path))
    return content


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for whoever may write into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)
