"""A disk that fills up at any moment of a run: one clear error, and a run that says it failed, or none at all.

Where a small file system can be mounted, ``mount -t tmpfs -o size=24k`` met with the same; this stand-in needs no root.
"""

import builtins
import errno
import io
import os
from pathlib import Path
from typing import IO, Any

import pytest

from harness.core.errors import UserError
from harness.report import files
from harness.run.experiment import run_scenario
from tests.run.conftest import Load, Patch, runs_in
from tests.stand_ins.simulated_parts import build_simulated_parts

BLOCK = 4096


class SmallDisk:
    """Lets the files below a folder have so many blocks; a write beyond them is cut short, and the next one refused."""

    def __init__(self, folder: Path, blocks: int) -> None:
        self._folder, self._blocks, self._open = folder, blocks, builtins.open

    def room(self, file: io.FileIO) -> int:
        """Return up to which byte a file may grow."""
        sizes = [each.stat().st_size for each in self._folder.rglob("*") if each.is_file()]
        own = -(-os.fstat(file.fileno()).st_size // BLOCK)
        return (own + self._blocks - sum(-(-size // BLOCK) for size in sizes)) * BLOCK

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> IO[Any]:
        """Do what ``open`` does."""
        below = isinstance(file, str | Path) and Path(file).is_relative_to(self._folder)
        if not below or not set(mode) & set("wxa+"):
            return self._open(file, mode, buffering, *args, **kwargs)
        raw = _File(self, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **kwargs)


class _File(io.FileIO):
    def __init__(self, disk: SmallDisk, file: str | Path, mode: str) -> None:
        super().__init__(file, mode)
        self._disk = disk

    def write(self, data: Any) -> int:
        room = self._disk.room(self) - self.tell()
        if len(data) and room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data[:room])


@pytest.mark.parametrize("blocks", [0, 4, 6, 7, 9, 12, 14])
def test_a_disk_that_is_full_after_so_many_blocks(tmp_path: Path, load: Load, blocks: int, monkeypatch: Patch) -> None:
    """Before a run it leaves no folder; in a run, one that failed and can be read; while it is shown, a whole one."""
    trial, out = load('steps: 4\nprofile: "off"\nevaluation: {every: 2, prompts: 4}\n'), tmp_path / "out"
    full, disk = os.strerror(errno.ENOSPC), SmallDisk(out, blocks)
    with monkeypatch.context() as small:
        small.setattr(builtins, "open", disk.open)
        small.setattr(io, "open", disk.open)
        small.setattr(files, "page", lambda *told: "x" * 100 * BLOCK)  # drawing it takes far longer than the run
        with pytest.raises(UserError) as caught:
            run_scenario(trial, out, True, build_simulated_parts)
    assert full in caught.value.what
    assert caught.value.fix
    assert not list(out.rglob("*draft*"))
    if blocks < 6:
        assert [each for each in out.rglob("*") if each.is_file()] == []
        return
    (run,) = runs_in(out).values()
    assert [row.step for row in run.steps] == list(range(len(run.steps)))
    assert run.manifest.finished_at is not None
    if blocks > 12:
        assert caught.value.what.startswith("showing the results failed")
        assert (run.status, len(run.steps)) == ("completed", 4)
    else:
        assert run.status == "failed"
        assert full in (run.manifest.error or "")
