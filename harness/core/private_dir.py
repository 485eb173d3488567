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
_OF_THIS_PROCESS: set[Path] = set()  # which would lose a lock as soon as it closed the file once more


class PrivateDir:
    """A new temporary folder ``path`` that no other user may enter, removed by ``close``."""

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
        folder = owner.parent
        if folder in _OF_THIS_PROCESS:
            continue
        with suppress(OSError):  # of another user, gone in the meantime, or on a file system without locks
            lock = os.open(owner, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _is_abandoned(folder, lock) and _remove(folder):
                    removed.append(folder)
            finally:
                os.close(lock)
    return removed


def _is_abandoned(folder: Path, lock: int) -> bool:
    """Take the lock of a folder that is this user's and was made by this kernel."""
    home = os.lstat(folder)
    if not stat.S_ISDIR(home.st_mode) or home.st_uid != os.getuid() or not stat.S_ISREG(os.fstat(lock).st_mode):
        return False
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return os.read(lock, 64) == _this_kernel()


def _remove(folder: Path) -> bool:
    """Remove a folder, its owner's file last: where something is still written, the next command finds it."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != OWNER:
                path.unlink(missing_ok=True)
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
