"""Peak main memory of a run's processes, from the kernel's own high-water marks: read once, so that a run pays nothing.

Source: proc(5) on ``status`` and ``clear_refs``. Linux.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil


class MainMemory(NamedTuple):
    """Bytes that processes held at most, each at its own time, and how many processes they were."""

    num_bytes: int
    processes: int


def forget_own_peak(proc: Path = Path("/proc")) -> None:
    """Have this process's mark begin anew from what it holds now; where the kernel does not allow it, it stays."""
    with suppress(OSError):
        (proc / "self/clear_refs").write_text("5", encoding="ascii")


def with_children(pids: Collection[int]) -> set[int]:
    """Return these processes and all below them."""
    found = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return found


def main_memory_peak(pids: Collection[int], proc: Path = Path("/proc")) -> MainMemory | None:
    """Return what processes have held at most; None where none of them can be read. Those that have ended are left out.

    What they share counts once: pages of files once for each program (its own and its libraries'), by the process that
    has most of them; shared memory likewise, once for all. Both are taken as they are now, since only the whole of a
    process has a high-water mark.

    Args:
        pids: of processes that belong together.
        proc: another folder in tests.
    """
    own: list[int] = []
    files: dict[str, int] = {}
    shared = 0
    for pid in pids:
        with suppress(OSError, LookupError, ValueError):  # it has ended, or is another user's
            program, sizes = str((proc / str(pid) / "exe").readlink()), _sizes(proc / str(pid) / "status")
            own.append(sizes["VmHWM"] - sizes["RssFile"] - sizes["RssShmem"])
            files[program] = max(files.get(program, 0), sizes["RssFile"])
            shared = max(shared, sizes["RssShmem"])
    return MainMemory(sum(own) + sum(files.values()) + shared, len(own)) if own else None


def _sizes(status: Path) -> dict[str, int]:
    """The lines of a process's status that are sizes in kB, in bytes."""
    lines = [line.split() for line in status.read_text(encoding="utf-8", errors="replace").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}
