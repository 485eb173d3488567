"""Read run folders back, those of killed runs too: ``manifest.json``, ``steps.jsonl``, and what else a copy has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from harness.core.checkpoints import LATEST
from harness.core.errors import UserError
from harness.core.file_locks import is_held
from harness.core.trace import Span, stage_named
from harness.record.format import RECORDING
from harness.results.jsonl import RESTORE, read_checked, read_rows
from harness.results.manifest import Manifest
from harness.results.rows import (
    STEPS,
    BatchRow,
    DiscardedRow,
    EvaluationRow,
    LedgerFigures,
    RolloutRow,
    ShardRow,
    SpanRow,
    StepRow,
    SyncRow,
    TailRow,
    VersionChange,
    WarmUp,
)
from harness.results.writer import CHECKPOINTS, KEPT_STEPS, MANIFEST, PICTURES, POLICIES, POLICY, SCENARIO
from harness.settings.removed import without_removed

T = TypeVar("T")

RESULTS, REFERENCE = "results", "reference"
"""Where runs are, and the folder in it of those that come with the project."""
DID_NOT_FINISH = "did not finish"
MOST_LEVELS = 64
"""Mappings and lists within each other in a resolved scenario; ours have under 10."""


@dataclass(frozen=True)
class Run:
    """A run read from its folder.

    Attributes:
        status: the manifest's, or ``did not finish`` where it says ``running`` and the process is gone.
        tail: what ended after the last step; None in a run that was cut short.
        syncs: timed ones, of a transport sweep; empty in any other run.
        warm_up: which of the steps are warm-up, and whether the others keep one level.
    """

    folder: Path
    manifest: Manifest
    status: str
    steps: tuple[StepRow, ...]
    evaluations: tuple[EvaluationRow, ...]
    tail: TailRow | None
    syncs: tuple[SyncRow, ...] = ()
    warm_up: WarmUp = field(default_factory=lambda: WarmUp(0, None))

    def spans(self) -> list[Span]:
        """Read the spans; empty where the file was left out."""
        rows = read_rows(self.folder, SpanRow)
        return [Span(row.lane, stage_named(row.stage), row.start_ns, row.end_ns, row.step, row.version) for row in rows]

    def rollouts(self) -> list[RolloutRow]:
        """Read the saved rollouts; empty where the file was left out."""
        return read_rows(self.folder, RolloutRow)

    def groups(self) -> list[ShardRow | BatchRow]:
        """Read how long which rollouts were and what they earned; empty in a run of before it was written."""
        return read_rows(self.folder, ShardRow, BatchRow)

    def discarded(self) -> list[DiscardedRow]:
        """Read what dynamic sampling discarded; empty in a run without it."""
        return read_rows(self.folder, DiscardedRow)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved scenario as plain values; empty where the file is missing."""
        return read_settings(self.folder / SCENARIO)

    @cached_property
    def ledger(self) -> LedgerFigures | None:
        """What became of the rollouts; None in a run that did not get to its end, or of before it was written.

        Raises:
            UserError: the manifest has it in another form.
        """
        stored, where = self.manifest.outcome.get("ledger"), str(self.folder / MANIFEST)
        try:
            return msgspec.convert(stored, LedgerFigures | None)
        except msgspec.ValidationError as error:
            raise UserError(f"{where!r} is damaged: outcome.ledger: {error}", where, RESTORE) from error

    @property
    def replaced(self) -> dict[str, int]:
        """How often the part of each lane was replaced because it had died."""
        return dict(self.manifest.outcome.get("replaced", {}))

    @property
    def version_changes(self) -> list[VersionChange]:
        """When which lane took which policy version, in order; empty in runs of before it was written."""
        at_steps = [change for row in self.steps for change in row.version_changes]
        return [*at_steps, *(self.tail.version_changes if self.tail else ())]

    def setting(self, key: str) -> Any:
        """Return a scenario value by its dotted key, or None."""
        value: Any = self.settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class DamagedRun:
    """A run that could not be read, and why."""

    folder: Path
    error: UserError


def load_run(folder: Path) -> Run:
    """Read one run folder; a recording becomes one first.

    Raises:
        UserError: a file is missing, damaged (named with its line) or of an unknown schema version.
    """
    from harness.results.warmup import read_warm_up  # which loads numpy

    manifest = read_or_make_manifest(folder)
    if not os.path.lexists(folder / STEPS):
        raise UserError(f"the run {str(folder)!r} has no {STEPS}", where=str(folder / STEPS))
    status = manifest.status
    if status == "running" and not is_running(folder):
        status = DID_NOT_FINISH
    rows = read_rows(folder, StepRow, EvaluationRow, TailRow, SyncRow)
    steps = [row for row in rows if isinstance(row, StepRow)]
    tails = [row for row in rows if isinstance(row, TailRow)]
    for before, row in pairwise(steps):
        if row.step <= before.step or row.elapsed_s < before.elapsed_s:
            what = f"{str(folder / STEPS)!r} is damaged: step {row.step} at {row.elapsed_s:g} s stands behind"
            what += f" step {before.step} at {before.elapsed_s:g} s"
            raise UserError(what, str(folder / STEPS), "it holds rows of two runs; " + RESTORE)
    warm_up = read_warm_up(manifest.outcome, steps)
    return Run(
        folder=folder,
        manifest=manifest,
        status=status,
        steps=_flagged(steps, warm_up, [0, *(segment.start_step for segment in manifest.segments)]),
        evaluations=tuple(row for row in rows if isinstance(row, EvaluationRow)),
        tail=tails[-1] if tails else None,
        syncs=tuple(row for row in rows if isinstance(row, SyncRow)),
        warm_up=warm_up,
    )


def read_or_make_manifest(folder: Path) -> Manifest:
    """Read what a run folder says of its run; a recording becomes a run first.

    Raises:
        UserError: as of ``read_manifest``, or the recording cannot become a run.
    """
    if not os.path.lexists(folder / MANIFEST) and os.path.lexists(folder / RECORDING):
        from harness.results.recordings import make_run  # which loads numpy too

        make_run(folder)
    return read_manifest(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read what a run folder says of its run.

    Raises:
        UserError: it is missing, damaged or of an unknown schema version.
    """
    path = folder / MANIFEST
    return read_checked(path, lambda content: Manifest.from_json(content, str(path)))


def _flagged(rows: list[StepRow], warm_up: WarmUp, starts: Sequence[int]) -> tuple[StepRow, ...]:
    """Flag the steps of the warm-up, which shows only at the end of the run, after each start of a process.

    Where no step would be left, the rows keep their flags: all of a short run count, or none.
    """
    spells = [range(start, start + warm_up.steps) for start in starts]  # however long a damaged manifest says they are
    warm = {row.step for row in rows if any(row.step in spell for spell in spells)}
    if len(warm) == len(rows):
        return tuple(rows)
    return tuple(replace(row, warmup=True) if row.step in warm and not row.warmup else row for row in rows)


MOST_FOLDERS = 100_000
"""Below a path in which runs are looked for: some seconds' worth."""


def find_run_folders(path: Path) -> list[Path]:
    """Return the run folders at or below ``path``, sorted; reference runs below it only where there are no others.

    Raises:
        UserError: there is no such folder, no run in it, or too many folders.
    """
    if not os.path.isdir(path):  # Path's raises where a name is too long
        problem = "is not a folder" if os.path.exists(path) else "does not exist"
        raise UserError(f"{str(path)!r} {problem}", where=str(path), fix="name a results folder or a run folder in it")
    found = list[Path]()
    for number, (folder, subfolders, files) in enumerate(os.walk(path)):
        if number >= MOST_FOLDERS:
            what = f"{str(path)!r} has more than {MOST_FOLDERS:,} folders, too many to look for runs in"
            raise UserError(what, str(path), "name the results folder, or an experiment in it")
        left_out = {POLICY, POLICIES, PICTURES}
        if MANIFEST in files or STEPS in files or RECORDING in files:
            found.append(Path(folder))
            left_out |= {CHECKPOINTS, KEPT_STEPS}  # each has a manifest of its own
        if LATEST in files:  # checkpoints anywhere else, such as a cache of warm starts
            left_out |= {name for name in subfolders if name.startswith("step_")}
        subfolders[:] = [name for name in subfolders if name not in left_out and not name.startswith(".")]
    if not found:
        fix = "make one with: python -m harness run quickstart"
        raise UserError(f"no runs in {str(path)!r}", where=str(path), fix=fix)
    own = [folder for folder in found if path / REFERENCE not in folder.parents]
    return sorted(own or found)


def references_left_out(paths: Iterable[Path]) -> list[str]:
    """Return a line for each path of whose runs ``find_run_folders`` left out those of reference."""
    folders = [path / REFERENCE for path in paths if (path / REFERENCE).is_dir()]
    left_out = [folder for folder in folders if folder not in find_run_folders(folder.parent)[0].parents]
    return [f"the reference runs are left out: name {folder} for them" for folder in left_out]


def is_reference(folder: Path) -> bool:
    """Whether a folder is, or is below, a folder of reference runs, to which nothing is added."""
    whole = folder.resolve()
    return any(each.name == REFERENCE and each.parent.name == RESULTS for each in (whole, *whole.parents))


def find_runs(path: Path) -> tuple[list[Run], list[DamagedRun]]:
    """Read every run at or below ``path``; the ones that cannot be read come second.

    Raises:
        UserError: there is no such folder, or no run in it.
    """
    return read_each(path, load_run)


def read_each(path: Path, read: Callable[[Path], T]) -> tuple[list[T], list[DamagedRun]]:
    """As ``find_runs``, with any way to read a folder."""
    runs, damaged = list[T](), list[DamagedRun]()
    for folder in find_run_folders(path):
        try:
            runs.append(read(folder))
        except UserError as error:
            damaged.append(DamagedRun(folder, error))
    return runs, damaged


def is_running(folder: Path) -> bool:
    """Whether a live process writes into a run's folder: it holds the writer's lock."""
    return is_held(folder / STEPS)


def read_settings(path: Path) -> dict[str, Any]:
    """Read a resolved scenario as plain values; empty where the file is missing.

    Raises:
        UserError: it cannot be read.
    """
    return read_checked(path, lambda content: parse_settings(content.decode())) if os.path.lexists(path) else {}


def parse_settings(text: str) -> dict[str, Any]:
    """Parse a resolved scenario. Runs that differ in their seed alone share the work, which is most of a short run's.

    Raises:
        ValueError, ArithmeticError: it is no YAML, or nothing that the harness writes.
    """
    seed = _SEED.search(text)
    return _parse_yaml(_SEED.sub("seed: 0", text, count=1)) | ({"seed": int(seed[1])} if seed else {})


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a resolved scenario by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        is_section = isinstance(value, dict) and value
        flat |= flat_settings(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return flat


_LONG_NUMBER = re.compile(r"[-+.:_0-9]{65,}|0x.{65,}")
_SEED = re.compile(r"^seed: (0|[1-9][0-9]{0,18})$", re.MULTILINE)


@lru_cache(maxsize=16)
def _parse_yaml(text: str) -> dict[str, Any]:
    import yaml  # only where a scenario value is asked for

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    levels = 0
    try:
        for event in yaml.parse(text, loader):  # loading is slow, or fails, with what is refused here
            levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            is_alias = isinstance(event, yaml.AliasEvent)
            is_long = isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _LONG_NUMBER.fullmatch(event.value)
            if is_alias or is_long or levels > MOST_LEVELS:
                what = "an alias" if is_alias else "a very long number" if is_long else "nesting"
                raise ValueError(f"it has {what}, which the harness never writes")
        data = yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return without_removed(data) if isinstance(data, dict) else {}
