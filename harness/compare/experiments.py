"""Read runs and group them: an experiment is one command's runs, a variant its runs that differ in the seed alone."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from harness.compare.figures import RunFigures, run_figures
from harness.compare.numbers import Spread, spread_of
from harness.core.errors import UserError
from harness.core.spawn_pool import spawn_pool
from harness.results import DamagedRun, Manifest, find_run_folders, load_run, natural_order, read_manifest

FEWEST_FOR_PROCESSES = 150
"""Runs from which on more processes pay: starting one takes as long as reading about 40 runs of 200 steps."""
_AT_A_TIME = 8


class Detail(Enum):
    """How much of a run is read: what an overview needs, all but the spans, or everything."""

    OVERVIEW = auto()
    WITHOUT_SPANS = auto()
    FULL = auto()


def read_figures(
    folders: Sequence[Path], details: Sequence[Detail], processes: int = 1
) -> list[RunFigures | DamagedRun]:
    """Return the figures of each run, in order; a run that cannot be read comes with the reason.

    Only figures are kept: the rows of a run go as soon as its figures are made.

    Args:
        details: for each run, how much of it is wanted.
        processes: how many may read side by side, where there are enough runs for it to pay. The caller's main module
            must be safe to import, as of any program that starts processes.
    """
    if processes < 2 or len(folders) < FEWEST_FOR_PROCESSES:
        return list(map(_read, folders, details))
    try:
        with spawn_pool(processes, gc.disable) as workers:  # rows have no reference cycles
            return list(workers.map(_read, folders, details, chunksize=_AT_A_TIME))
    except BrokenProcessPool:  # a worker was killed from outside, as where memory is short
        return list(map(_read, folders, details))


def _read(folder: Path, detail: Detail) -> RunFigures | DamagedRun:
    try:
        return run_figures(load_run(folder), detail is Detail.OVERVIEW, detail is Detail.FULL)
    except UserError as error:
        return DamagedRun(folder, error)


MOST_WITH_SPANS = 200
"""Runs of an experiment whose spans are read where not all are asked for: a third of the time of a reading."""
SIMULATED = " (simulated)"
"""What the name of a variant ends in whose runs never took place, wherever it is shown."""


@dataclass(frozen=True)
class Variant:
    """An arm or a sweep point: its runs, one for each seed."""

    name: str
    runs: tuple[RunFigures, ...]

    def spread(self, figure: Callable[[RunFigures], float | None]) -> Spread | None:
        """Return a figure's spread over the runs, or None if no run has it."""
        return spread_of([figure(run) for run in self.runs])


@dataclass(frozen=True)
class Experiment:
    """The runs of one command.

    Attributes:
        folder: the experiment's folder.
        variants: in the order in which they were started.
    """

    folder: Path
    scenario: str
    name: str
    started_at: str
    variants: tuple[Variant, ...]

    @property
    def runs(self) -> list[RunFigures]:
        """All runs, variant by variant."""
        return [run for variant in self.variants for run in variant.runs]

    @property
    def simulated(self) -> str | None:
        """Name of the machine profile by which runs of it were simulated; None where all took place."""
        names = dict.fromkeys(run.manifest.simulated for run in self.runs if run.manifest.simulated)
        return ", ".join(names) or None

    @property
    def title(self) -> str:
        """The scenario's name for a heading, which says where runs were simulated."""
        return self.scenario + (SIMULATED if self.simulated else "")


def gather(paths: Iterable[Path], brief: bool = False, processes: int = 1) -> tuple[list[Experiment], list[DamagedRun]]:
    """Read the runs at or below the paths into experiments, oldest first; the runs that cannot be read come second.

    Args:
        brief: compute what an overview needs only.
        processes: how many may read side by side.

    Raises:
        UserError: a path does not exist or holds no run, or every run is damaged.
    """
    folders = _run_folders(paths)
    detail = Detail.OVERVIEW if brief else Detail.FULL
    return _experiments(folders, read_figures(folders, [detail] * len(folders), processes))


def gather_newest(paths: Iterable[Path], processes: int = 1) -> tuple[list[Experiment], Experiment, list[DamagedRun]]:
    """Read all runs for an overview, and those of the newest experiment in full; each once.

    Of an experiment of more than ``MOST_WITH_SPANS`` runs, the spans of evenly spaced ones are read: as many at most.

    Returns:
        the experiments, oldest first; the newest one of which a run can be read in full; the runs that cannot be read.

    Raises:
        UserError: a path does not exist or holds no run, or none can be read in full.
    """
    folders = _run_folders(paths)
    newest, members = _newest_experiment(folders)
    with_spans = set(members[:: math.ceil(len(members) / MOST_WITH_SPANS) or 1])
    details = [Detail.FULL if folder in with_spans else Detail.WITHOUT_SPANS for folder in members]
    wanted = dict(zip(members, details, strict=True))
    read = read_figures(folders, [wanted.get(folder, Detail.OVERVIEW) for folder in folders], processes)
    experiments, damaged = _experiments(folders, read)
    full = next((experiment for experiment in experiments if experiment.folder == newest), None)
    return experiments, full or _newest_in_full(experiments, damaged), damaged


def _newest_in_full(experiments: Sequence[Experiment], damaged: list[DamagedRun]) -> Experiment:
    """Read the newest experiment again in full; runs that turn out to be damaged join the others."""
    for experiment in reversed(experiments):
        try:
            (full,), bad = gather([experiment.folder])
        except UserError as error:
            damaged.append(DamagedRun(experiment.folder, error))
        else:
            damaged += bad
            return full
    raise damaged[-1].error


def _run_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders at or below the paths, each once."""
    return list({folder.resolve(): folder for path in paths for folder in find_run_folders(path)}.values())


def _newest_experiment(folders: Iterable[Path]) -> tuple[Path | None, list[Path]]:
    """Return the folder of the experiment that started last and its run folders, by their manifests alone."""
    members: dict[Path, list[tuple[str, Path]]] = {}
    for folder in folders:
        with suppress(UserError):  # reading the run in full will say so
            manifest = read_manifest(folder)
            members.setdefault(_experiment_folder(folder, manifest), []).append((manifest.started_at, folder))
    if not members:
        return None, []
    newest = max(members, key=lambda home: (min(members[home])[0], str(home)))
    return newest, [folder for _, folder in members[newest]]


def _experiments(
    folders: Iterable[Path], read: Iterable[RunFigures | DamagedRun]
) -> tuple[list[Experiment], list[DamagedRun]]:
    runs: dict[Path, list[RunFigures]] = {}
    damaged: list[DamagedRun] = []
    for folder, item in zip(folders, read, strict=True):
        if isinstance(item, DamagedRun):
            damaged.append(item)
        else:
            runs.setdefault(_experiment_folder(folder, item.manifest), []).append(item)
    if not runs:
        first = damaged[0]
        what = f"none of the {len(damaged)} runs can be read; the first, {str(first.folder)!r}: {first.error.what}"
        raise UserError(what, where=first.error.where, fix=first.error.fix)
    experiments = [experiment_of(folder, members) for folder, members in runs.items()]
    return sorted(experiments, key=lambda item: (item.started_at, str(item.folder))), damaged


def label_runs(manifests: Sequence[Manifest]) -> list[tuple[str, int]]:
    """Return (variant's name, index of the run) in the order of showing; the first variant is the baseline.

    The names of simulated runs end in ``SIMULATED``.

    Variants come in the order of the scenario, or where that was not saved by start and then by name; their runs by
    seed.
    """
    points = [(manifest.arm, manifest.point) for manifest in manifests]
    labels = [
        label + (SIMULATED if manifest.simulated else "")
        for label, manifest in zip(variant_labels(points, manifests[0].scenario), manifests, strict=True)
    ]
    positions, starts = dict[str, float](), dict[str, str]()
    for label, manifest in zip(labels, manifests, strict=True):
        position = math.inf if manifest.position is None else manifest.position
        positions[label] = min(positions.get(label, position), position)
        starts[label] = min(starts.get(label, manifest.started_at), manifest.started_at)
    names = {label: natural_order(label) for label in positions}

    def place(index: int) -> tuple[Any, ...]:
        label, manifest = labels[index], manifests[index]
        block = -1 if manifest.block is None else manifest.block
        return positions[label], starts[label], names[label], manifest.seed, block

    return [(labels[index], index) for index in sorted(range(len(labels)), key=place)]


def is_called(name: str, asked: str) -> bool:
    """Whether a variant's name is the one that is asked for, whether or not that says ``SIMULATED``."""
    return name.removesuffix(SIMULATED) == asked.removesuffix(SIMULATED)


def variant_named(experiment: Experiment, name: str | None) -> Variant:
    """Return a variant by its name; None is the first one.

    Raises:
        UserError: there is none of that name.
    """
    if name is None:
        return experiment.variants[0]
    for variant in experiment.variants:
        if is_called(variant.name, name):
            return variant
    names = ", ".join(variant.name for variant in experiment.variants)
    raise UserError(
        f"{experiment.scenario}/{experiment.name} has no arm called {name!r}", "--baseline", f"it has {names}"
    )


def variant_labels(points: Sequence[tuple[str | None, dict[str, Any]]], otherwise: str) -> list[str]:
    """Name each (arm, point) without its seed; sweep keys are cut to their last part where that is unambiguous.

    Args:
        otherwise: the name where there is neither an arm nor a swept key.
    """
    keys = {key for _, point in points for key in point if key != "seed"}
    last_parts = [key.rpartition(".")[2] for key in keys]
    short = {key: last if last_parts.count(last) == 1 else key for key in keys for last in [key.rpartition(".")[2]]}
    labels = []
    for arm, point in points:
        parts = [arm] if arm else []
        parts += [f"{short[key]}={value}" for key, value in point.items() if key != "seed"]
        labels.append(", ".join(parts) or otherwise)
    return labels


def _experiment_folder(folder: Path, manifest: Manifest) -> Path:
    is_variant = manifest.arm is not None or manifest.block is not None or bool(manifest.point)
    return folder.parent if is_variant else folder


def experiment_of(folder: Path, runs: Sequence[RunFigures]) -> Experiment:
    """Arrange the runs of one experiment, at least one, by variant.

    Args:
        folder: the experiment's.
    """
    manifests = [run.manifest for run in runs]
    grouped: dict[str, list[RunFigures]] = {}
    for label, index in label_runs(manifests):
        grouped.setdefault(label, []).append(runs[index])
    variants = tuple(Variant(label, tuple(members)) for label, members in grouped.items())
    started_at = min(manifest.started_at for manifest in manifests)
    return Experiment(folder, manifests[0].scenario, manifests[0].experiment, started_at, variants)


FEWEST_SEEDS = 3
CONFIDENCE = 0.95
