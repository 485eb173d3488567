"""What main memory is left for this process: what the system can give, and what a cgroup allows."""

from __future__ import annotations

from pathlib import Path

import psutil

from harness.core.errors import UserError

STORE_SHARE = 0.3
"""Of the free main memory that Ray's object store may fill; Ray's own default, there of the memory not in use."""
_STORE_SPARE = 2**28
"""Bytes in the store beside weights: batches, and what Ray keeps for itself."""
_LEAST_STORE = 75 * 2**20
"""Ray refuses less."""
_MOST_SLOW_STORE = 10**10
"""Bytes of a store outside of shared memory; Ray refuses more."""


def free_main_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that new processes can take now: the smaller of the system's and the cgroup's."""
    free: int = psutil.virtual_memory().available
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + _reclaimable(cgroup / "memory.stat")))


def object_store_bytes(weights: int, free: int, shared: int) -> int:
    """Return how large to make Ray's object store, so that weights stay in memory and are not written to a disk.

    Ray alone takes a share of the memory at its start, whatever is asked of it: where a machine's memory starts small
    and grows, or a container has a limit, that may be less than the weights that a transport keeps there. Where
    /dev/shm is smaller, as in a container by default, Ray keeps its store in a file and warns of it.

    Args:
        weights: bytes of those; 0 where the transport passes them by another way.
        free: bytes of main memory that are available now.
        shared: bytes that are free in /dev/shm.

    Raises:
        UserError: the weights do not fit into the main memory that is free.
    """
    needed = weights + _STORE_SPARE if weights else _LEAST_STORE
    if weights and needed > free:
        raise UserError(
            f"the transport keeps {weights / 2**30:.2f} GiB of weights in Ray's object store, which needs "
            f"{needed / 2**30:.2f} GiB; free are {free / 2**30:.2f} GiB of main memory",
            "transport.type",
            "take smaller weights (model, transport_sweep.megabytes), set transport.type to disk, or free memory (in a "
            "container: raise its limit)",
        )
    in_memory = shared >= 2**30 or (weights and needed <= 0.95 * shared)
    most = round(0.95 * shared) if in_memory else _MOST_SLOW_STORE
    return max(min(round(STORE_SHARE * free), most), needed)


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
