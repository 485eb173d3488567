"""Runs in groups: an experiment is one command's runs; an arm is its runs that differ in seed and block alone."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.compare.run_frame import SpanTimes, figures_of, span_times, stages_of
from harness.compare.stats.intervals import Interval
from harness.core.errors import UserError
from harness.core.spawn_pool import spawn_pool
from harness.core.trace import Stage
from harness.results import (
    DamagedRun,
    Manifest,
    RolloutRow,
    Run,
    find_run_folders,
    natural_order,
    read_or_make_manifest,
)
from harness.results.counters import CounterRow, read_counters
from harness.results.frames import Numbers, Results, RunTable, read_table, stages_in
from harness.results.occupancy import loop_window

if TYPE_CHECKING:
    import pandas as pd

FEWEST_FOR_PROCESSES = 150
"""Runs from which on more processes pay: starting one takes as long as reading about 40 runs of 200 steps."""
MOST_WITH_SPANS = 200
"""Runs of an experiment whose spans are read where not all are asked for: a third of the time of a reading."""
SIMULATED = " (simulated)"
"""What the name of an arm ends in whose runs never took place, wherever it is shown."""
FEWEST_SEEDS = 3
"""From so many on there is an interval over seeds."""


class Kept(NamedTuple):
    """What a run kept that no figure rests on: of a damaged file nothing, and what is wrong with it."""

    counters: Sequence[CounterRow]
    rollouts: Sequence[RolloutRow]
    problems: Sequence[str]


@dataclass(frozen=True)
class Member:
    """One run of an experiment, with its figures by name (``harness.compare.run_frame``).

    ``times`` are from its spans; None where they were not kept, or not read.
    """

    table: RunTable
    times: SpanTimes | None
    figures: dict[str, Any]

    @property
    def run(self) -> Run:
        """What the run says of itself."""
        return self.table.run

    @property
    def manifest(self) -> Manifest:
        """The run's."""
        return self.table.run.manifest

    @property
    def is_recorded(self) -> bool:
        """Whether it is another trainer's, as ``harness.record`` saw it: no scenario of ours is behind it."""
        return self.manifest.outcome.get("recorded") is not None

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved scenario as plain values, for reading only; empty where it was not saved."""
        return self.table.run.settings

    @property
    def folder(self) -> Path:
        """The run's."""
        return self.table.run.folder

    @property
    def is_completed(self) -> bool:
        """Whether the run got to its end."""
        return self.table.run.status == "completed"

    @property
    def steps(self) -> int:
        """Training steps made."""
        return len(self.table)

    @cached_property
    def kept(self) -> Kept:
        """Its counters and example rollouts."""
        rows, problems = list[Any](), list[str]()
        for read in (partial(read_counters, self.folder), self.run.rollouts):
            try:
                rows.append(read())
            except UserError as error:
                rows.append(())
                problems.append(error.what.replace(f"{self.folder}/", ""))  # a page names nobody's home
        return Kept(rows[0], rows[1], problems)

    @cached_property
    def window(self) -> tuple[int, int] | None:
        """Start and end of its loop in nanoseconds of the spans' clock; None without spans."""
        if self.times is not None:
            return self.times.window
        spans, tail = self.run.spans(), self.run.tail
        return loop_window(spans, tail.elapsed_s if tail else None) if spans else None

    @cached_property
    def stages_s(self) -> dict[Stage, Numbers]:
        """Seconds of each stage and wait in every step; see ``stages_of``."""
        return stages_of(self.table, self.times)


@dataclass(frozen=True)
class Experiment:
    """The runs of one command, arm by arm: arms in the order of the scenario, the runs of each by seed and block.

    ``labels`` name the arm of each run.
    """

    folder: Path
    members: tuple[Member, ...]
    labels: tuple[str, ...]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each run: its ``arm`` and its figures; see ``harness.compare.run_frame``."""
        import pandas as pd

        records = [{"arm": arm} | member.figures for arm, member in zip(self.labels, self.members, strict=True)]
        return pd.DataFrame.from_records(records)

    @cached_property
    def results(self) -> Results:
        """Steps, evaluations, spans, rollouts and syncs of the runs as frames, in the order of ``runs``."""
        return Results(tuple(member.table for member in self.members))

    @cached_property
    def arms(self) -> dict[str, tuple[Member, ...]]:
        """The runs of each arm; the first arm is the baseline."""
        arms: dict[str, tuple[Member, ...]] = {}
        for arm, member in zip(self.labels, self.members, strict=True):
            arms[arm] = (*arms.get(arm, ()), member)
        return arms

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages and waits that a run has seconds of, in order."""
        return stages_in(name for member in self.members for name in member.figures)

    @property
    def scenario(self) -> str:
        """Name of the scenario."""
        return self.members[0].manifest.scenario

    @property
    def name(self) -> str:
        """When its command was started."""
        return self.members[0].manifest.experiment

    @property
    def started_at(self) -> str:
        """When its first run was started: UTC, ISO 8601."""
        return min(member.manifest.started_at for member in self.members)

    @property
    def simulated(self) -> str | None:
        """Name of the machine profile by which runs of it were simulated; None where all took place."""
        names = dict.fromkeys(member.manifest.simulated for member in self.members if member.manifest.simulated)
        return ", ".join(names) or None

    @property
    def title(self) -> str:
        """The scenario's name for a heading, which says where runs were simulated."""
        return self.scenario + (SIMULATED if self.simulated else "")

    def values(self, arm: str, figure: str) -> list[float]:
        """Return a figure of each run of an arm that has it."""
        return [value for each in self.arms[arm] if (value := each.figures.get(figure)) is not None]

    def mean(self, arm: str, figure: str) -> float | None:
        """Return a figure's mean over the runs of an arm that have it; None where none has."""
        values = self.values(arm, figure)
        return math.fsum(values) / len(values) if values else None

    def range(self, arm: str, figure: str) -> Interval | None:
        """Return a figure's mean, lowest and highest value over the runs of an arm; None where no run has it."""
        mean, values = self.mean(arm, figure), self.values(arm, figure)
        return None if mean is None else Interval(mean, min(values), max(values))

    def share(self, arm: str, figure: str) -> float:
        """Return the share of a step of a figure in seconds, as a mean over the runs of an arm; 0 where none has it."""
        figures = [member.figures for member in self.arms[arm]]
        shares = [own[figure] / own["step_s"] for own in figures if own.get(figure) is not None and own.get("step_s")]
        return math.fsum(shares) / len(shares) if shares else 0.0

    def has(self, figure: str) -> bool:
        """Whether any run has a figure."""
        return any(each.figures.get(figure) is not None for each in self.members)


def gather(paths: Iterable[Path], processes: int = 1) -> tuple[list[Experiment], list[DamagedRun]]:
    """Read the runs at or below the paths into experiments, oldest first; the runs that cannot be read come second.

    Args:
        processes: how many may read side by side, where it pays; the caller's main module must then be safe to import.

    Raises:
        UserError: a path does not exist or holds no run, or every run is damaged.
    """
    folders = _run_folders(paths)
    return _experiments(folders, read_members(folders, [True] * len(folders), processes=processes))


def gather_newest(paths: Iterable[Path], processes: int = 1) -> tuple[list[Experiment], Experiment, list[DamagedRun]]:
    """Read all runs for an overview, and those of the newest experiment in full, with spans of ``MOST_WITH_SPANS`` at
    most, evenly spaced.

    Returns:
        the experiments, oldest first; the newest one of which a run can be read in full; the runs that cannot be read.

    Raises:
        UserError: a path does not exist or holds no run, or none can be read in full.
    """
    folders = _run_folders(paths)
    starts: dict[Path, list[tuple[str, Path]]] = {}
    for folder in folders:
        with suppress(UserError):  # reading the run in full will say so
            manifest = read_or_make_manifest(folder)
            starts.setdefault(experiment_folder(folder, manifest), []).append((manifest.started_at, folder))
    newest = max(starts, key=lambda home: (min(starts[home])[0], str(home)), default=None)
    own = [] if newest is None else [folder for _, folder in starts[newest]]
    spans_of = {*own[:: math.ceil(len(own) / MOST_WITH_SPANS) or 1]}
    in_full, with_spans = ([folder in chosen for folder in folders] for chosen in ({*own}, spans_of))
    experiments, damaged = _experiments(folders, read_members(folders, in_full, with_spans, processes))
    for experiment in reversed(experiments):
        if experiment.folder == newest:
            return experiments, experiment, damaged
        with suppress(UserError):
            (full,), more = gather([experiment.folder], processes=processes)
            return experiments, full, [*damaged, *more]
    raise damaged[-1].error


def read_members(
    folders: Sequence[Path], in_full: Sequence[bool], with_spans: Sequence[bool] | None = None, processes: int = 1
) -> list[Member | DamagedRun]:
    """Return each run, in order; one that cannot be read comes with the reason.

    Args:
        in_full, with_spans: for each run, whether its metrics and its spans are read, and not only what an overview
            needs; spans by default where metrics are.
    """
    wanted = folders, in_full, in_full if with_spans is None else with_spans
    if processes >= 2 and len(folders) >= FEWEST_FOR_PROCESSES:
        with suppress(BrokenProcessPool), spawn_pool(processes, gc.disable) as workers:  # rows have no reference cycles
            return list(workers.map(_read, *wanted, chunksize=8))
    return list(map(_read, *wanted))  # also where a worker was killed from outside, as where memory is short


def _read(folder: Path, in_full: bool, with_spans: bool) -> Member | DamagedRun:
    try:
        return member_of(read_table(folder, in_full), with_spans)
    except UserError as error:
        return DamagedRun(folder, error)


def member_of(table: RunTable, with_spans: bool = True) -> Member:
    """Return a run with its figures.

    Raises:
        UserError: its spans or its scenario are damaged.
    """
    times = span_times(table) if with_spans else None
    return Member(table, times, figures_of(table, times))


def _run_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders at or below the paths, each once."""
    return list({folder.resolve(): folder for path in paths for folder in find_run_folders(path)}.values())


def _experiments(
    folders: Iterable[Path], read: Iterable[Member | DamagedRun]
) -> tuple[list[Experiment], list[DamagedRun]]:
    runs: dict[Path, list[Member]] = {}
    damaged: list[DamagedRun] = []
    for folder, item in zip(folders, read, strict=True):
        if isinstance(item, DamagedRun):
            damaged.append(item)
        else:
            runs.setdefault(experiment_folder(folder, item.manifest), []).append(item)
    if not runs:
        first = damaged[0]
        what = f"none of the {len(damaged)} runs can be read; the first, {str(first.folder)!r}: {first.error.what}"
        raise UserError(what, where=first.error.where, fix=first.error.fix)
    experiments = [experiment_of(folder, members) for folder, members in runs.items()]
    return sorted(experiments, key=lambda item: (item.started_at, str(item.folder))), damaged


def experiment_folder(folder: Path, manifest: Manifest) -> Path:
    """Return the folder of the experiment that a run is of: its own where it is alone, as a recording may be."""
    has_a_name = manifest.arm is not None or manifest.block is not None or bool(manifest.point)
    is_one_of_several = has_a_name and manifest.experiment != folder.name
    return folder.parent if is_one_of_several else folder


def experiment_of(folder: Path, members: Sequence[Member]) -> Experiment:
    """Arrange the runs of one experiment, at least one, by arm."""
    labelled = label_runs([member.manifest for member in members])
    return Experiment(folder, tuple(members[place] for _, place in labelled), tuple(label for label, _ in labelled))


def label_runs(manifests: Sequence[Manifest]) -> list[tuple[str, int]]:
    """Return (arm's name, place of the run) in the order of showing.

    The names of simulated runs end in ``SIMULATED``. Arms come in the order of the scenario, or where that was not
    saved by start and then by name; their runs by seed.
    """
    points = [(manifest.arm, manifest.point) for manifest in manifests]
    labels = [
        label + (SIMULATED if manifest.simulated else "")
        for label, manifest in zip(arm_labels(points, manifests[0].scenario), manifests, strict=True)
    ]
    starts: dict[str, list[tuple[float, str]]] = {}
    for label, each in zip(labels, manifests, strict=True):
        starts.setdefault(label, []).append((math.inf if each.position is None else each.position, each.started_at))
    firsts = {label: (*map(min, zip(*own, strict=True)), natural_order(label)) for label, own in starts.items()}
    keys = [
        (*firsts[label], each.seed, -1 if each.block is None else each.block)
        for label, each in zip(labels, manifests, strict=True)
    ]
    return [(labels[index], index) for index in sorted(range(len(labels)), key=keys.__getitem__)]


def arm_labels(points: Sequence[tuple[str | None, Mapping[str, Any]]], otherwise: str) -> list[str]:
    """Name each (arm, point) without its seed, ``otherwise`` where neither has a name; keys are cut to their last part
    where that is unambiguous."""
    last_parts = {key: key.rpartition(".")[2] for _, point in points for key in point if key != "seed"}
    often = Counter(last_parts.values())
    short = {key: last if often[last] == 1 else key for key, last in last_parts.items()}
    parts = [
        [*([arm] if arm else []), *(f"{short[key]}={value}" for key, value in point.items() if key in short)]
        for arm, point in points
    ]
    return [", ".join(each) or otherwise for each in parts]


def is_called(name: str, asked: str) -> bool:
    """Whether an arm's name is the one that is asked for, whether or not that says ``SIMULATED``."""
    return name.removesuffix(SIMULATED) == asked.removesuffix(SIMULATED)


def arm_named(experiment: Experiment, name: str | None) -> str:
    """Return an arm's name in full; None is the first one.

    Raises:
        UserError: there is none of that name.
    """
    if name is None:
        return experiment.labels[0]
    for arm in experiment.arms:
        if is_called(arm, name):
            return arm
    names = ", ".join(experiment.arms)
    raise UserError(
        f"{experiment.scenario}/{experiment.name} has no arm called {name!r}", "--baseline", f"it has {names}"
    )
