"""The C library's allocator, told to keep what torch frees, or to give it back at once.

By default glibc hands freed blocks of more than 32 MiB, and the top of the heap, back to the kernel, which clears them
page by page when the next ones are made. A training pass makes the same tensors again every time. Kept, a pass by
itself takes 0.95 to 0.98 of the CPU seconds in float32 and 0.82 to 0.92 in bfloat16 (3M to 100M parameters, one
thread), at the same peak; the quickstart's steps on actors take 0.96 and 0.95 of their seconds, on threads of one
process 0.98 and about the same. Blocks of more than 256 MiB still go back: weights of 0.5 GiB that the object
store took as one block each time left holes, until their sender held 4.5 GiB. There is one arena, since the others keep
no block above 64 MiB.

Where a process makes and frees whole layers of unlike sizes all the time, as a rank that holds a piece of the model
does, what is kept is full of holes. By default that is so too: glibc raises the size from which a block is mapped by
itself to the largest one that was freed, up to 32 MiB. Of four ranks that had 0.55 GiB in use each held 1.2 GiB, and
0.78 GiB with that size fixed.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

_SETTINGS = {  # by the names of the environment, with their numbers in malloc.h
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": (-3, 2**28),
    "MALLOC_ARENA_MAX": (-8, 1),
}
_GIVES_BACK = {"MALLOC_TRIM_THRESHOLD_": 2**24, "MALLOC_MMAP_THRESHOLD_": 2**20, "MALLOC_ARENA_MAX": 1}


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Set this process's allocator; the arenas count only before there are threads.

    Returns:
        Whether it was set: not on another C library, nor where the user did.
    """
    if platform.libc_ver()[0] != "glibc" or not allocator_environment(environment):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return [mallopt(number, value) for number, value in _SETTINGS.values()] == [1, 1, 1]


def allocator_environment(environment: Mapping[str, str] = os.environ, *, keeps_freed: bool = True) -> dict[str, str]:
    """Return the variables that set the allocator of a process about to start; none where the user set it up.

    Args:
        environment: of this process.
        keeps_freed: whether that one keeps what it frees; else it gives back blocks of 1 MiB and more at once.
    """
    if any(environment.get(name) for name in (*_SETTINGS, "GLIBC_TUNABLES", "LD_PRELOAD")):
        return {}
    settings = {name: value for name, (_, value) in _SETTINGS.items()} if keeps_freed else _GIVES_BACK
    return {name: str(value) for name, value in settings.items()}
