"""Runs, comparisons and forecasts from Python and its notebooks: what the commands do, as objects that print as text.

``harness`` offers these functions under its own name. ``harness.run``, ``harness.compare`` and ``harness.simulate`` are
packages, hence the longer names here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.results.frames import Results

if TYPE_CHECKING:
    from harness.compare.experiment import Experiment
    from harness.compare.judging import Judgement
    from harness.report.document import Document
    from harness.scenario.schema import Scenario
    from harness.simulate.forecast import Forecasted
    from harness.simulate.machine import MachineProfile

Changes = Mapping[str, Any] | Sequence[str]
"""Settings by their dotted keys, ``{"steps": 20}``; or as after ``--set``, ``["steps=20"]``."""
WIDTH = 110
"""Columns of the text."""


def _printed(print_on: Callable[[Console], None]) -> str:
    file = StringIO()
    print_on(Console(file=file, width=WIDTH, highlight=False, color_system=None))
    return file.getvalue().strip("\n")


@dataclass(frozen=True, repr=False)
class Comparison:
    """An experiment: its arms side by side, with verdicts on their differences; as text the answer and one table.

    Attributes:
        experiment: the numbers of every run, arm by arm; ``experiment.runs`` is a frame.
        verdicts: on every arm against the first one; none where there is one arm.
        left_out: folders that could not be read, and why.
        full: whether its text is all tables and sentences.
    """

    experiment: Experiment
    verdicts: tuple[Judgement, ...]
    left_out: tuple[str, ...] = ()
    full: bool = False

    @property
    def folder(self) -> Path:
        """The experiment's folder."""
        return self.experiment.folder

    @property
    def results(self) -> Results:
        """The runs with their steps, spans, rollouts and syncs as pandas frames; see ``harness.load_results``."""
        return self.experiment.results

    @cached_property
    def document(self) -> Document:
        """What the experiment says: the answer, tables, charts."""
        from harness.report.build import document

        return document(self.experiment, self.verdicts)

    def in_full(self) -> Comparison:
        """Return the same with all tables and sentences, as ``harness compare --full`` prints them."""
        return replace(self, full=True)

    def __repr__(self) -> str:
        from harness.report.terminal import print_document

        text = _printed(lambda console: print_document(console, self.document, full=self.full))
        return "\n".join([text, *map(plain, self.left_out)])


@dataclass(frozen=True, repr=False)
class Forecasts:
    """What is predicted of a scenario's runs on a machine; as text with what holds each run up, and was extrapolated.

    Attributes:
        runs: of each its label, scenario and ``forecast``: figures with 90% intervals.
        machine: the profile.
        allow: see ``simulate_scenario``.
    """

    runs: tuple[Forecasted, ...]
    machine: MachineProfile
    allow: Collection[str] = ()

    def __repr__(self) -> str:
        from harness.simulate.experiment import show_forecasts

        return _printed(lambda console: show_forecasts(self.runs, self.machine, console, self.allow))


def run_scenario(
    scenario: str | Path, changes: Changes = (), *, out: str | Path = "results", quiet: bool = True
) -> Comparison:
    """Run a scenario, with all its arms and blocks, as ``python -m harness run`` does.

    Args:
        scenario: a YAML file, or the name of one that ``python -m harness list`` shows.
        changes: settings laid over it.
        out: the results folder.
        quiet: show no progress.

    Returns:
        what was measured; its runs stay in ``folder``.

    Raises:
        UserError: the scenario says something wrong, or names what cannot be used here.
        RunStopped: a run had to stop; its folder says why.
        Interrupted: Ctrl-C.
    """
    from harness.core.atomic_files import check_writable
    from harness.run import experiment

    loaded, folders = load_scenario(scenario, changes), list[Path]()
    check_writable(Path(out))
    with _loop_aside():
        experiment.run_scenario(loaded, Path(out), quiet, show=folders.append)
    return compare_runs(folders[0])


def compare_runs(folder: str | Path, *, baseline: str | None = None, allow: Sequence[str] = ()) -> Comparison:
    """Compare the newest experiment at or below a folder, as ``python -m harness compare`` does.

    Args:
        folder: results folder, experiment or run.
        baseline: the arm against which the others are set; None takes the first one.
        allow: differences of the environment that do not stand in the way of a verdict: ``machine``, ``versions``,
            ``threads``, ``commit``.

    Raises:
        UserError: there is no such folder, no run in it, or no such arm.
    """
    from harness.compare.experiment import gather_newest
    from harness.compare.judging import judgements

    _, newest, damaged = gather_newest([Path(folder)])
    left_out = tuple(f"left out {str(item.folder)!r}: {item.error.what}" for item in damaged)
    return Comparison(newest, tuple(judgements(newest, baseline, allowed=allow)), left_out)


def simulate_scenario(
    scenario: str | Path,
    machine: str | Path,
    changes: Changes = (),
    *,
    arm: str | None = None,
    draws: int | None = None,
    seed: int = 0,
    allow: Collection[str] = (),
) -> Forecasts:
    """Predict a scenario's runs on a machine, as ``python -m harness simulate`` does; nothing is written.

    Args:
        scenario: a YAML file, or a name.
        machine: a machine profile: a YAML file, or the name of one in ``profiles/machines``.
        changes: settings laid over the scenario.
        arm: predict this one alone.
        draws: simulated worlds behind an interval; None takes the command's number.
        seed: of the worlds.
        allow: circumstances in which the profile may differ from the scenario, such as ``engine`` or ``transport``;
            ``versions``: take this machine's profile although it was measured with other versions of the packages.

    Raises:
        UserError: scenario or profile cannot be used, or the profile does not know a stage that is needed.
    """
    from harness.simulate.command import ALLOWED, VERSIONS
    from harness.simulate.experiment import check_measured_here, forecasts
    from harness.simulate.forecast import DRAWS
    from harness.simulate.machine import load_machine
    from harness.simulate.points import load_for, variants_of

    if unknown := [name for name in allow if name not in ALLOWED]:
        raise UserError(f"{unknown[0]!r} is nothing that can be allowed", "allow", f"one of {', '.join(ALLOWED)}")
    profile = load_machine(machine)
    check_measured_here(profile, VERSIONS in allow)
    loaded, _ = load_for(scenario, profile, _typed(changes))
    variants = [variant for variant in variants_of(loaded, arm) if not variant.block]
    with _loop_aside():
        return Forecasts(tuple(forecasts(variants, profile, draws or DRAWS, seed, allow)), profile, allow)


def load_scenario(scenario: str | Path, changes: Changes = ()) -> Scenario:
    """Load a scenario and check it, as ``python -m harness validate`` does; runs none of the code that it names.

    Args:
        scenario: a YAML file, or a name.
        changes: settings laid over it.

    Raises:
        UserError: it says something wrong; one error names every problem.
    """
    from harness.scenario import load

    return load.load_scenario(scenario, _typed(changes))


def _typed(changes: Changes) -> list[str]:
    """Return changes as after ``--set``; every JSON value is one of YAML."""
    if isinstance(changes, str):
        raise UserError(f"changes are {changes!r}", "changes", 'write {"steps": 20}, or ["steps=20"]')
    if isinstance(changes, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return list(changes)


@contextmanager
def _loop_aside() -> Iterator[None]:
    """Lay a running event loop aside, as a notebook's cell has one: a run has its own in this thread.

    In another thread Ctrl-C would not reach it.
    """
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        if outer is not None:
            asyncio.set_event_loop(outer)
