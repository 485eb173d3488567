"""Peak main memory of a run's processes, from the kernel's own high-water marks: read once, so that a run pays nothing.

Sources: proc(5) on ``VmHWM``, ``smaps_rollup`` and ``clear_refs``. Linux.
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


def main_memory_peak(pids: Collection[int], proc: Path = Path("/proc")) -> MainMemory | None:
    """Return what these processes and all below them have held at most; None where it cannot be read.

    Pages that processes share count once: each process's mark is lowered by what it shares now (its resident less its
    proportional set size).

    Args:
        pids: of processes; those that have ended are left out.
        proc: another folder in tests.
    """
    family = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            family |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    peaks = []
    for pid in family:
        with suppress(OSError, LookupError, ValueError):  # it has ended, or is another user's
            peaks.append(_own_peak(proc / str(pid)))
    return MainMemory(sum(peaks), len(peaks)) if peaks else None


def _own_peak(process: Path) -> int:
    now = _sizes(process / "smaps_rollup")
    return _sizes(process / "status")["VmHWM"] - now["Rss"] + now["Pss"]


def _sizes(file: Path) -> dict[str, int]:
    """The lines of a file that are sizes in kB, in bytes."""
    lines = [line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}
