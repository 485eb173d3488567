"""Which run is meant: the only one of a folder, or the one that is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import UserError
from harness.results import Run, find_run_folders, load_run, read_manifest

SHOWN = 12


def choose_run(path: Path, name: str | None = None) -> Run:
    """Return the run at or below a folder.

    Args:
        path: a run's folder, or one above.
        name: of the run's folder, that folder's way from ``path``, or the run's arm; None where there is one run only.

    Raises:
        UserError: there is no run, none of that name, or more than one that fits.
    """
    folders = find_run_folders(path)
    found = folders if name is None else [folder for folder in folders if _is_called(folder, path, name)]
    if len(found) == 1:
        return load_run(found[0])
    shown = _shown(found or folders, path)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    listed = ", ".join(shown[:SHOWN]) + more
    if not found:
        raise UserError(f"no run in {str(path)!r} is called {name!r}; there are {listed}", "--run", "name one of them")
    called = "" if name is None else f" called {name!r}"
    raise UserError(
        f"{len(found)} runs in {str(path)!r}{called}: {listed}", "--run", "name one with --run, or its folder"
    )


def _is_called(folder: Path, path: Path, name: str) -> bool:
    if name in (folder.name, str(folder.relative_to(path))):
        return True
    try:
        return read_manifest(folder).arm == name
    except UserError:  # a damaged run beside the one that is asked for
        return False


def _shown(folders: Sequence[Path], path: Path) -> list[str]:
    """Return the names of runs; their way from ``path`` where runs of several experiments share names."""
    names = [folder.name if folder != path else str(folder) for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder.relative_to(path)) for folder in folders]
