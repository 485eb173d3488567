"""Temporary folders that are removed after a kill too: by the next command, which sees that their owner is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PREFIX = "grpo-"
OWNER = ".grpo-harness-owner"
"""The file in such a folder that its process holds a lock on. The kernel gives the lock back, however the process ends,
and unlike a process number it means the same in every container that sees the folder. No child inherits it. It says
which kernel that is: on a network's file system another machine's lock may not be seen."""
_OF_THIS_PROCESS: set[Path] = set()  # which may take the lock once more, and would lose it again then


class OwnFolder:
    """A new temporary folder that no other user may enter, removed by ``close``.

    Attributes:
        path: where it is.
    """

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            _OF_THIS_PROCESS.add(self.path)
            with suppress(FileNotFoundError):  # another command has looked before the lock was there, and removed it
                self._lock = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
                with suppress(OSError):  # a file system without locks, on which nobody takes a folder for abandoned
                    fcntl.lockf(self._lock, fcntl.LOCK_EX)
                    os.write(self._lock, _this_kernel())
                if os.fstat(self._lock).st_nlink:
                    return
                os.close(self._lock)

    def close(self) -> None:
        """Remove it with all that is in it; closing twice does no harm."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            _remove(self.path)
            os.close(lock)
            _OF_THIS_PROCESS.discard(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def remove_abandoned() -> list[Path]:
    """Remove this user's folders whose owners are gone, and return them."""
    removed = []
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        if owner.parent in _OF_THIS_PROCESS:
            continue
        with suppress(OSError):  # of another user, gone in the meantime, or on a file system without locks
            lock = os.open(owner, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                home, file = os.lstat(owner.parent), os.fstat(lock)
                if stat.S_ISDIR(home.st_mode) and stat.S_ISREG(file.st_mode) and home.st_uid == os.getuid():
                    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.read(lock, 64) != _this_kernel():
                        continue
                    if _remove(owner.parent):
                        removed.append(owner.parent)
            finally:
                os.close(lock)
    return removed


def _remove(folder: Path) -> bool:
    """Remove a folder; where something is still written into it, its owner's file stays for the next command to find.

    Returns:
        whether it is gone.
    """
    with suppress(OSError):
        for name in os.listdir(folder):
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif name != OWNER:
                with suppress(OSError):  # gone in the meantime
                    path.unlink()
        if os.listdir(folder) in ([], [OWNER]):
            (folder / OWNER).unlink(missing_ok=True)
            try:
                folder.rmdir()
            except OSError:  # something was written in this very moment
                (folder / OWNER).write_bytes(_this_kernel())
    return not folder.exists()


def _this_kernel() -> bytes:
    """What tells this start of the machine from others; the same in all its containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_bytes()
