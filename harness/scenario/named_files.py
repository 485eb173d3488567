"""YAML files that can be called by their name: found in the current folder's own place first, then in the project's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import harness
from harness.core.errors import UserError
from harness.scenario.problems import nearest

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class NamedFiles:
    """One kind of such files.

    Attributes:
        kind: what one is called, such as ``scenario``.
        folder: name of the folder in which they are.
        hint: added to the fix where a name is not found.
    """

    kind: str
    folder: str
    hint: str = ""

    def folders(self) -> tuple[Path, ...]:
        """Return the folders in which names are looked up: the current one's, then the project's own."""
        own, here = Path(harness.__file__).resolve().parents[1] / self.folder, Path(self.folder)
        return (here,) if here.resolve() == own else (here, own)

    def files(self) -> list[Path]:
        """Return every file by name; the current folder's hide the project's own of the same name."""
        by_name: dict[str, Path] = {}
        for folder in self.folders():
            for path in sorted(folder.glob("*")):
                if path.suffix in SUFFIXES:
                    by_name.setdefault(path.stem, path)
        return [by_name[name] for name in sorted(by_name)]

    def find(self, path_or_name: str | Path) -> Path:
        """Return the file for a path or a name.

        Raises:
            UserError: there is none; the message lists the nearest names.
        """
        path = Path(path_or_name)
        if path.suffix in SUFFIXES or len(path.parts) > 1:
            if path.is_file():
                return path
            folder = "no such folder" if not path.parent.is_dir() else "no such file"
            raise self._not_found(f"no {self.kind} file {path} ({folder})", path.stem, display(path.parent))
        for file in self.files():
            if file.stem == str(path_or_name):
                return file
        folders = " and ".join(display(folder) for folder in self.folders())
        raise self._not_found(f"no {self.kind} called {str(path_or_name)!r}", str(path_or_name), folders)

    def _not_found(self, what: str, name: str, where: str) -> UserError:
        names = [file.stem for file in self.files()]
        close = nearest(name, names, 3)
        guess = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(names) or 'none'}"
        return UserError(what, where, f"{guess} {self.hint}".rstrip())


def read_text(path: Path) -> str:
    """Return the text of a file that a person wrote.

    Raises:
        UserError: it is not UTF-8, or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x})"
        raise UserError(what, display(path), "save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", display(path), "check its permissions") from None


def display(path: Path) -> str:
    """Return the path relative to the current folder where it lies below it, else as it is."""
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)
