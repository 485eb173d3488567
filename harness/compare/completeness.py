"""Whether everything that was asked for is there to be compared: what was planned, and what can be read of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.compare.experiment import Experiment, experiment_folder
from harness.compare.numbers import listed, plural, some
from harness.core.errors import UserError
from harness.results import DamagedRun, read_manifest
from harness.results.experiment_plan import EXPERIMENT, read_plan

MISSING = "is missing"
_EXPERIMENT_NAME = re.compile(r"(\d{8}-\d{6})(-\d+)?")
_BLOCK, _SEED = re.compile(r",?block=(\d+)$"), re.compile(r",?seed=\d+$")


@dataclass(frozen=True, slots=True)
class Gap:
    """A run that was asked for and of which nothing can be said.

    Attributes:
        folder: where it is, or should be.
        variant: its arm and point, as well as that is known.
        block: its block; None where there are none.
        problem: why it cannot be read.
    """

    folder: Path
    variant: str
    block: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class Gaps:
    """What is not there of an experiment.

    Attributes:
        runs: that were asked for and are damaged or missing.
        lost: the arms of which no run at all can be read.
    """

    runs: tuple[Gap, ...]
    lost: tuple[str, ...]


def gaps(experiment: Experiment, damaged: Sequence[DamagedRun]) -> Gaps:
    """Return what an experiment set out to run and what is damaged or not there.

    What it set out to run is in its ``experiment.json``. Where that was not written it is what its other runs let
    expect: every variant in every block, or with every seed.

    Args:
        damaged: of all runs that were looked at, those that cannot be read.

    Raises:
        UserError: the plan itself is damaged.
    """
    broken = {item.folder: item for item in damaged if experiment_home(item.folder) == experiment.folder}
    plan = read_plan(experiment.folder)
    due = {} if plan is None else {experiment.folder / run.folder: run for run in plan.due}
    missing = [_damaged_gap(item, experiment.folder) for folder, item in broken.items() if folder not in due]
    if plan is None:
        missing += _unlike_the_others(experiment, missing)
        seen = {arm.replace(", ", ",") for arm in experiment.arms}
    else:
        readable = {member.folder for member in experiment.members}
        missing += [
            Gap(folder, run.variant, run.block, broken[folder].error.what if folder in broken else MISSING)
            for folder, run in due.items()
            if folder not in readable
        ]
        seen = {run.variant for folder, run in due.items() if folder in readable}
    lost = [name for name in dict.fromkeys(gap.variant for gap in missing) if name.replace(", ", ",") not in seen]
    return Gaps(tuple(missing), tuple(lost))


def _damaged_gap(item: DamagedRun, home: Path) -> Gap:
    """Say what is known of a damaged run by the name of its folder."""
    name = "" if item.folder == home else item.folder.name
    block = _BLOCK.search(name)
    variant = _SEED.sub("", _BLOCK.sub("", name)) or home.parent.name
    return Gap(item.folder, variant, int(block[1]) if block else None, item.error.what)


def _unlike_the_others(experiment: Experiment, known: Sequence[Gap]) -> list[Gap]:
    """Return the blocks, or seeds, that some arms have and others have not, beyond the gaps that are known."""
    in_blocks = any(member.manifest.block is not None for member in experiment.members)
    if not in_blocks and max(map(len, experiment.arms.values())) < 2:
        return []

    manifests = {arm: [member.manifest for member in members] for arm, members in experiment.arms.items()}
    has = {arm: {each.block or 0 if in_blocks else each.seed for each in own} for arm, own in manifests.items()}
    for gap in known:
        if gap.block is not None:
            has.setdefault(gap.variant, set()).add(gap.block)
    wanted = set.union(*has.values())
    if in_blocks:
        wanted |= set(range(max(wanted)))
    word = "block" if in_blocks else "seed"
    return [
        Gap(experiment.folder / f"{name},{word}={number}", name, number if in_blocks else None, MISSING)
        for name, numbers in has.items()
        for number in sorted(wanted - numbers)
    ]


def gap_sentence(missing: Sequence[Gap]) -> str:
    """Name the runs that are damaged or missing, and why."""
    named = some([f"{gap.folder.name} ({gap.problem})" for gap in missing])
    return f"{plural(len(missing), 'run')} cannot be read: {listed(named)}"


def experiment_home(folder: Path) -> Path:
    """Return the experiment's folder of a run that may be damaged: told by its name, a time."""
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

    Of these nothing, or not enough, can be read. One whose time is not known counts as newer.

    Args:
        experiments: that can be read, the judged one among them.
        damaged: runs that cannot.
        paths: below which they were looked for; an experiment that has lost all its runs is found there by its plan.
    """
    place = judged.started_at, str(judged.folder)
    newer = [item.folder for item in experiments if (item.started_at, str(item.folder)) > place]
    homes = {experiment_home(item.folder): None for item in damaged}
    homes |= dict.fromkeys(home for path in paths for home in planned_homes(path))
    readable = {item.folder.resolve() for item in experiments} | {judged.folder.resolve()}
    for home in homes:
        if home.resolve() not in readable:
            started = _started(home, [item.folder for item in damaged if experiment_home(item.folder) == home])
            if started is None or started >= judged.started_at[: len(started)]:
                newer.append(home)
    return newer


def planned_homes(path: Path) -> list[Path]:
    """Return the experiments' folders at or below a path that have a plan, without looking into their runs."""
    homes = []
    for folder, subfolders, files in os.walk(path):
        homes += [Path(folder)] if EXPERIMENT in files else []
        subfolders[:] = [] if EXPERIMENT in files else [name for name in subfolders if not name.startswith(".")]
    return homes


def _started(home: Path, folders: Sequence[Path]) -> str | None:
    """Return when an experiment began, to the second: by a manifest, else by its name; None where neither tells."""
    for folder in folders:
        with suppress(UserError):
            return read_manifest(folder).started_at
    name = _EXPERIMENT_NAME.fullmatch(home.name)
    with suppress(ValueError):
        return datetime.strptime(name[1], "%Y%m%d-%H%M%S").isoformat() if name else None
    return None
