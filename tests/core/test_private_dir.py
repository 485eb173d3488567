"""Temporary folders whose owner is killed: the next command removes them, and no others."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.core.private_dir import OWNER, PrivateDir, remove_abandoned

KILLED = """
import os, signal
from harness.core.private_dir import PrivateDir
(PrivateDir().path / "weights").write_text("1")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def kill_an_owner(temporary: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(temporary)}, check=False)


def test_a_killed_owners_folder_is_removed_and_a_living_ones_kept(temporary: Path) -> None:
    kill_an_owner(temporary)
    (left,) = temporary.iterdir()
    assert sorted(os.listdir(left)) == [OWNER, "weights"]
    with PrivateDir() as mine:
        assert remove_abandoned() == [left]
        assert list(temporary.iterdir()) == [mine]
        assert mine.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_what_nobody_has_marked_as_a_harness_folder_is_kept(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).touch()
    (temporary / "grpo-link").symlink_to(elsewhere)
    (temporary / "grpo-notes").mkdir()
    (temporary / "grpo-pipe").mkdir()
    os.mkfifo(temporary / "grpo-pipe" / OWNER)
    (temporary / "grpo-file").touch()
    before = sorted(temporary.rglob("*"))
    assert remove_abandoned() == []
    assert sorted(temporary.rglob("*")) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_kept(temporary: Path) -> None:
    kill_an_owner(temporary)
    (left,) = temporary.iterdir()
    os.chown(left, 65534, 65534)
    assert remove_abandoned() == []
    assert left.exists()


def test_closing_twice_closes_nothing_of_others() -> None:
    folder = PrivateDir()
    folder.close()
    other = os.open(os.devnull, os.O_RDONLY)
    folder.close()
    os.close(other)


def test_a_folder_that_is_still_written_into_is_found_again(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_an_owner(temporary)
    (left,) = temporary.iterdir()
    (left / "cache").mkdir()
    with monkeypatch.context() as busy:
        busy.setattr("shutil.rmtree", lambda *_, **__: None)
        assert remove_abandoned() == []
    assert sorted(os.listdir(left)) == [OWNER, "cache"]
    assert remove_abandoned() == [left]
    assert list(temporary.iterdir()) == []
