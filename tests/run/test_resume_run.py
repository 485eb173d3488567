"""A run that is killed and goes on ends as one that never stopped; its folder reads as one run."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.cli import main
from harness.core.checkpoints import newest_whole
from harness.core.errors import RunStopped, UserError
from harness.core.trace import NullTracer, RecordingTracer, Stage
from harness.results import RunFolder, load_run
from harness.results.rows import STEPS
from harness.results.segments import cut_back, taken
from harness.results.writer import CHECKPOINTS
from harness.results.writer import SCENARIO as SCENARIO_FILE
from harness.run.checkpoints import RunCheckpoints
from harness.run.continuation import find_resume, find_unfinished
from harness.run.experiment import go_on_with, run_scenario
from harness.run.handles import LearnerHandle
from harness.run.inprocess import InProcessParts
from harness.run.points import Resume
from harness.scenario.load import load_scenario, resolved_yaml
from harness.scenario.schema import Scenario
from harness.settings.checkpoint import CheckpointSettings
from tests.run.conftest import Caps, Patch, unseen

REWARD = """
def by_length(response, ground_truth):
    return float(len(response) % 4)
"""
SCENARIO = """
task: {type: jsonl, train: prompts.jsonl, reward: "rewards_of_resume:by_length", reward_timeout_s: null}
model: {type: preset, preset: tiny, precision: float32, warm_start: false, threads: 1}
engine: {precision: float32}
sampling: {max_tokens: 6}
steps: 8
rollout_batch_size: 8
group_size: 4
epochs_per_batch: 2
optimizer: {learning_rate: 0.001}
loss: {kl: {coefficient: 0.1}}
replay: {capacity: 4, sample_groups: 2}
evaluation: {every: 4, prompts: 4, examples: 1}
checkpoint: {every: 2}
profile: "off"
trackers: [jsonl]
"""
TIMES = ("elapsed_s", "wall_s", "lanes", "parts", "stages_s", "version_changes", "warmup")


class CopyingLearner:
    """Does something when a training step begins: copies the run's folder, as a process killed then leaves it."""

    def __init__(self, learner: Any, step: int, copy: Callable[[], object]) -> None:
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
        handle = cast(LearnerHandle, parts.learner)
        learner = CopyingLearner(handle, step, copy)
        parts.learner = cast(LearnerHandle, learner)
        parts.save_to = lambda folder: setattr(handle, "run_folder", folder)  # type: ignore[method-assign]
        return parts

    assert run_scenario(scenario, out, True, build=build, show=unseen) == 0
    return next((out / scenario.name).iterdir()), left


def go_on(folder: Path, scenario: Scenario) -> None:
    assert go_on_with(folder, scenario, True, show=unseen) == 0


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file without what is a time."""

    def timeless(row: dict[str, Any]) -> dict[str, Any]:
        timed = ("timing_s/", "perf/", "idle_ratio/", "sync/")
        return {key: value for key, value in row.items() if key not in TIMES and not key.startswith(timed)}

    found = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
    return [row | ({"metrics": timeless(row["metrics"])} if "metrics" in row else {}) for row in found]


def write_scenario(folder: Path, text: str, name: str = "resumed.yaml") -> None:
    """Write a scenario with its prompts and its reward."""
    (folder / "rewards_of_resume.py").write_text(REWARD)
    lines = [json.dumps({"prompt": f"Write about {number}", "answer": str(number)}) for number in range(12)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / name).write_text(text)


@contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    """Have it as the current folder, since paths in a saved scenario are those below that; and import from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.delitem(sys.modules, "rewards_of_resume", raising=False)  # that of another folder
        patch.chdir(folder)
        yield


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    folder = tmp_path_factory.mktemp("scenario")
    write_scenario(folder, SCENARIO)
    with standing_in(folder):
        yield load_scenario("resumed.yaml")


@pytest.fixture
def left(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of what the kill has left."""
    return Path(shutil.copytree(runs[1], tmp_path / "resumed" / "20260101-000000"))


@pytest.fixture(scope="module")
def runs(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that never stopped, and what a kill in training step 5 has left of it, one step after a checkpoint."""
    return run_with_copy(scenario, tmp_path_factory.mktemp("resume"), 5)


def test_a_killed_run_ends_as_one_that_never_stopped(scenario: Scenario, runs: tuple[Path, Path], left: Path) -> None:
    whole, folder = runs[0], left
    before = load_run(folder)
    assert (before.status, [row.step for row in before.steps]) == ("did not finish", [0, 1, 2, 3, 4])
    go_on(folder, scenario)
    policies = [(each / "policy" / "model.safetensors").read_bytes() for each in (folder, whole)]
    assert policies[0] == policies[1]
    norms = [json.dumps(row["metrics"]["grad_norm"]) for row in rows(whole / STEPS) if row["kind"] == "step"]
    assert len(set(norms)) == 8  # it learns: a step that was left out would show
    for name in ("steps.jsonl", "groups.jsonl", "rollouts.jsonl", "metrics.jsonl"):
        assert rows(folder / name) == rows(whole / name), name
    moved = [json.loads(line) for line in (folder / "steps.jsonl.1.before_resume").read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in moved] == [("step", 4)]
    run, through = load_run(folder), load_run(whole)
    assert run.status == "completed"
    assert [segment.start_step for segment in run.manifest.segments] == [4]
    assert (run.ledger, through.manifest.segments) == (through.ledger, ())
    assert run.manifest.outcome["steps_done"] == 8
    assert [row.step for row in run.steps if row.warmup] == [0, 1, 4, 5]  # the first two after each start
    assert sum(row.wall_s for row in run.steps) == pytest.approx(run.steps[-1].elapsed_s, abs=1e-3)
    assert run.manifest.segments[0].elapsed_s >= run.steps[3].elapsed_s
    assert max(span.end_ns for span in run.spans() if span.step < 4) <= min(
        span.start_ns for span in run.spans() if span.stage is Stage.UPDATE and span.step == 4
    )


COSINE = (
    "optimizer.schedule=cosine", "optimizer.warmup_steps=3", "minibatches_per_epoch=2", "replay.capacity=0",
    "replay.sample_groups=null", "loss.kl.reference=polyak", "loss.kl.alpha=0.5", "steps=5",
)  # fmt: skip


def test_a_schedule_and_a_reference_that_follows_go_on(scenario: Scenario, tmp_path: Path) -> None:
    """Two passes of two minibatches over each batch."""
    changed = load_scenario("resumed.yaml", COSINE)
    whole, left = run_with_copy(changed, tmp_path, 3)
    go_on(left, changed)
    rates = [
        [row["metrics"]["learning_rate"]["mean"] for row in rows(folder / STEPS) if row["kind"] == "step"]
        for folder in (left, whole)
    ]
    assert rates[0] == rates[1]
    assert len(set(rates[0])) == 5
    policies = [(folder / "policy" / "model.safetensors").read_bytes() for folder in (left, whole)]
    assert policies[0] == policies[1]


def test_auto_takes_the_newest_run_that_can_go_on(scenario: Scenario, runs: tuple[Path, Path], tmp_path: Path) -> None:
    home = tmp_path / "resumed"

    def found(*overrides: str) -> tuple[str | None, str]:
        folder, why_not = find_unfinished(tmp_path, load_scenario("resumed.yaml", overrides))
        return None if folder is None else folder.name, why_not

    assert found()[0] is None
    for name, source, hour in (("a", runs[1], 1), ("b", runs[1], 3), ("c", runs[1], 2), ("d", runs[0], 4)):
        shutil.copytree(source, home / name)
        manifest = json.loads((home / name / "manifest.json").read_text())
        (home / name / "manifest.json").write_text(
            json.dumps(manifest | {"started_at": f"2026-01-01T0{hour}:00:00.000Z"})
        )
    assert found() == ("b", "")  # d made all its steps
    shutil.rmtree(home / "b" / "checkpoints")
    assert found() == ("c", "")
    with open(home / "c" / STEPS, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert found() == ("a", "")
    nothing, why_not = found("epochs_per_batch=1")
    assert nothing is None
    assert str(home / "c") in why_not
    assert "epochs_per_batch (was 2, is 1)" in why_not
    (home / "c" / "manifest.json").write_text("{")
    assert found() == ("a", "")
    with pytest.raises(UserError, match=r"checkpoint\.every"):
        found("checkpoint.every=null")


def test_auto_begins_a_run_where_none_can_go_on(
    scenario: Scenario, runs: tuple[Path, Path], tmp_path: Path, capsys: Caps, monkeypatch: Patch
) -> None:
    begun: list[Path] = []
    monkeypatch.setattr("harness.run.experiment.show_results", lambda folder, amount: None)

    def auto() -> list[str]:
        arguments = ["run", "resumed.yaml", "--resume", "auto", "--quiet", "--out", str(tmp_path)]
        assert main(arguments, lambda scenario, out, quiet: begun.append(out) or 0) == 0  # type: ignore[func-returns-value]
        return capsys.readouterr().err.strip().splitlines()

    assert len(auto()) == 1
    shutil.copytree(runs[1], tmp_path / "resumed" / "a")
    assert auto()[0] == f"continues {tmp_path / 'resumed' / 'a'}"
    assert load_run(tmp_path / "resumed" / "a").status == "completed"
    assert begun == [tmp_path]


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(scenario: Scenario, left: Path) -> None:
    tokens = left / "checkpoints" / "step_4" / "loop.safetensors"
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"\xff")
    resume = find_resume(left, scenario)
    refused = [(each.checkpoint, each.file) for each in resume.refused]
    assert (resume.checkpoint.step, refused) == (2, [("step_4", "loop.safetensors")])
    tokens.with_name("loop.json").unlink()
    shutil.rmtree(left / "checkpoints" / "step_2")
    with pytest.raises(UserError, match=r"step_4/loop\.json"):
        find_resume(left, scenario)


def test_another_scenario_is_refused_by_its_keys(scenario: Scenario, runs: tuple[Path, Path], left: Path) -> None:
    def found(*overrides: str) -> Resume:
        return find_resume(left, load_scenario("resumed.yaml", overrides))

    with pytest.raises(UserError) as raised:
        found("optimizer.learning_rate=0.002", "epochs_per_batch=1", "checkpoint.every=3")
    assert "epochs_per_batch (was 2, is 1), optimizer.learning_rate (was 0.001, is 0.002)" in raised.value.what
    assert "checkpoint" not in raised.value.what
    with pytest.raises(UserError, match=r"steps \(was 8, is 6\)"):
        found("steps=6")
    assert found("steps=12").checkpoint.step == 4
    assert found("max_failed_batches=3").was == {"max_failed_batches": 0}  # after an outage
    with pytest.raises(UserError, match="all its 8"):
        find_resume(runs[0], scenario)


def test_ranks_may_be_others_and_bits_are_no_longer_promised(left: Path) -> None:
    def spread(sharding: str, ranks: int) -> Scenario:
        over = [f"learner.sharding={sharding}", f"placement.learner.ranks={ranks}", "transport.type=shared_memory"]
        return load_scenario("resumed.yaml", over)

    ranks, sharding = "placement.learner.ranks", "learner.sharding"
    for before, now, was in (
        (("ddp", 2), ("ddp", 1), {ranks: 2}),
        (("none", 1), ("fsdp2", 2), {sharding: "none", ranks: 1}),
        (("ddp", 2), ("fsdp2", 2), {sharding: "ddp"}),
    ):
        (left / SCENARIO_FILE).write_text(resolved_yaml(spread(*before)))
        assert find_resume(left, spread(*before)).warnings == []
        resume = find_resume(left, spread(*now))
        (warning,) = resume.warnings
        assert (dict(resume.was), ", ".join(was) in warning) == (was, True)


def test_an_asynchronous_checkpoint_has_a_lane_of_its_own_and_policies_are_kept(
    scenario: Scenario, tmp_path: Path
) -> None:
    changed = load_scenario("resumed.yaml", ["checkpoint.asynchronous=true", "save_policy_every=4"])
    assert run_scenario(changed, tmp_path, True, show=unseen) == 0
    folder = next((tmp_path / changed.name).iterdir())
    run = load_run(folder)
    spans = sorted(run.spans(), key=lambda span: span.start_ns)
    assert {span.lane for span in spans if span.stage is Stage.CHECKPOINT} == {"learner"}
    beside = [span for span in spans if span.stage is Stage.CHECKPOINT_WRITE]
    assert {span.lane for span in beside} == {"checkpoint_writer"}
    assert set(Counter(span.version for span in beside).items()) == {(v, 3) for v in (2, 4, 6, 8)}  # two halves, commit
    for version in (2, 4, 6, 8):
        copied = [span for span in spans if (span.stage, span.version) == (Stage.CHECKPOINT, version)]
        assert copied[0].start_ns < min(span.start_ns for span in beside if span.version == version)
    kept = ["policies/step_4", "policies/step_8"]
    assert run.manifest.outcome["policies"] == kept
    assert sorted(path.name for path in (folder / "policies").iterdir()) == ["step_4", "step_8"]
    weights = [(folder / each / "model.safetensors").read_bytes() for each in (*kept, "policy")]
    assert weights[0] != weights[1] == weights[2]
    assert [span.version for span in spans if span.stage is Stage.SAVE_POLICY] == [4, 8, 8]


def test_a_full_disk_ends_the_run_by_its_name_and_no_checkpoint_counts(tmp_path: Path) -> None:
    async def full(folder: Path, version: int, *, asynchronous: bool) -> float:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "rank0.safetensors"))

    parts: Any = SimpleNamespace(learner=SimpleNamespace(lane="learner", save_state=full), recorded=lambda: None)
    saver = RunCheckpoints(tmp_path, CheckpointSettings(every=1), parts, parts, NullTracer())
    with pytest.raises(RunStopped, match=os.strerror(errno.ENOSPC)):
        asyncio.run(saver.save(cast(Any, SimpleNamespace(version=3))))
    assert newest_whole(tmp_path / CHECKPOINTS) == (None, ())


def test_a_run_that_another_process_has_gone_on_with_is_left_alone(runs: tuple[Path, Path]) -> None:
    before = (runs[1] / STEPS).read_bytes()
    with open(runs[1] / STEPS, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a live writer does
        with pytest.raises(UserError), taken(runs[1]):
            cut_back(runs[1], {STEPS: 0})
    assert (runs[1] / STEPS).read_bytes() == before


def test_a_saved_scenario_without_its_folders_is_not_guessed(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = left / SCENARIO_FILE
    saved.write_text(saved.read_text() + "\n# <path>/prompts.jsonl\n")
    assert main(["run", "--resume", str(left), "--quiet"]) == 2
    assert "SCENARIO --resume" in capsys.readouterr().err


def test_a_finished_run_without_checkpoints_is_said_to_be_finished(make_run: Callable[..., RunFolder]) -> None:
    scenario = load_scenario("quickstart", ["steps=5"])
    folder = make_run(scenario="quickstart", settings=resolved_yaml(scenario), steps=5).folder
    with pytest.raises(UserError, match="the run is finished: it has made all its 5 ") as refused:
        find_resume(folder, scenario)
    assert "--set steps=10 --set checkpoint.every=5" in str(refused.value.fix)
