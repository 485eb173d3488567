"""What main memory is left for this process: what the system can give, and what a cgroup allows."""

from __future__ import annotations

from pathlib import Path

import psutil


def free_main_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that new processes can take now: the smaller of the system's and the cgroup's."""
    free: int = psutil.virtual_memory().available
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + _reclaimable(cgroup / "memory.stat")))


def _reclaimable(path: Path) -> int:
    """Bytes of files in memory that the cgroup counts as used and gives back when asked for."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.split()[:1] in (["inactive_file"], ["active_file"]))
    except (OSError, ValueError, IndexError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" where there is no limit
        return None
