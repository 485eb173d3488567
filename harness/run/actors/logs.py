"""What the actors' processes print: into a file for each lane, and from there into the run's log."""

from __future__ import annotations

from pathlib import Path


class ProcessLogs:
    """The files that the actors of one run, libraries in C included, print into.

    Args:
        folder: where they are; None where the actors may be on other machines, whose output stays in Ray's own logs.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._lanes: dict[Path, str] = {}

    def file_for(self, lane: str) -> Path | None:
        """Return a new file for a lane's processes; one that replaces another goes on in it."""
        if self._folder is None:
            return None
        path = self._folder / f"{len(list(self._folder.glob('*.log')))}-{lane}.log"
        path.touch(mode=0o600)
        self._read[path], self._lanes[path] = 0, lane
        return path

    def new_lines(self) -> list[str]:
        """Return the whole lines printed since the last call, each with its lane in front."""
        lines: list[str] = []
        for path, done in self._read.items():
            with open(path, "rb") as file:
                file.seek(done)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = done + len(whole)
            lines += [f"{self._lanes[path]}: {line}" for line in whole.decode(errors="replace").splitlines()]
        return lines
