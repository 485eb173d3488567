"""Experiments on simulated parts, which take no time: what was started, in which order, and what fails in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
from transformers import PreTrainedTokenizerFast

from harness.core.checkpoints import write_file
from harness.core.trace import RecordingTracer, Stage
from harness.core.types import RolloutGroup, UpdateResult
from harness.learner.checkpoint import SavedState
from harness.learner.warm_start import lessons
from harness.models.tokenizer import train_tokenizer
from harness.results import Run, find_runs
from harness.run import session
from harness.run.continuation import SWEEP
from harness.run.earlier_runs import recorded_text
from harness.run.engine import Tries
from harness.run.experiment import run_scenario
from harness.run.parts import Build, RunningParts
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.parts import SimulatedLearner
from tests.stand_ins.simulated_parts import FREE, build_simulated_parts, simulated_learner

QUIET = 'profile: "off"\ntrackers: []\n'
"""Settings of runs that write nothing beside their rows."""
Load = Callable[[str], Scenario]
Caps, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
BUILT = -1
"""In place of a training step: while the parts are being built."""
Errors = Mapping[int, Sequence[tuple[int, BaseException] | None]]


def unseen(folder: Path) -> None:
    """Show nothing: drawing has tests of its own."""


class PlannedLearner(SimulatedLearner):
    """A Learner that tells its training steps and may raise in one; its state is the number of steps."""

    tell: Callable[[int], object]
    tracer: RecordingTracer
    error: tuple[int, BaseException] | None = None
    saved: tuple[SavedState, ...] | None = None

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        self.tell(step)
        if self.error is not None and step == self.error[0]:
            with self.tracer.span(self.lane, Stage.UPDATE, step, step):
                raise self.error[1]
        return await super().update(step, groups)

    async def save_state(self, folder: Path, version: int, *, asynchronous: bool) -> float:
        self.saved = (SavedState((write_file(folder, "learner", [str(version).encode()]),), 1, 0.0, 0, 0),)
        return 0.0

    async def finish_save(self, *, wait: bool = True) -> tuple[SavedState, ...] | None:
        return self.saved

    async def load_state(self, folder: Path) -> int:
        return int((folder / "learner").read_text())


class Planned:
    """Builds simulated parts of which some fail.

    Args:
        errors: what the starts of one number, seed or ``epochs_per_batch`` raise, one after the other: in which
            training step (or ``BUILT``), and what.

    Attributes:
        started: of each start its seed, its epochs and the training steps that it began.
        story: epochs and training step, in the order in which they were begun.
    """

    def __init__(self, errors: Errors | None = None, by: Literal["number", "seed", "epochs"] = "number") -> None:
        self.errors, self.by = {key: list(each) for key, each in (errors or {}).items()}, by
        self.started, self.story = list[tuple[int, int, list[int]]](), list[tuple[int, int]]()

    @property
    def seeds(self) -> list[int]:
        return [seed for seed, _, _ in self.started]

    def __call__(self, resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = build_simulated_parts(resolved, tracer, should_stop)
        epochs, begun = resolved.epochs_per_batch, list[int]()
        key = {"number": len(self.started), "seed": resolved.seed, "epochs": epochs}[self.by]
        learner = simulated_learner(tracer, FREE, epochs_per_batch=epochs, of=PlannedLearner)
        learner.error = self.errors[key].pop(0) if self.errors.get(key) else None
        learner.tracer = tracer
        learner.tell = lambda step: (begun.append(step), self.story.append((epochs, step)))
        self.started.append((resolved.seed, epochs, begun))
        if learner.error is not None and learner.error[0] == BUILT:
            raise learner.error[1]
        return replace(parts, learner=learner)


@cache
def _trained(texts: tuple[str, ...], vocab_size: int, split_digits: bool) -> PreTrainedTokenizerFast:
    return train_tokenizer(texts, vocab_size, split_digits=split_digits)


def _trained_once(texts: Iterable[str], vocab_size: int, *, split_digits: bool = False) -> PreTrainedTokenizerFast:
    return deepcopy(_trained(tuple(texts), vocab_size, split_digits))


@pytest.fixture(autouse=True, scope="module")
def _what_takes_longer_than_the_runs_once() -> Iterator[None]:
    """Train the tokenizer of the presets, and ask git and the package index, for all tests of a file together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lessons, "train_tokenizer", _trained_once)
        for name in ("code_state", "machine_facts", "package_versions"):
            patch.setattr(session, name, cache(getattr(session, name)))
        yield


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return what loads a scenario called ``trial`` from its text."""

    def load(text: str) -> Scenario:
        (tmp_path / "trial.yaml").write_text(text)
        return load_scenario(str(tmp_path / "trial.yaml"))

    return load


def run(trial: Scenario, out: Path, build: Build = build_simulated_parts) -> dict[str, Run]:
    """Run an experiment without a word; return its runs by folder name."""
    assert run_scenario(trial, out, True, build, unseen) == 0
    return runs_in(out)


def runs_in(folder: Path) -> dict[str, Run]:
    runs, damaged = find_runs(folder)
    assert damaged == []
    return {run.folder.name: run for run in runs}


def run_sweep(
    trial: Scenario,
    out: Path,
    build: Build | None = None,
    show: Callable[[Path], object] = unseen,
    tries: Tries = Tries(),  # noqa: B008  (frozen)
    quiet: bool = True,
) -> int:
    return run_scenario(trial, out, quiet, build, show, tries=tries)


def begun_sweep(out: Path, trial: Scenario) -> Path:
    """Write the folder of a sweep of which nothing has been run."""
    folder = out / trial.name / "20991231-235959"
    folder.mkdir(parents=True)
    (folder / SWEEP).write_text(recorded_text(trial))
    return folder
