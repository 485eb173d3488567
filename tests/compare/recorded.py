"""Experiments read from folders; the reference ones once for every test that only looks at them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from harness.compare.experiment import Experiment, gather

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
NAMES = tuple(sorted(path.name for path in REFERENCE.iterdir() if path.is_dir()))


def only_experiment(folder: Path) -> Experiment:
    """Return the only experiment in a folder; none of its runs is damaged."""
    (experiment,), damaged = gather([folder])
    assert damaged == []
    return experiment


@cache
def recorded(name: str) -> tuple[Experiment, ...]:
    """Return the experiments in a folder of ``results/reference``, oldest first; none of their runs is damaged."""
    experiments, damaged = gather([REFERENCE / name])
    assert damaged == []
    return tuple(experiments)
