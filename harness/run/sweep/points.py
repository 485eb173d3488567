"""What a sweep has on disk: its experiment's folder, found again, and what became of each point.

A sweep's folder has one file that other experiments have not, ``sweep.resolved.yaml``: the scenario with its arms and
axes and every default, written once and never changed. The folder is found again by it, and held by one process at a
time.

What has been run is told by the manifests of the run folders and by nothing else: one says ``completed`` only once
everything else is on disk. A folder that cannot count, because its run was cut short or failed and is tried again,
moves to ``.attempts/POINT/NUMBER`` in the experiment: kept, and out of every comparison.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results import Manifest, Scrubber, experiment_name, load_run, read_manifest
from harness.results.anonymous import safe_name
from harness.results.writer import ATTEMPTS, utc_now
from harness.run.session import sync_one, sync_to_disk
from harness.scenario import Scenario, Variant, resolved_yaml

IDENTITY = "sweep.resolved.yaml"
_NOT_IDENTITY = ("name", "description")
_LEFT_OUT = object()
"""The value of a setting that a scenario does not have."""
ASIDE = ".attempts"
"""Readers of results pass over folders whose names begin with a dot."""


def find_experiment(out: Path, scenario: Scenario) -> Path | None:
    """Return the newest experiment of a sweep that ran the very same scenario; None where there is none."""
    wanted = _settings(_text(scenario))
    return next((folder for folder, found in _newest_first(out, scenario) if found == wanted), None)


def changes_since_newest(out: Path, scenario: Scenario) -> tuple[Path, list[str]] | None:
    """Return the newest sweep of this name with what the scenario says otherwise now; None where there is none.

    Returns:
        its folder, and for each setting ``key: before -> now``.
    """
    now = _flat(_settings(_text(scenario)))
    for folder, found in _newest_first(out, scenario):
        before = _flat(found)
        keys = [key for key in {**now, **before} if now.get(key, _LEFT_OUT) != before.get(key, _LEFT_OUT)]
        return folder, [f"{key}: {_shown(before, key)} -> {_shown(now, key)}" for key in keys]
    return None


def begin_experiment(out: Path, scenario: Scenario) -> Path:
    """Make the folder of a new sweep and write into it what it is about.

    Raises:
        UserError: it cannot be made.
    """
    home = out / safe_name(scenario.name)
    for _ in range(ATTEMPTS):  # another command may take the name first
        folder = home / experiment_name(out, scenario.name, utc_now())
        try:
            home.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            with whole_file(folder / IDENTITY) as stream:
                stream.write(_text(scenario).encode())
        except FileExistsError:
            continue
        except OSError as error:
            what = f"cannot write to the results folder {str(folder)!r}: {error.strerror or error}"
            raise UserError(what, str(folder), "choose a folder you can write to with --out DIR") from error
        sync_to_disk(folder)
        return folder
    raise UserError(f"no free folder name below {home} in {ATTEMPTS} attempts", str(home))


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of an experiment; the hold ends with the process, however that ends.

    Raises:
        UserError: another sweep is at work there.
    """
    with (folder / IDENTITY).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another `sweep` of the same scenario is at work in this experiment"
            fix = "wait until it has ended, or stop it; --fresh begins an experiment of its own"
            raise UserError(what, str(folder), fix) from None
        except OSError:  # a file system without locks
            pass
        yield


def _newest_first(out: Path, scenario: Scenario) -> Iterator[tuple[Path, dict[str, Any]]]:
    home = out / safe_name(scenario.name)
    for file in sorted(home.glob(f"*/{IDENTITY}"), key=lambda file: _order(file.parent.name), reverse=True):
        with suppress(OSError, ValueError):  # unreadable: that one cannot be gone on with
            yield file.parent, _settings(file.read_text(encoding="utf-8"))


def _order(name: str) -> list[int]:
    """Experiment names are times, with -2 and so on for those of the same second."""
    return [int(part) for part in re.findall(r"\d+", name)]


def _text(scenario: Scenario) -> str:
    return Scrubber.of_this_process().paths(resolved_yaml(scenario))


def _settings(text: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(data, dict):
        raise ValueError("no mapping")
    return {key: value for key, value in data.items() if key not in _NOT_IDENTITY}


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else "left out"


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


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
    """One run that a sweep asks for.

    Attributes:
        folder: where its run is or will be.
        earlier: attempts that were set aside, oldest first.
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
    """Return every point of a sweep, in the order of the scenario."""
    return [read_point(experiment, variant) for variant in variants]


def read_point(experiment: Path, variant: Variant) -> Point:
    """Return what became of one point."""
    folder = experiment / safe_name(Scrubber.of_this_process().paths(variant.name))  # as ``RunFolder.create`` has it
    earlier = tuple(_attempt(path, variant) for path in _set_aside_before(experiment, folder.name))
    if not folder.is_dir():
        return Point(variant, folder, earlier)
    return Point(variant, folder, earlier, _attempt(folder, variant), _manifest(folder))


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
