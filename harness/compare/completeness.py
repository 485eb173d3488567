"""Whether everything that was asked for is there to be compared: what was planned, and what can be read of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from harness.compare.experiment import Experiment, experiment_folder
from harness.compare.numbers import listed, plural, some
from harness.core.errors import UserError
from harness.results import DamagedRun, read_manifest
from harness.results.experiment_plan import EXPERIMENT, read_plan

_EXPERIMENT_NAME = re.compile(r"(\d{8}-\d{6})(-\d+)?")
_SEED_AND_BLOCK = re.compile(r"(,?seed=\d+)?(,?block=\d+)?$")


class Gap(NamedTuple):
    """A run that was asked for and cannot be read, or is not there: where it should be, of which arm and point, why."""

    folder: Path
    variant: str
    problem: str


class Gaps(NamedTuple):
    """What is not there of an experiment: runs, and the arms of which no run at all can be read."""

    runs: tuple[Gap, ...]
    lost: tuple[str, ...]


def gaps(experiment: Experiment, damaged: Sequence[DamagedRun]) -> Gaps:
    """Return what an experiment set out to run and is damaged, or not there.

    What it set out to run is in its ``experiment.json``. Where that was not written it is what the names of its other
    runs let expect: every arm in every block, or with every seed.

    Args:
        damaged: of all runs that were looked at, those that cannot be read.

    Raises:
        UserError: the plan itself is damaged.
    """
    home = experiment.folder
    broken = {item.folder: item.error.what for item in damaged if experiment_home(item.folder) == home}
    readable = [member.folder for member in experiment.members]
    due = {folder: _variant(folder, home) for folder in (*readable, *broken)}
    plan = read_plan(home)
    if plan is not None:
        due = {folder: due[folder] for folder in broken} | {home / run.folder: run.variant for run in plan.due}
    elif home not in due:
        places = dict.fromkeys(_SEED_AND_BLOCK.search(folder.name)[0] for folder in due)  # type: ignore[index]
        due |= {home / f"{name}{place}": name for name in {**dict.fromkeys(due.values())} for place in places}
    missing = [
        Gap(folder, variant, broken.get(folder, "is missing"))
        for folder, variant in due.items()
        if folder not in readable
    ]
    present = {variant for folder, variant in due.items() if folder in readable}
    return Gaps(tuple(missing), tuple(dict.fromkeys(gap.variant for gap in missing if gap.variant not in present)))


def _variant(folder: Path, home: Path) -> str:
    """Return the arm and point of a run by the name of its folder."""
    return home.parent.name if folder == home else _SEED_AND_BLOCK.sub("", folder.name)


def gap_sentence(missing: Sequence[Gap]) -> str:
    """Name the runs that are damaged or missing, and why."""
    named = some([f"{gap.folder.name} ({gap.problem})" for gap in missing])
    return f"{plural(len(missing), 'run')} cannot be read: {listed(named)}"


def experiment_home(folder: Path) -> Path:
    """Return the experiment's folder of a run that may be damaged: told by its plan, or by its name, a time."""
    for home in (folder, folder.parent):
        if (home / EXPERIMENT).is_file() or _EXPERIMENT_NAME.fullmatch(home.name):
            return home
    with suppress(UserError):
        return experiment_folder(folder, read_manifest(folder))
    return folder.parent


def newer_than(
    judged: Experiment, experiments: Iterable[Experiment], damaged: Sequence[DamagedRun], paths: Iterable[Path]
) -> list[Path]:
    """Return the folders of experiments that began after the one that is judged, and so should have been in its place.

    Of these nothing, or not enough, can be read. One whose time is not known counts as newer; one that has lost all its
    runs is known by its plan at or below the paths.
    """
    place = judged.started_at, str(judged.folder)
    newer = [item.folder for item in experiments if (item.started_at, str(item.folder)) > place]
    homes: dict[Path, list[Path]] = {home: [] for path in paths for home in planned_homes(path)}
    for item in damaged:
        homes.setdefault(experiment_home(item.folder), []).append(item.folder)
    readable = {item.folder.resolve() for item in experiments} | {judged.folder.resolve()}
    for home, runs in homes.items():
        started = _started(home, runs)
        if home.resolve() not in readable and (started is None or started >= judged.started_at[: len(started)]):
            newer.append(home)
    return newer


def planned_homes(path: Path) -> list[Path]:
    """Return the experiments' folders at or below a path that have a plan, without looking into their runs."""
    homes = []
    for folder, subfolders, files in os.walk(path):
        homes += [Path(folder)] if EXPERIMENT in files else []
        subfolders[:] = [] if EXPERIMENT in files else [name for name in subfolders if not name.startswith(".")]
    return homes


def _started(home: Path, runs: Sequence[Path]) -> str | None:
    """Return when an experiment began, to the second: by a manifest, else by its name; None where neither tells."""
    for folder in runs:
        with suppress(UserError):
            return read_manifest(folder).started_at
    name = _EXPERIMENT_NAME.fullmatch(home.name)
    with suppress(ValueError):
        return datetime.strptime(name[1], "%Y%m%d-%H%M%S").isoformat() if name else None
    return None
