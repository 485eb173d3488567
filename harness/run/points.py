"""What became of each run that an experiment set out to make, as its folder tells.

It is told by the manifests of the run folders and by nothing else: one says ``completed`` only at the end of the run. A
folder that cannot count, because its run was cut short or failed and is made again, moves to ``.attempts/RUN/NUMBER``
in the experiment: kept, and out of every comparison.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.core.errors import UserError
from harness.results import Manifest, Scrubber, load_run, read_manifest
from harness.results.anonymous import safe_name
from harness.run.session import sync_one
from harness.scenario.axes import Variant

ASIDE = ".attempts"
"""Readers of results pass over folders whose names begin with a dot."""


class State(StrEnum):
    """What became of a point."""

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
    """One start of a point: what became of it, and why."""

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
        """What became of it so far."""
        return State.NEW if self.last is None else self.last.state

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All of them, oldest first."""
        return (*self.earlier, *([] if self.last is None else [self.last]))

    @property
    def failures(self) -> list[Attempt]:
        """The attempts that failed; those that were cut short from outside do not count against a point."""
        return [attempt for attempt in self.attempts if attempt.state is State.FAILED]


def read_points(experiment: Path, variants: Sequence[Variant]) -> list[Point]:
    """Return the points of an experiment, in the order of the scenario."""
    return [read_point(experiment, variant) for variant in variants]


def read_point(experiment: Path, variant: Variant) -> Point:
    """Return what became of one point."""
    folder = experiment / safe_name(Scrubber.of_this_process().paths(variant.name))  # as ``RunFolder.create`` has it
    earlier = tuple(_attempt(path, variant) for path in _set_aside_before(experiment, folder.name))
    if not folder.is_dir():
        return Point(variant, folder, earlier)
    manifest = _manifest(folder)
    failed = [segment.failed for segment in manifest.segments if segment.failed] if manifest else []
    earlier += tuple(Attempt(State.FAILED, reason, folder) for reason in failed)
    return Point(variant, folder, earlier, _attempt(folder, variant), manifest)


def set_aside(experiment: Path, point: Point) -> None:
    """Move a point's attempt out of the way, so that it can be run again.

    Raises:
        UserError: it cannot be moved.
    """
    before = _set_aside_before(experiment, point.folder.name)
    target = experiment / ASIDE / point.folder.name / str(1 + int(before[-1].name) if before else 0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(point.folder, target)  # one move, within one file system
    except OSError as error:
        what = f"cannot move {str(point.folder)!r} to {str(target)!r}: {error.strerror or error}"
        raise UserError(what, str(point.folder), "make the results folder writable") from error
    for home in (target.parent, experiment):
        sync_one(home)


def _set_aside_before(experiment: Path, name: str) -> list[Path]:
    """Return the folders of a point's earlier attempts, oldest first; what else lies there is passed over."""
    aside = experiment / ASIDE / name
    found = [path for path in aside.iterdir() if path.name.isdecimal()] if aside.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def _attempt(folder: Path, variant: Variant) -> Attempt:
    manifest = _manifest(folder)
    if manifest is None or manifest.status in ("running", "interrupted"):
        return Attempt(State.CUT_SHORT, None, folder)
    if manifest.status == "failed" and "diverged" not in manifest.outcome:
        return Attempt(State.FAILED, manifest.error, folder)
    if not _has_all_rows(folder, manifest, variant.scenario.steps):
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
