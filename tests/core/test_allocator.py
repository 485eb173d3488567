"""Freed memory stays with the process, unless the user has set the allocator up."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache

import pytest

from harness.core.allocator import allocator_environment, keep_freed_memory

COUNT_PAGES = """
import resource, sys
from harness.core.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory({})
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"x" * (int(sys.argv[2]) * 2**20)
    del block
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@cache
def pages_of_three_blocks(how: str, mib: int = 100) -> list[int]:
    given = how in ("by the environment", "given back")
    environment = os.environ | (allocator_environment({}, keeps_freed=how != "given back") if given else {})
    done = subprocess.run(
        [sys.executable, "-c", COUNT_PAGES, how, str(mib)], env=environment, check=True, capture_output=True, text=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("how", ["kept", "by the environment"])
def test_a_block_that_was_freed_is_used_again(how: str) -> None:
    """100 MiB are 25,600 pages of 4 KiB, or fewer larger ones."""
    first, *later = pages_of_three_blocks(how)
    assert max(later) < first / 10
    assert min(pages_of_three_blocks("as it is")) > first / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_block_of_a_layers_size_is_given_back() -> None:
    """By itself glibc keeps what is below 32 MiB, from the second one on."""
    assert max(pages_of_three_blocks("as it is", 20)[2:]) < 20 * 256 / 10
    assert min(pages_of_three_blocks("given back", 20)) > 20 * 256 / 2


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_the_users_own_setting_stands(name: str) -> None:
    assert not keep_freed_memory({name: "1"})
    assert allocator_environment({name: "1"}) == {}
