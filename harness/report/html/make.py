"""From folders to the file: which campaigns are shown, their verdicts, and the writing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.compare.campaigns import Campaign, gather
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
        everything: show every campaign in full, not the newest only.

    Returns:
        a sentence for each run that was left out because it cannot be read.

    Raises:
        UserError: a path does not exist or holds no readable run, or ``out`` cannot be written.
    """
    _check_target(out)
    campaigns, damaged = gather(paths, brief=True)
    folders = {folder.resolve(): folder for path in paths for folder in find_run_folders(path)}
    chapters = _chapters(campaigns, list(folders.values()), damaged, everything)
    left_out = [f"left out {str(item.folder)!r}: {item.error.what}" for item in damaged]
    _write(out, report(chapters, campaigns, [f"{item.folder.name}: {item.error.what}" for item in damaged]))
    return left_out


def _chapters(
    campaigns: Sequence[Campaign], folders: Sequence[Path], damaged: list[DamagedRun], everything: bool
) -> list[Chapter]:
    """Read the campaigns to show, newest first; runs that turn out to be damaged join the others."""
    chapters = list[Chapter]()
    for campaign in reversed(campaigns):
        chapter = _chapter(campaign, folders, damaged)
        if chapter is not None:
            chapters.append(chapter)
            if not everything:
                break
    if not chapters:
        raise damaged[-1].error
    return chapters


def _chapter(campaign: Campaign, folders: Sequence[Path], damaged: list[DamagedRun]) -> Chapter | None:
    bad = {item.folder for item in damaged}
    own = [item for item in folders if campaign.folder in (item, item.parent) and item not in bad]
    try:
        material = read_material(campaign.folder, own)
    except UserError:
        found = [DamagedRun(folder, error) for folder in own if (error := _problem(campaign.folder, folder))]
        damaged += found
        kept = [folder for folder in own if folder not in {item.folder for item in found}]
        return _chapter(campaign, kept, damaged) if kept and found else None
    return material, judgements(material.campaign)


def _problem(campaign: Path, folder: Path) -> UserError | None:
    """Return what is wrong with a run; None where nothing is."""
    try:
        read_material(campaign, [folder])
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
