"""The events of one process, in memory that the system writes to disk also after a kill."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from pathlib import Path
from threading import RLock

FIRST_BYTES, MOST_GROWTH = 2**16, 2**24


class EventFile:
    """A file that lines are added to at the price of a copy in memory: it is mapped, and grows by doubling.

    Room is taken from the disk before it is mapped, so that a full disk ends the recording and never the program. A
    line is one call of ``mmap.write``, which the interpreter's lock makes whole: threads take a lock to grow the file.

    Attributes:
        lost: lines that came after the disk was full.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lost = path, 0
        self._lock, self._size = RLock(), FIRST_BYTES  # a signal's handler may add a line while the file grows
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # by which a reader knows that the process lives
        os.posix_fallocate(self._descriptor, 0, self._size)
        self._map: mmap.mmap | None = mmap.mmap(self._descriptor, self._size)

    def add(self, line: bytes) -> None:
        """Add a whole line; any thread may."""
        try:
            self._map.write(line)  # type: ignore[union-attr]
        except (ValueError, AttributeError):  # there is no room for it, or no map
            self._grow_and_add(line)

    def _grow_and_add(self, line: bytes) -> None:
        with self._lock:
            while self._map is not None:
                try:
                    self._map.write(line)
                    return
                except ValueError:
                    self._grow(self._map.tell() + len(line))
            self.lost += 1

    def _grow(self, end: int) -> None:
        size = max(end, self._size + min(self._size, MOST_GROWTH))
        try:
            os.posix_fallocate(self._descriptor, self._size, size - self._size)
            if self._map is not None and size > self._size:
                self._map.resize(size)
                self._size = size
        except OSError as error:
            self._unmap()
            print(f"recording stopped: {self.path.name}: {error.strerror or error}", file=sys.stderr)

    def close(self) -> None:
        """Give back the room that was not used; closing twice does no harm."""
        with self._lock:
            if self._descriptor < 0:
                return
            self._unmap()
            os.close(self._descriptor)
            self._descriptor = -1

    def _unmap(self) -> None:
        closed, self._map = self._map, None
        if closed is not None:
            end = closed.tell()
            closed.close()
            os.ftruncate(self._descriptor, end)

    def leave(self) -> None:
        """Forget the file without a word to it: after a fork it is the parent's."""
        self._lock = RLock()
        self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
