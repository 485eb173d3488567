"""From folders to the file: which experiments are shown, their verdicts, and the writing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.compare.experiments import Experiment, gather
from harness.compare.verdicts import judgements
from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.report.html.chapter import Chapter, report
from harness.report.html.material import read_material
from harness.results import DamagedRun, find_run_folders


def make_report(paths: Sequence[Path], out: Path, everything: bool = False) -> list[str]:
    """Write the report of the runs at or below the paths.

    Args:
        out: the file; replaced as a whole, or left as it was where something fails.
        everything: show every experiment in full, not the newest only.

    Returns:
        a sentence for each run that was left out because it cannot be read.

    Raises:
        UserError: a path does not exist or holds no readable run, or ``out`` cannot be written.
    """
    _check_target(out)
    experiments, damaged = gather(paths, brief=True)
    folders = {folder.resolve(): folder for path in paths for folder in find_run_folders(path)}
    chapters = _chapters(experiments, list(folders.values()), damaged, everything)
    left_out = [f"left out {str(item.folder)!r}: {item.error.what}" for item in damaged]
    _write(out, report(chapters, experiments, [f"{item.folder.name}: {item.error.what}" for item in damaged]))
    return left_out


def _chapters(
    experiments: Sequence[Experiment], folders: Sequence[Path], damaged: list[DamagedRun], everything: bool
) -> list[Chapter]:
    """Read the experiments to show, newest first; runs that turn out to be damaged join the others."""
    chapters = list[Chapter]()
    for experiment in reversed(experiments):
        chapter = _chapter(experiment, folders, damaged)
        if chapter is not None:
            chapters.append(chapter)
            if not everything:
                break
    if not chapters:
        raise damaged[-1].error
    return chapters


def _chapter(experiment: Experiment, folders: Sequence[Path], damaged: list[DamagedRun]) -> Chapter | None:
    bad = {item.folder for item in damaged}
    own = [item for item in folders if experiment.folder in (item, item.parent) and item not in bad]
    try:
        material = read_material(experiment.folder, own)
    except UserError:
        found = [DamagedRun(folder, error) for folder in own if (error := _problem(experiment.folder, folder))]
        damaged += found
        kept = [folder for folder in own if folder not in {item.folder for item in found}]
        return _chapter(experiment, kept, damaged) if kept and found else None
    return material, judgements(material.experiment)


def _problem(experiment: Path, folder: Path) -> UserError | None:
    """Return what is wrong with a run; None where nothing is."""
    try:
        read_material(experiment, [folder])
    except UserError as error:
        return error
    return None


def _check_target(out: Path) -> None:
    if out.is_dir():
        raise UserError(f"{str(out)!r} is a folder", where=str(out), fix="name a file, such as -o report.html")


def _write(out: Path, page: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(out) as stream:
            stream.write(page.encode())
    except OSError as error:
        what = f"cannot write the report to {str(out)!r}: {error.strerror or error}"
        raise UserError(what, where=str(out), fix="name another file with -o FILE") from error
