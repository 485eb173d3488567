"""Files found by name: scenarios and profiles, those of the current folder before those that come with the project."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import UserError

SUFFIXES = (".yaml", ".yml")
MOST_NAMED = 8
"""Files that an error names where none resembles what was typed."""
VERSUS = "-vs-"
"""Between the names of scenarios that one command sets side by side."""


def nearest(word: str, known: Iterable[str], count: int = 1, likeness: float = 0.6) -> list[str]:
    """Return up to ``count`` of the known words that are so much like ``word`` (1: equal), the nearest first."""
    by_lower = {item.lower(): item for item in known}
    return [by_lower[match] for match in difflib.get_close_matches(word.lower(), by_lower, n=count, cutoff=likeness)]


@dataclass(frozen=True)
class NamedFiles:
    """One kind of file: found by name in the current folder's own place first, then among those that are shipped.

    Attributes:
        kind: what one is called, such as ``scenario``.
        folder: name of the folder in which they are.
        example: a line that such a file may have.
        hint: added to the fix where a name is not found.
    """

    kind: str
    folder: str
    example: str
    hint: str = ""

    def folders(self) -> tuple[Path, ...]:
        """Return the folders in which names are looked up: the current one's, then the shipped one."""
        here = Path(self.folder)
        return (here,) if here.resolve() == self.shipped else (here, self.shipped)

    @property
    def shipped(self) -> Path:
        """The folder of those that come with the project."""
        package = Path(__file__).resolve().parents[1]
        packed = package / "shipped"  # in a wheel; in a checkout they stand at the top
        return (packed if packed.is_dir() else package.parent) / self.folder

    def files(self) -> list[Path]:
        """Return every file by name; the current folder's hide shipped ones of the same name."""
        by_name: dict[str, Path] = {}
        for folder in self.folders():
            for path in sorted(folder.glob("*")):
                if path.suffix in SUFFIXES:
                    by_name.setdefault(path.stem, path)
        return [by_name[name] for name in sorted(by_name)]

    def typed(self, name: str) -> str:
        """Return what a person types to name a file: its name where that finds it, else its path."""
        return name if any(file.stem == name for file in self.files()) else f"{name}{SUFFIXES[0]}"

    def find(self, path_or_name: str | Path) -> Path:
        """Return the file for a path or a name.

        Raises:
            UserError: there is none; the message lists the nearest names.
        """
        path = Path(path_or_name)
        if not str(path_or_name).strip():
            raise self._not_found(f"the name of the {self.kind} is empty", "", None)
        if path.suffix in SUFFIXES or len(path.parts) > 1:
            if os.path.isfile(path):  # Path's raises where a name is too long
                return path
            self._refuse_folder(path)
            folder = "no such folder" if not os.path.isdir(path.parent) else "no such file"
            raise self._not_found(f"no {self.kind} file {path} ({folder})", path.stem, display(path.parent))
        for file in self.files():
            if file.stem == str(path_or_name):
                return file
        self._refuse_folder(path)
        folders = " and ".join(display(folder) for folder in self.folders())
        raise self._not_found(f"no {self.kind} called {str(path_or_name)!r}", str(path_or_name), folders)

    def _refuse_folder(self, path: Path) -> None:
        if os.path.isdir(path):
            raise self._not_found(f"{display(path)} is a folder, not a {self.kind} file", path.stem, None)

    def _not_found(self, what: str, name: str, where: str | None) -> UserError:
        names = [file.stem for file in self.files()]
        close = nearest(name, names, 3)
        shown = names[:MOST_NAMED] + ["..."] * (len(names) > MOST_NAMED)
        guess = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(shown) or 'none'}"
        return UserError(what, where, f"{guess} {self.hint}".rstrip())


def display(path: Path) -> str:
    """Return the path relative to the current folder where it lies below it, else as it is."""
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)


SCENARIOS = NamedFiles("scenario", "scenarios", "steps: 60", "(`python -m harness list` shows them all)")
