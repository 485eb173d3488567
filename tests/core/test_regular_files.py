"""Only regular files are read, at once and up to a bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core.regular_files import open_regular, read_regular


def test_a_file_is_read_through_links_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with open_regular(tmp_path / "file") as file:
        assert file.read(2) == b"12"
    with pytest.raises(OSError, match="it has 5 bytes, must have at most 4"):
        read_regular(tmp_path / "file", 4)


def test_a_file_that_claims_to_be_empty_is_read_up_to_its_bound() -> None:
    with pytest.raises(OSError, match="must have at most 3"):
        read_regular("/proc/self/status", 3)


def test_what_may_never_end_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="no regular file"):
            read_regular(odd)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 256])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011  (whatever the system calls it)
        read_regular(name)
    assert caught.value.strerror
