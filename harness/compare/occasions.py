"""A baseline measured on other occasions: experiments in folders of their own.

What a machine does between two evenings is in none of the blocks of either, so a baseline says by its occasions how far
occasions of the same thing lie apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.compare.completeness import gap_sentence, gaps, planned_homes
from harness.compare.experiment import Experiment, Member, arm_named, gather, is_called
from harness.compare.numbers import plural, some
from harness.core.errors import UserError

CLOSE_S = 3600
"""Occasions within so many seconds say little of another day."""


@dataclass(frozen=True)
class Baseline:
    """What an experiment is set against: at least one experiment, oldest first, and the arm of them.

    Without an arm's name each arm is set against that of its own name, or where an occasion has none of that name,
    against the newest occasion's first.
    """

    occasions: tuple[Experiment, ...]
    arm: str | None = None

    def arms_for(self, name: str) -> list[str]:
        """Return the arm of each occasion that an experiment's arm is set against.

        Raises:
            UserError: an occasion does not have it.
        """
        has_it = all(any(is_called(arm, name) for arm in item.arms) for item in self.occasions)
        wanted = self.arm or (name if has_it else self.occasions[-1].labels[0])
        return [arm_named(item, wanted) for item in self.occasions]

    def runs_for(self, name: str) -> list[tuple[Member, ...]]:
        """Return the runs of ``arms_for``, occasion by occasion."""
        return [item.arms[arm] for item, arm in zip(self.occasions, self.arms_for(name), strict=True)]

    def has(self, experiment: Experiment) -> bool:
        """Whether an experiment, or what it is a copy of, is one of the occasions."""
        own = experiment.scenario, experiment.name, experiment.started_at
        return any(
            own == (item.scenario, item.name, item.started_at) or experiment.folder.resolve() == item.folder.resolve()
            for item in self.occasions
        )

    def cautions(self) -> list[str]:
        """Say what keeps the spread of the occasions from being that of another day."""
        starts = [datetime.fromisoformat(item.started_at) for item in self.occasions]
        seconds = (starts[-1] - starts[0]).total_seconds()
        if len(starts) == 1 or seconds >= CLOSE_S:
            return []
        within = plural(round(seconds / 60), "minute")
        return [
            f"all occasions of the baseline began within {within}, which says less of another day than occasions hours "
            "or days apart"
        ]


def read_occasions(folders: Sequence[Path], arm: str | None = None) -> Baseline:
    """Read the experiments, one in each folder, that are the occasions of a baseline.

    Raises:
        UserError: a folder holds no experiment, or several; runs of one are damaged, missing or did not get to their
            end; or one has no such arm.
    """
    occasions = sorted(map(_occasion, folders), key=lambda item: (item.started_at, str(item.folder)))
    baseline = Baseline(tuple(occasions), arm)
    baseline.arms_for(occasions[-1].labels[0])
    return baseline


def _occasion(folder: Path) -> Experiment:
    (experiment, *others), damaged = gather([folder])
    homes = {home.resolve() for home in (experiment.folder, *(item.folder for item in others), *planned_homes(folder))}
    if len(homes) > 1:
        what = f"{str(folder)!r} holds {len(homes)} experiments, and one is an occasion of a baseline"
        raise UserError(what, "--against", "name the folder of each experiment")
    missing = gaps(experiment, damaged).runs
    unfinished = [member.folder.name for member in experiment.members if not member.is_completed]
    if missing or damaged or unfinished:
        why = f"{plural(len(unfinished), 'run')} did not finish ({', '.join(some(unfinished))})"
        why = gap_sentence(missing) if missing else damaged[0].error.what if damaged else why
        what = f"{str(folder)!r} is not whole, so it is no occasion of a baseline: {why}"
        raise UserError(what, "--against", "measure it again, or leave it out")
    return experiment
