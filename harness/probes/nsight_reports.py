"""The reports that nsys writes when its actors have ended: waiting until they are complete, and keeping them.

Ending Ray, or killing an actor's process group, kills the nsys that is still writing (ray#60904). So the actors are
asked to end, and nothing else is ended until every report is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from harness.core.atomic_files import move_whole
from harness.core.errors import RunStopped

SUFFIX = ".nsys-rep"
STABLE_S = 2.0
"""Seconds that a report keeps its size when it is complete."""
POLL_S = 0.1


def report_folders(ray_folder: Path) -> list[Path]:
    """Return where Ray has nsys write reports.

    Args:
        ray_folder: ``_temp_dir`` of ``ray.init``.
    """
    return sorted({path.resolve() for path in ray_folder.glob("session_*/logs/nsight")})


def wait_for_reports(
    folders: Callable[[], Iterable[Path]],
    tag: str,
    processes: Mapping[str, int],
    timeout_s: float,
    into: Path,
    stable_s: float = STABLE_S,
) -> list[Path]:
    """Wait until every profiled lane has a complete report, and move the reports into the run's folder.

    To be called after ``__ray_terminate__`` was sent to the actors, and before anything kills them or ends Ray. A
    lane is done when its actor and the nsys around it are gone and its report has kept its size for a while. A lane
    whose actor was replaced may have more than one report; those beyond the first are numbered.

    Args:
        folders: returns where Ray has nsys write.
        tag: of the run; nsys has it in its command line.
        processes: process ids of the profiled actors, on this machine, by lane.
        timeout_s: how long to wait for all of them together.
        into: where the reports go; made if need be.
        stable_s: how long a complete report keeps its size.

    Returns:
        The reports.

    Raises:
        RunStopped: a lane has no complete report in time; those of the others are moved all the same.
    """
    lanes = [_LaneReports(folders, f"{tag}-{lane}_", lane, pid, stable_s) for lane, pid in processes.items()]
    end = time.monotonic() + timeout_s
    complete = [lane for lane in lanes if lane.is_complete()]
    while len(complete) < len(lanes) and time.monotonic() < end:
        time.sleep(POLL_S)
        complete = [lane for lane in lanes if lane.is_complete()]
    moved = [path for lane in complete for path in _move(lane, into)]
    missing = [lane for lane in lanes if lane not in complete]
    if missing:
        states = "; ".join(f"{lane.lane}: {lane.state()}" for lane in missing)
        raise RunStopped(
            f"nsys left no complete report of {len(missing)} of {len(lanes)} lanes within {timeout_s:g} s: {states} "
            "(report_timeout_s is the bound; docs/nsight.md lists what prevents a report)"
        )
    return moved


class _LaneReports:
    """The reports of one lane as they grow."""

    def __init__(
        self, folders: Callable[[], Iterable[Path]], prefix: str, lane: str, pid: int, stable_s: float
    ) -> None:
        self._folders, self._prefix, self.lane, self._pid, self._stable_s = folders, prefix, lane, pid, stable_s
        self._seen: dict[Path, tuple[int, float]] = {}

    def files(self) -> dict[Path, int]:
        """Bytes of each report."""
        found = (path for folder in self._folders() for path in folder.glob(f"{self._prefix}*{SUFFIX}"))
        return {path: path.stat().st_size for path in sorted(found)}

    def is_complete(self) -> bool:
        """Whether nobody works on it any more, and it has kept its size for a while."""
        now, files = time.monotonic(), self.files()
        self._seen = {
            path: self._seen[path] if self._seen.get(path, (-1, now))[0] == size else (size, now)
            for path, size in files.items()
        }
        stable = all(now - since >= self._stable_s for _, since in self._seen.values())
        return any(files.values()) and stable and not is_alive(self._pid) and not _runs(self._prefix)

    def state(self) -> str:
        """What there is."""
        if is_alive(self._pid):
            return f"its process {self._pid} has not ended"
        files = ", ".join(f"a file of {size} bytes" for size in self.files().values()) or "no file"
        return f"{files}, and nsys {'is still at work' if _runs(self._prefix) else 'has ended'}"


def _move(reports: _LaneReports, into: Path) -> list[Path]:
    into.mkdir(parents=True, exist_ok=True)
    files = [path for path, size in reports.files().items() if size]
    names = [f"{reports.lane}{SUFFIX}", *(f"{reports.lane}-{number}{SUFFIX}" for number in range(1, len(files)))]
    for file, name in zip(files, names, strict=True):
        move_whole(file, into / name)
    return [into / name for name in names]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _runs(words: str) -> bool:
    """Whether some process has these words in its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words.encode() in entry.read_bytes():
                return True
        except OSError:  # it has just ended
            continue
    return False
