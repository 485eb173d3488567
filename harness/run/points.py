"""What became of each run that an experiment set out to make, as its folder tells, and where one goes on.

It is told by the manifests of the run folders and by nothing else: one says ``completed`` only at the end of the run. A
folder that cannot count, because its run was cut short or failed and is made again, moves to ``.attempts/RUN/NUMBER``
in the experiment: kept, and out of every comparison.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.core.atomic_files import sync
from harness.core.checkpoints import Checkpoint, Refused, newest_whole
from harness.core.errors import UserError
from harness.loop.state import LoopState
from harness.loop.state_files import read_files
from harness.results import Manifest, Scrubber, load_run, read_manifest
from harness.results.anonymous import safe_name
from harness.results.manifest import Input
from harness.results.segments import Recorded, check_rows, read_recorded
from harness.results.writer import CHECKPOINTS
from harness.run.inputs import UNKNOWN, InputsNow, check_inputs, date_of_run, is_whole
from harness.run.interleaving import Group
from harness.scenario.axes import Variant

SET_ASIDE = ".attempts"
"""Readers of results pass over folders whose names begin with a dot."""
SPREAD = "placement.learner", "learner.sharding", "learner.mesh"
"""How a Learner is spread over ranks. A run may go on with others; sums are then added in another order."""


class State(StrEnum):
    NEW = "not run yet"
    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"
    CUT_SHORT = "cut short"

    @property
    def is_result(self) -> bool:
        """Whether nothing is left to do: a run that diverged answers the question too."""
        return self in (State.FINISHED, State.DIVERGED)


@dataclass(frozen=True, slots=True)
class Attempt:
    state: State
    reason: str | None
    folder: Path


@dataclass(frozen=True)
class Point:
    """One run that an experiment asks for.

    Attributes:
        folder: where its run is or will be.
        earlier: attempts that were set aside, or failed before the run went on from a checkpoint, oldest first.
        last: the attempt in ``folder``; None where there is no such folder.
        manifest: of that attempt, where it can be read.
    """

    variant: Variant
    folder: Path
    earlier: tuple[Attempt, ...] = ()
    last: Attempt | None = None
    manifest: Manifest | None = None

    @property
    def state(self) -> State:
        return State.NEW if self.last is None else self.last.state

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.earlier if self.last is None else (*self.earlier, self.last)

    @property
    def failures(self) -> int:
        """How many of them failed; those that were cut short from outside do not count against a point."""
        return sum(attempt.state is State.FAILED for attempt in self.attempts)


@dataclass(frozen=True)
class Resume:
    """Where a run goes on.

    Attributes:
        manifest: as the run left it.
        checkpoint: the newest one that is whole.
        refused: what was damaged on the way to it.
        state: of the loop; its groups have their data.
        recorded: what the recorder knew.
        was: settings that are others now, with their former values.
    """

    folder: Path
    manifest: Manifest
    checkpoint: Checkpoint
    refused: tuple[Refused, ...]
    state: LoopState
    recorded: Recorded
    was: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> Mapping[str, Input]:
        return self.recorded.inputs or self.manifest.inputs

    @property
    def date(self) -> date:
        return date_of_run(self.manifest)

    @property
    def warnings(self) -> list[str]:
        """Say what was damaged, and what is not promised."""
        said = [f"checkpoint {each} (refused; the one before it is taken)" for each in self.refused]
        said += [] if is_whole(self.inputs) else [UNKNOWN]
        if spread := [key for key in self.was if is_below(key, SPREAD)]:
            said.append(f"{', '.join(spread)} changed: the same policy is no longer promised bit for bit")
        return said


@dataclass(frozen=True)
class Continuation:
    """What an experiment has, and how it goes on.

    Attributes:
        folder: of the experiment; of the run, where it is one.
        points: by the names of their runs.
        finished: names of the runs that are left alone.
        resumes: where runs go on, by their names.
        due: number of runs that it takes in all.
    """

    folder: Path
    points: Mapping[str, Point]
    finished: frozenset[str] = frozenset()
    resumes: Mapping[str, Resume] = field(default_factory=dict)
    due: int = 1

    @property
    def again(self) -> list[Point]:
        """Those of which an attempt is set aside, since their runs are made again."""
        left = [point for name, point in self.points.items() if name not in self.finished and name not in self.resumes]
        return [point for point in left if point.last is not None]

    @property
    def line(self) -> str:
        if "" in self.resumes:
            return f"continues from {self.resumes[''].checkpoint.folder}"
        said = [f"{len(self.finished)} of {self.due} runs are finished"]
        said += [f"{name} continues from {resume.checkpoint.folder.name}" for name, resume in self.resumes.items()]
        if self.again:
            names = ", ".join(point.variant.name for point in self.again)
            said.append(f"{names} made again (what there was stays in {SET_ASIDE})")
        new = self.due - len(self.finished) - len(self.resumes) - len(self.again)
        return f"continues {self.folder}: {'; '.join([*said, *([f'{new} to be made'] if new else [])])}"


def is_below(key: str, keys: Sequence[str]) -> bool:
    return any(key == each or key.startswith(f"{each}.") for each in keys)


def read_points(experiment: Path, variants: Sequence[Variant]) -> list[Point]:
    return [read_point(experiment, variant) for variant in variants]


def read_point(experiment: Path, variant: Variant) -> Point:
    folder = experiment / safe_name(Scrubber.of_this_process().paths(variant.name))  # as ``RunFolder.create`` has it
    earlier = tuple(_attempt(path, _manifest(path), variant) for path in _set_aside_before(experiment, folder.name))
    if not folder.is_dir():
        return Point(variant, folder, earlier)
    manifest = _manifest(folder)
    failed = [segment.failed for segment in manifest.segments if segment.failed] if manifest else []
    earlier += tuple(Attempt(State.FAILED, reason, folder) for reason in failed)
    return Point(variant, folder, earlier, _attempt(folder, manifest, variant), manifest)


def set_aside(experiment: Path, point: Point) -> None:
    """Move a point's attempt out of the way, so that it can be run again.

    Raises:
        UserError: it cannot be moved.
    """
    before = _set_aside_before(experiment, point.folder.name)
    target = experiment / SET_ASIDE / point.folder.name / str(1 + int(before[-1].name) if before else 0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(point.folder, target)  # one move, within one file system
    except OSError as error:
        what = f"cannot move {str(point.folder)!r} to {str(target)!r}: {error.strerror or error}"
        raise UserError(what, str(point.folder), "make the results folder writable") from error
    for home in (target.parent, experiment):
        with suppress(OSError):  # a file system that cannot
            sync(home)


def survey(
    folder: Path, groups: Sequence[Group], now: InputsNow, *, together: bool, anew: str = "start a new run"
) -> Continuation:
    """Return what an experiment has, and where its runs go on.

    Args:
        groups: its runs.
        together: make all arms of a group again where one of them has no result, since they are compared.
        anew: how to begin without what there is.

    Raises:
        UserError: a run that is finished or goes on is of other inputs than those of now, or is still running.
    """
    points, finished, resumes = dict[str, Point](), list[str](), dict[str, Resume]()
    for group in groups:
        of_group = read_points(folder, group.variants)
        points |= {point.variant.name: point for point in of_group}
        if together and len(of_group) > 1 and not all(point.state.is_result for point in of_group):
            continue
        for point in of_group:
            if point.state.is_result and point.manifest is not None:
                check_inputs(point.manifest.inputs, now, point.variant.scenario, point.folder, anew)
                finished.append(point.variant.name)
            elif (resume := resume_of(point, now, anew)) is not None:
                resumes[point.variant.name] = resume
    return Continuation(folder, points, frozenset(finished), resumes, len(points))


def resume_of(point: Point, now: InputsNow, anew: str = "start a new run") -> Resume | None:
    """Return where a run of an experiment goes on; None where it has nothing whole to go on from, or is not there.

    Raises:
        UserError: it is still running, or is of other inputs.
    """
    try:
        run = load_run(point.folder)
        resume = None if run.status == "running" else newest_of(run.folder, run.manifest)
    except UserError:
        return None
    check_over(run.status, run.folder)
    for recorded in (run.manifest.inputs, {} if resume is None else resume.recorded.inputs):
        check_inputs(recorded, now, point.variant.scenario, point.folder, anew)
    return resume


def check_over(status: str, folder: Path) -> None:
    """Refuse a run of this status that another process holds."""
    if status == "running":
        raise UserError("the run is not over: another process holds it", str(folder), "stop that process first")


def newest_of(folder: Path, manifest: Manifest) -> Resume:
    """Return where a run goes on: its newest checkpoint that is whole.

    Raises:
        UserError: there is none, with what is wrong with each; or the run's rows have lost what they had then.
    """
    checkpoint, refused = newest_whole(folder / CHECKPOINTS)
    if checkpoint is None:
        what = "there is no checkpoint to resume from"
        if refused:
            what = "no checkpoint is whole: " + "; ".join(map(str, refused))
        raise UserError(what, str(folder / CHECKPOINTS), "run the scenario anew, with checkpoint.every set")
    state, recorded = read_files(checkpoint.folder, LoopState), read_recorded(checkpoint.folder)
    check_rows(folder, recorded.sizes)
    return Resume(folder, manifest, checkpoint, refused, state, recorded)


def _set_aside_before(experiment: Path, name: str) -> list[Path]:
    """Return the folders of a point's earlier attempts, oldest first; what else lies there is passed over."""
    aside = experiment / SET_ASIDE / name
    attempts = [path for path in aside.iterdir() if path.name.isdecimal()] if aside.is_dir() else []
    return sorted(attempts, key=lambda path: int(path.name))


def _attempt(folder: Path, manifest: Manifest | None, variant: Variant) -> Attempt:
    if manifest is None or manifest.status in ("running", "interrupted"):
        return Attempt(State.CUT_SHORT, None, folder)
    if manifest.status == "failed" and "diverged" not in manifest.outcome:
        return Attempt(State.FAILED, manifest.error, folder)
    if not variant.scenario.command and not _has_all_rows(folder, manifest, variant.scenario.steps):
        return Attempt(State.CUT_SHORT, None, folder)
    return Attempt(State.FINISHED if manifest.status == "completed" else State.DIVERGED, manifest.error, folder)


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except UserError:
        return None


def _has_all_rows(folder: Path, manifest: Manifest, steps: int) -> bool:
    """Whether the rows are there that the manifest speaks of: after a power cut they may not be."""
    try:
        run = load_run(folder)
    except UserError:
        return False
    if manifest.status == "completed":
        return len(run.steps) == steps and run.tail is not None
    return len(run.steps) == manifest.outcome.get("steps_done")
