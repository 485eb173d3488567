"""What an experiment set out to run: written when it begins, so that a run that is missing later is missed.

``experiment.json`` lies in the experiment's folder. Experiments of before it was written have none, and neither have
those that were imported or simulated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.file_locks import holding
from harness.results.jsonl import check_schema, decode_json, read_checked
from harness.results.rows import SCHEMA_VERSION, Whole
from harness.results.writer import writing

EXPERIMENT, SCHEMA = "experiment.json", "harness.experiment"


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
    """Every run that an experiment set out to make, in the order of the scenario.

    ``enough_after``: blocks after which its own rule (``stop_at_half_width``) ended it; None where it did not.
    """

    runs: tuple[PlannedRun, ...]
    enough_after: Whole | None = None

    @property
    def due(self) -> list[PlannedRun]:
        """The runs that have to be there: all, or those of the blocks up to the one that was enough."""
        end = self.enough_after
        return [run for run in self.runs if end is None or run.block is None or run.block < end]


def write_plan(experiment: Path, plan: ExperimentPlan) -> None:
    """Save the plan in the experiment's folder, in place of a former one.

    Raises:
        UserError: it cannot be written.
    """
    data = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION} | asdict(plan)
    with writing(experiment), whole_file(experiment / EXPERIMENT) as stream:
        stream.write((json.dumps(data, indent=1) + "\n").encode())


def read_plan(experiment: Path) -> ExperimentPlan | None:
    """Read what an experiment set out to run; None where that was not written.

    Raises:
        UserError: the file is damaged or of an unknown version.
    """
    path = experiment / EXPERIMENT
    if not path.exists():
        return None

    def parse(data: bytes) -> ExperimentPlan:
        check_schema(data, SCHEMA, str(path))
        return cast(ExperimentPlan, decode_json(data, ExperimentPlan))

    return read_checked(path, parse)


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Keep other commands out of the experiment that a file lies in; the hold ends with the process, however that ends.

    Raises:
        UserError: another command is at work there.
    """
    with holding(file) as is_mine:
        if not is_mine:
            what = "another command is at work in this experiment"
            raise UserError(what, str(file.parent), "wait until it has ended, or stop it")
        yield
