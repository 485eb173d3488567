"""Freed memory stays with the process, unless the user has set the allocator up."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from harness.core.allocator import allocator_environment, keep_freed_memory

COUNT_PAGES = """
import resource, sys
from harness.core.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory({})
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"x" * (100 * 2**20)
    del block
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_of_three_blocks(how: str) -> list[int]:
    environment = os.environ | (allocator_environment({}) if how == "by the environment" else {})
    done = subprocess.run(
        [sys.executable, "-c", COUNT_PAGES, how], env=environment, check=True, capture_output=True, text=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("how", ["kept", "by the environment"])
def test_a_block_that_was_freed_is_used_again(how: str) -> None:
    """100 MiB are 25,600 pages of 4 KiB, or fewer larger ones."""
    first, *later = pages_of_three_blocks(how)
    assert max(later) < first / 10
    assert min(pages_of_three_blocks("as it is")) > first / 2


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_the_users_own_setting_stands(name: str) -> None:
    assert not keep_freed_memory({name: "1"})
    assert allocator_environment({name: "1"}) == {}
