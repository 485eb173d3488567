"""Group runs: a campaign is one command's runs, a variant the runs of it that differ in nothing but the seed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compare.figures import RunFigures, run_figures
from harness.errors import UserError
from harness.results import DamagedRun, Manifest, find_run_folders, load_run


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the runs of a variant: mean, lowest, highest, and how many of how many runs have it."""

    mean: float
    low: float
    high: float
    known: int
    runs: int


@dataclass(frozen=True)
class Variant:
    """An arm or a sweep point: its runs, one for each seed."""

    name: str
    runs: tuple[RunFigures, ...]

    def spread(self, figure: Callable[[RunFigures], float | None]) -> Spread | None:
        """Return a figure's spread over the runs, or None if no run has it."""
        values = [value for value in map(figure, self.runs) if value is not None]
        if not values:
            return None
        return Spread(sum(values) / len(values), min(values), max(values), len(values), len(self.runs))


@dataclass(frozen=True)
class Campaign:
    """The runs of one command.

    Attributes:
        folder: the campaign's folder.
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


def gather(paths: Iterable[Path], brief: bool = False) -> tuple[list[Campaign], list[DamagedRun]]:
    """Read the runs at or below the paths into campaigns, oldest first; the runs that cannot be read come second.

    Args:
        brief: compute what an overview needs only; see ``run_figures``.

    Raises:
        UserError: a path does not exist or holds no run, or every run is damaged.
    """
    folders = {folder.resolve(): folder for path in paths for folder in find_run_folders(path)}
    found: dict[Path, list[RunFigures]] = {}
    damaged: list[DamagedRun] = []
    for folder in folders.values():
        try:
            figures = run_figures(load_run(folder), brief)
        except UserError as error:
            damaged.append(DamagedRun(folder, error))
        else:
            found.setdefault(_campaign_folder(folder, figures), []).append(figures)
    if not found:
        raise _all_damaged(damaged)
    campaigns = [_campaign(folder, runs) for folder, runs in found.items()]
    return sorted(campaigns, key=lambda item: (item.started_at, str(item.folder))), damaged


def label_runs(manifests: Sequence[Manifest]) -> list[tuple[str, int]]:
    """Return (variant's name, index of the run) in the order of showing; the first variant is the baseline.

    Variants come in the order of the scenario, or where that was not saved by start and then by name; their runs by
    seed.
    """
    points = [(manifest.arm, manifest.point) for manifest in manifests]
    labels = variant_labels(points, manifests[0].scenario)
    positions, started = _earliest(labels, manifests, _position), _earliest(labels, manifests, _start)

    def place(index: int) -> tuple[Any, ...]:
        label = labels[index]
        return positions[label], started[label], _natural(label), manifests[index].seed

    return [(labels[index], index) for index in sorted(range(len(labels)), key=place)]


def _earliest(labels: Sequence[str], manifests: Sequence[Manifest], read: Callable[[Manifest], Any]) -> dict[str, Any]:
    return {
        label: min(read(manifest) for manifest, name in zip(manifests, labels, strict=True) if name == label)
        for label in labels
    }


def _position(manifest: Manifest) -> float:
    return math.inf if manifest.position is None else manifest.position


def _start(manifest: Manifest) -> str:
    return manifest.started_at


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


def _campaign_folder(folder: Path, run: RunFigures) -> Path:
    is_variant = run.manifest.arm is not None or bool(run.manifest.point)
    return folder.parent if is_variant else folder


def _campaign(folder: Path, runs: list[RunFigures]) -> Campaign:
    manifests = [run.manifest for run in runs]
    grouped: dict[str, list[RunFigures]] = {}
    for label, index in label_runs(manifests):
        grouped.setdefault(label, []).append(runs[index])
    variants = tuple(Variant(label, tuple(members)) for label, members in grouped.items())
    started_at = min(manifest.started_at for manifest in manifests)
    return Campaign(folder, manifests[0].scenario, manifests[0].campaign, started_at, variants)


def _natural(label: str) -> list[tuple[int, str]]:
    """Order names with numbers as numbers: k2 before k10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", label)]


def _all_damaged(damaged: list[DamagedRun]) -> UserError:
    first = damaged[0]
    return UserError(
        f"none of the {len(damaged)} runs can be read; the first, {str(first.folder)!r}: {first.error.what}",
        where=first.error.where,
        fix=first.error.fix,
    )
