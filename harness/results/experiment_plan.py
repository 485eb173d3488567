"""What an experiment set out to run: written when it begins, so that a run that is missing later is missed.

``experiment.json`` lies in the experiment's folder. Experiments of before it was written have none, and neither have
those that were imported or simulated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.file_locks import holding
from harness.results.jsonl import read_json
from harness.results.rows import Whole
from harness.results.writer import cannot_write

EXPERIMENT = "experiment.json"
SCHEMA, SCHEMA_VERSION = "harness.experiment", 1


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that an experiment set out to make.

    Attributes:
        folder: its name below the experiment's folder; empty where the experiment is this one run.
        variant: name of its arm and point, which it shares with its runs in other blocks.
        block: None where the scenario asks for no blocks.
    """

    folder: str
    variant: str
    block: Whole | None = None


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """Every run that an experiment set out to make.

    Attributes:
        runs: in the order of the scenario.
        enough_after: blocks after which its own rule (``stop_at_half_width``) ended it; None where it did not.
    """

    runs: tuple[PlannedRun, ...]
    enough_after: Whole | None = None

    @property
    def due(self) -> list[PlannedRun]:
        """The runs that have to be there: all, or those of the blocks up to the one that was enough."""
        if self.enough_after is None:
            return list(self.runs)
        return [run for run in self.runs if run.block is None or run.block < self.enough_after]

    def ended_after(self, blocks: int) -> ExperimentPlan:
        """Return the plan of an experiment whose own rule ended it after so many blocks."""
        return replace(self, enough_after=blocks)


def write_plan(experiment: Path, plan: ExperimentPlan) -> None:
    """Save the plan in the experiment's folder, in place of a former one.

    Raises:
        UserError: it cannot be written.
    """
    data = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION} | asdict(plan)
    try:
        with whole_file(experiment / EXPERIMENT) as stream:
            stream.write((json.dumps(data, indent=1) + "\n").encode())
    except OSError as error:
        raise cannot_write(experiment, error) from error


def read_plan(experiment: Path) -> ExperimentPlan | None:
    """Read what an experiment set out to run; None where that was not written.

    Raises:
        UserError: the file is damaged or of an unknown version.
    """
    path = experiment / EXPERIMENT
    if not path.exists():
        return None
    head = read_json(path, dict[str, Any])
    if (head.get("schema"), head.get("schema_version")) != (SCHEMA, SCHEMA_VERSION):
        raise UserError(f"{str(path)!r} is no plan of version {SCHEMA_VERSION} of an experiment", str(path))
    return read_json(path, ExperimentPlan)


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Keep other commands out of an experiment; the hold ends with the process, however that ends.

    Args:
        file: in its folder, which is never replaced.

    Raises:
        UserError: another command is at work there.
    """
    with holding(file) as is_mine:
        if not is_mine:
            what = "another command is at work in this experiment"
            raise UserError(what, str(file.parent), "wait until it has ended, or stop it")
        yield
