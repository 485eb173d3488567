"""What a name of another trainer's log becomes here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Values = Mapping[str, float]
Reduction = Literal["mean", "sum", "max", "min"]

# Names that the importer puts beside those of the log
DEVICES = "--devices"
STEPS = "steps since the row before"
GROWTH = "growth of "  # + a name whose value counts up from the run's start


class Role(StrEnum):
    """Where a value goes."""

    STEP = "seconds of the step"
    STAGE = "seconds of a stage"
    METRIC = "metric of the step"
    VALIDATION = "metric of the evaluation"


def same(*values: float) -> float:
    """Return the one value as it is."""
    (value,) = values
    return value


def total(*values: float) -> float:
    """Return the sum."""
    return sum(values)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a crosswalk.

    Of the entries with the same role and name here, the first whose names are all in the log is used.

    Attributes:
        theirs: names in the log. ``*`` in a single name stands for one part of a path, and for the same in ``ours``.
        ours: name here; the stage's for a stage, empty for the step's seconds.
        lane: of a stage.
        compute: from the values of ``theirs`` in that order; raises ZeroDivisionError where there is none.
        how: the computation and the unit in words, for the documentation.
        source: where the trainer writes it: a path in its repository.
    """

    theirs: tuple[str, ...]
    ours: str
    role: Role
    how: str
    source: str
    lane: str = ""
    reduction: Reduction = "mean"
    compute: Callable[..., float] = same

    @property
    def is_renaming(self) -> bool:
        """Whether the value is the log's own, so that nothing is lost with the name."""
        return self.compute is same


@dataclass(frozen=True, slots=True)
class Crosswalk:
    """How the log of one trainer is read.

    Attributes:
        trainer: its name on the command line.
        title: its name in sentences.
        repository: of the sources that the entries name.
        step_names: the fields of a record that may hold its step; the first that is there counts.
        clock_names: fields with the time of a record in seconds, used where no step's seconds are in the log.
        validation: how the names of an evaluation begin.
        bookkeeping: names that alone make no training step.
        run_totals: names of the whole run, which come once at its end.
        cumulative: names whose value counts up from the run's start.
        prefixes: what one of its loggers puts before the names -> what stands there in its other logs.
        optimizer_steps: in one training step; 0 where the log does not tell.
    """

    trainer: str
    title: str
    repository: str
    entries: tuple[Entry, ...]
    step_names: tuple[str, ...]
    validation: tuple[str, ...]
    clock_names: tuple[str, ...] = ("_timestamp", "_runtime")
    bookkeeping: frozenset[str] = frozenset()
    run_totals: frozenset[str] = frozenset()
    cumulative: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()
    optimizer_steps: int = 0

    def plain_name(self, name: str) -> str:
        """Return a name as the trainer's own log has it, whatever logger wrote it."""
        for prefix, instead in self.prefixes:
            if name.startswith(prefix):
                return instead + name[len(prefix) :]
        return name

    def is_validation(self, name: str) -> bool:
        """Whether the name belongs to an evaluation."""
        return name.startswith(self.validation)
