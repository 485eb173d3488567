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
from harness.results import find_runs, load_run
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario
from tests.stand_ins.simulated_parts import build_simulated_parts

BLOCK = 4096
SCENARIO = 'steps: 4\nprofile: "off"\nevaluation: {every: 2, prompts: 4}\n'
BEFORE_A_RUN, IN_A_RUN, WHILE_SHOWN = (0, 2, 4), (6, 7, 8, 9, 10, 11, 12), (14,)


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


def run_on(out: Path, blocks: int, monkeypatch: pytest.MonkeyPatch) -> UserError:
    """Run a small scenario until its disk is full; return what it says."""
    file = out.parent / "trial.yaml"
    file.write_text(SCENARIO)
    disk = SmallDisk(out, blocks)
    monkeypatch.setattr(builtins, "open", disk.open)
    monkeypatch.setattr(io, "open", disk.open)
    with pytest.raises(UserError) as caught:
        run_scenario(load_scenario(str(file)), out, True, build_simulated_parts)
    monkeypatch.undo()
    assert os.strerror(errno.ENOSPC) in caught.value.what
    assert caught.value.fix
    assert not list(out.rglob("*draft*"))
    return caught.value


@pytest.mark.parametrize("blocks", BEFORE_A_RUN)
def test_a_run_for_which_there_is_no_room_leaves_no_folder(
    tmp_path: Path, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(tmp_path / "out", blocks, monkeypatch)
    assert [each for each in (tmp_path / "out").rglob("*") if each.is_file()] == []
    with pytest.raises(UserError, match="no runs"):
        find_runs(tmp_path / "out")


@pytest.mark.parametrize("blocks", IN_A_RUN)
def test_a_run_whose_disk_fills_up_has_failed_and_can_be_read(
    tmp_path: Path, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(tmp_path / "out", blocks, monkeypatch)
    runs, damaged = find_runs(tmp_path / "out")
    assert damaged == []
    run = load_run(runs[0].folder)
    assert (len(runs), run.status) == (1, "failed")
    assert os.strerror(errno.ENOSPC) in (run.manifest.error or "")
    assert [row.step for row in run.steps] == list(range(len(run.steps)))
    assert run.manifest.finished_at is not None


@pytest.mark.parametrize("blocks", WHILE_SHOWN)
def test_a_complete_run_stays_complete_where_its_report_finds_no_room(
    tmp_path: Path, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run_on(tmp_path / "out", blocks, monkeypatch)
    assert said.what.startswith("showing the results failed")
    ((run,), _) = find_runs(tmp_path / "out")
    assert (run.status, len(run.steps)) == ("completed", 4)
