"""A run that is killed and goes on ends as one that never stopped; its folder reads as one run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UserError
from harness.core.trace import RecordingTracer
from harness.results import load_run
from harness.run.experiment import run_scenario
from harness.run.inprocess import InProcessParts
from harness.run.resume import find_resume
from harness.scenario import Scenario, load_scenario

SETTINGS = (
    "steps=8", "evaluation.every=4", "rollout_batch_size=12", "group_size=4", "epochs_per_batch=2", "profile='off'",
    "trackers=['jsonl']", "loss.kl.coefficient=0.1", "replay={capacity: 6, sample_groups: 3}", "checkpoint.every=2",
)  # fmt: skip
TIMES = ("elapsed_s", "wall_s", "lanes_s", "stages_s", "version_changes", "warmup")


def unseen(folder: Path) -> None:
    """Show nothing: drawing has tests of its own."""


class CopyingLearner:
    """Copies the run's folder when a training step begins: that is what a process killed at this moment leaves."""

    def __init__(self, learner: Any, step: int, copy: Callable[[], None]) -> None:
        self._learner, self._step, self._copy = learner, step, copy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    async def update(self, step: int, groups: Any) -> Any:
        if step == self._step:
            self._copy()
        return await self._learner.update(step, groups)


def run_with_copy(scenario: Scenario, out: Path, step: int) -> tuple[Path, Path]:
    """Run to the end; return the run's folder, and what a kill in a training step would have left."""
    left = out / "left" / "behind"

    def build(resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> InProcessParts:
        parts = InProcessParts(resolved, tracer, should_stop)
        copy = lambda: shutil.copytree(next((out / scenario.name).iterdir()), left)  # noqa: E731
        parts.learner = CopyingLearner(parts.learner, step, copy)
        return parts

    assert run_scenario(scenario, out, True, build=build, show=unseen) == 0
    return next((out / scenario.name).iterdir()), left


def go_on(folder: Path, scenario: Scenario) -> None:
    resume = find_resume(folder, scenario)
    assert run_scenario(scenario, folder.parent.parent, True, show=unseen, resume=resume) == 0


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file without what is a time."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for row in found:
        for name in TIMES:
            row.pop(name, None)
        metrics = row.get("metrics", {})
        for name in [name for name in metrics if name.startswith(("timing", "perf", "idle", "sync"))]:
            del metrics[name]
        for name in [name for name in row if name.startswith(("timing", "perf", "idle", "sync"))]:
            del row[name]
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that never stopped, and what a kill in training step 5 has left of it, one step after a checkpoint."""
    return run_with_copy(load_scenario("sorting", SETTINGS), tmp_path_factory.mktemp("resume"), 5)


def test_a_killed_run_ends_as_one_that_never_stopped(runs: tuple[Path, Path], tmp_path: Path) -> None:
    whole, left = runs
    folder = tmp_path / "sorting" / "20260101-000000"
    shutil.copytree(left, folder)
    before = load_run(folder)
    assert (before.status, [row.step for row in before.steps]) == ("did not finish", [0, 1, 2, 3, 4])
    go_on(folder, load_scenario("sorting", SETTINGS))
    assert (folder / "policy" / "model.safetensors").read_bytes() == (
        whole / "policy" / "model.safetensors"
    ).read_bytes()
    for name in ("steps.jsonl", "groups.jsonl", "rollouts.jsonl", "metrics.jsonl"):
        assert rows(folder / name) == rows(whole / name), name
    moved = [json.loads(line) for line in (folder / "steps.jsonl.1.before_resume").read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in moved] == [("step", 4)]
    run, through = load_run(folder), load_run(whole)
    assert run.status == "completed"
    assert [segment.start_step for segment in run.manifest.segments] == [4]
    assert (run.ledger, through.manifest.segments) == (through.ledger, ())
    assert run.manifest.outcome["steps_done"] == 8
    assert [row.step for row in run.steps if row.warmup] == [*(row.step for row in through.steps if row.warmup), 4]
