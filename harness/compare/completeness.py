"""Whether everything that was asked for is there to be compared: what was planned, and what can be read of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.compare.experiment import Experiment
from harness.compare.numbers import listed, plural
from harness.core.errors import UserError
from harness.results import DamagedRun, read_manifest
from harness.results.experiment_plan import EXPERIMENT, read_plan

MOST_NAMED = 5
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
    if plan is None:
        found = [_damaged_gap(item, experiment.folder) for item in broken.values()]
        found += _unlike_the_others(experiment, found)
        seen = {arm.replace(", ", ",") for arm in experiment.arms}
    else:
        due = {experiment.folder / run.folder: run for run in plan.due}
        readable = {member.folder for member in experiment.members}
        found = [_damaged_gap(item, experiment.folder) for folder, item in broken.items() if folder not in due]
        for folder, run in due.items():
            if folder not in readable:
                problem = broken[folder].error.what if folder in broken else MISSING
                found.append(Gap(folder, run.variant, run.block, problem))
        seen = {run.variant for folder, run in due.items() if folder in readable}
    lost = [name for name in dict.fromkeys(gap.variant for gap in found) if name.replace(", ", ",") not in seen]
    return Gaps(tuple(found), tuple(lost))


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

    def key(block: int | None, seed: int) -> int:
        return (block or 0) if in_blocks else seed

    has = {
        arm: {key(member.manifest.block, member.manifest.seed) for member in members}
        for arm, members in experiment.arms.items()
    }
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


def gap_sentence(found: Sequence[Gap]) -> str:
    """Name the runs that are damaged or missing, ``MOST_NAMED`` at most, and why."""
    named = [f"{gap.folder.name} ({gap.problem})" for gap in found[:MOST_NAMED]]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{plural(len(found), 'run')} cannot be read: {', '.join(named)}{more}"


def experiment_home(folder: Path) -> Path:
    """Return the experiment's folder of a run that may be damaged: told by its name, a time."""
    if (folder / EXPERIMENT).is_file() or _EXPERIMENT_NAME.fullmatch(folder.name):
        return folder
    parent = folder.parent
    if (parent / EXPERIMENT).is_file() or _EXPERIMENT_NAME.fullmatch(parent.name):
        return parent
    with suppress(UserError):
        manifest = read_manifest(folder)
        alone = manifest.arm is None and manifest.block is None and not manifest.point
        return folder if alone else parent
    return parent


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
    newer = [item.folder for item in experiments if (item.started_at, str(item.folder)) > _place(judged)]
    homes = {experiment_home(item.folder): None for item in damaged}
    homes |= dict.fromkeys(home for path in paths for home in planned_homes(path))
    readable = {item.folder.resolve() for item in experiments} | {judged.folder.resolve()}
    for home in homes:
        if home.resolve() not in readable:
            started = _started(home, [item.folder for item in damaged if experiment_home(item.folder) == home])
            if started is None or started >= judged.started_at[: len(started)]:
                newer.append(home)
    return newer


def _place(experiment: Experiment) -> tuple[str, str]:
    return experiment.started_at, str(experiment.folder)


def planned_homes(path: Path) -> list[Path]:
    """Return the experiments' folders at or below a path that have a plan, without looking into their runs."""
    found = []
    for folder, subfolders, files in os.walk(path):
        if EXPERIMENT in files:
            found.append(Path(folder))
            subfolders.clear()
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    return found


def _started(home: Path, folders: Sequence[Path]) -> str | None:
    """Return when an experiment began, to the second: by a manifest, else by its name; None where neither tells."""
    for folder in folders:
        with suppress(UserError):
            return read_manifest(folder).started_at
    name = _EXPERIMENT_NAME.fullmatch(home.name)
    if name is None:
        return None
    with suppress(ValueError):
        return datetime.strptime(name[1], "%Y%m%d-%H%M%S").isoformat()
    return None


def newer_sentence(newer: Sequence[Path]) -> str:
    """Say which experiments cannot be read, as a gate tells it."""
    names = listed([repr(str(folder)) for folder in newer[:MOST_NAMED]])
    return f"{names} began later and cannot be read: an older experiment does not stand for it"
