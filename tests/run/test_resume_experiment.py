"""Experiments that were stopped and go on: which runs are left alone, go on or are made again, and what is compared."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.compare import Member, gather
from harness.compare.completeness import Gaps, gaps
from harness.core.checkpoints import write_file
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.core.trace import RecordingTracer
from harness.core.types import RolloutGroup, UpdateResult
from harness.learner.checkpoint import SavedState
from harness.results import load_run, read_manifest
from harness.run.continuation import find_continuation, find_sweep, find_unfinished
from harness.run.engine import Tries
from harness.run.experiment import go_on_with, run_scenario
from harness.run.inputs import inputs_of
from harness.run.interleaving import interleaving_of
from harness.run.parts import Build, RunningParts
from harness.run.policy import Policy
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.parts import SimulatedLearner
from harness.tasks.make import make_task
from tests.stand_ins.simulated_parts import FREE, build_simulated_parts, simulated_learner

HEAD = 'steps: 6\nprofile: "off"\ntrackers: []\nevaluation: {every: 3, prompts: 8}\n'
ARMS = "arms: {a: {}, b: {epochs_per_batch: 2}}\nblocks: 3\n"
SAVED = "checkpoint: {every: 2}\n"
Start = tuple[int, int, list[int]]
"""Seed and optimizer steps of a run that was started, and the training steps that it began."""


def unseen(folder: Path) -> None:
    """Show nothing: drawing has tests of its own."""


def run_sweep(trial: Scenario, out: Path, build: Build, tries: Tries = Tries()) -> int:  # noqa: B008  (frozen)
    return run_scenario(trial, out, True, build, unseen, tries=tries)


class SavingLearner(SimulatedLearner):
    """A Learner whose state is the number of its training steps; some of them raise."""

    begun: list[int]
    errors: dict[int, BaseException]
    saved: tuple[SavedState, ...] | None = None

    async def update(self, step: int, groups: tuple[RolloutGroup, ...]) -> UpdateResult:
        """Raise what is planned for the step, once."""
        self.begun.append(step)
        if step in self.errors:
            raise self.errors.pop(step)
        return await super().update(step, groups)

    async def save_state(self, folder: Path, version: int, *, asynchronous: bool) -> float:
        """Write the number."""
        self.saved = (SavedState((write_file(folder, "learner", [str(version).encode()]),), 1, 0.0, 0, 0),)
        return 0.0

    async def finish_save(self, *, wait: bool = True) -> tuple[SavedState, ...] | None:
        """Return what was written."""
        return self.saved

    async def load_state(self, folder: Path) -> int:
        """Read the number."""
        return int((folder / "learner").read_text())


class Parts:
    """Builds simulated parts, and knows what was started; ``errors``: of the n-th start, by training step."""

    def __init__(self, errors: dict[int, dict[int, BaseException]] | None = None) -> None:
        self.errors, self.started = errors or {}, list[Start]()

    def __call__(self, resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = build_simulated_parts(resolved, tracer, should_stop)
        learner = simulated_learner(tracer, FREE, of=SavingLearner)
        learner.begun, learner.errors = [], self.errors.pop(len(self.started), {})
        self.started.append((resolved.seed, resolved.optimizer_steps_per_batch, learner.begun))
        return replace(parts, learner=learner)


def scenario(tmp_path: Path, text: str) -> Scenario:
    (tmp_path / "trial.yaml").write_text(HEAD + text)
    return load_scenario(str(tmp_path / "trial.yaml"))


def stopped(trial: Scenario, out: Path, errors: dict[int, dict[int, BaseException]]) -> tuple[Path, Parts]:
    """Run an experiment that is interrupted; return its folder, and what was started."""
    parts = Parts(errors)
    with pytest.raises(Interrupted, match="run --resume"):
        run_scenario(trial, out, True, parts, unseen)
    (folder,) = (out / "trial").iterdir()
    return folder, parts


def compared(folder: Path) -> list[Any]:
    """Return what is compared of an experiment, without what is a time."""
    (experiment,), damaged = gather([folder])
    assert (damaged, gaps(experiment, damaged)) == ([], Gaps((), ()))

    def facts(member: Member) -> list[Any]:
        about, rewards = member.manifest, [*zip(member.table.rewards.step, member.table.rewards.reward, strict=True)]
        return [about.block, about.seed, about.position, about.interleaving, about.status, member.steps, rewards]

    return [(arm, list(map(facts, members))) for arm, members in experiment.arms.items()]


def test_a_run_inside_of_a_block_goes_on_and_finished_ones_are_left_alone(tmp_path: Path) -> None:
    trial = scenario(tmp_path, ARMS + SAVED)
    whole = Parts()
    assert run_scenario(trial, tmp_path / "whole", True, whole, unseen) == 0
    order = [(seed, arm) for seed, arm, _ in whole.started]
    folder, before = stopped(trial, tmp_path / "out", {3: {3: Interrupted("stopped")}})
    assert [(seed, arm) for seed, arm, _ in before.started] == order[:4]
    names = [f"{'ab'[arm - 1]},block={seed}" for seed, arm in order]
    kept = {name: (folder / name / "steps.jsonl").read_bytes() for name in names[:3]}
    found = find_continuation(folder, load_scenario(folder / "scenario.resolved.yaml"))
    assert (found.finished, set(found.resumes), found.again) == (frozenset(names[:3]), {names[3]}, [])
    after = Parts()
    assert go_on_with(folder, load_scenario(folder / "scenario.resolved.yaml"), True, after, unseen) == 0
    assert after.started == [(*order[3], [2, 3, 4, 5]), *((*each, list(range(6))) for each in order[4:])]
    assert {name: (folder / name / "steps.jsonl").read_bytes() for name in names[:3]} == kept
    resumed = load_run(folder / names[3])
    assert [segment.start_step for segment in resumed.manifest.segments] == [2]
    assert [row.step for row in resumed.steps] == list(range(6))
    (other,) = (tmp_path / "whole" / "trial").iterdir()
    assert compared(folder) == compared(other)
    assert not (folder / ".attempts").exists()
    with pytest.raises(UserError, match="all 6 runs"):
        go_on_with(folder, trial, True, Parts(), unseen)


def test_arms_in_turns_make_a_broken_block_again_and_finished_blocks_count(tmp_path: Path) -> None:
    trial = scenario(tmp_path, ARMS)
    whole = Parts()
    run_scenario(trial, tmp_path / "whole", True, whole, unseen)
    folder, _ = stopped(trial, tmp_path / "out", {2: {4: Interrupted("stopped")}})
    kept = (folder / "a,block=0" / "spans.jsonl").read_bytes()
    broken = (folder / "b,block=1" / "steps.jsonl").read_bytes()
    after = Parts()
    assert go_on_with(folder, trial, True, after, unseen) == 0
    assert after.started == whole.started[2:]
    assert (folder / "a,block=0" / "spans.jsonl").read_bytes() == kept
    assert (folder / ".attempts" / "b,block=1" / "0" / "steps.jsonl").read_bytes() == broken
    assert {path.name for path in (folder / ".attempts").iterdir()} == {"a,block=1", "b,block=1"}
    (other,) = (tmp_path / "whole" / "trial").iterdir()
    assert compared(folder) == compared(other)


def test_an_interruption_of_what_goes_on_leaves_every_attempt_set_aside_that_is_made_again(tmp_path: Path) -> None:
    """Old code: an attempt was set aside when its turn came, so that some still stood in their places."""
    trial = scenario(tmp_path, "arms: {a: {}, b: {epochs_per_batch: 2}}\nblocks: 2\ninterleaving: run\n")
    folder, before = stopped(trial, tmp_path / "out", {1: {2: RunStopped("a death")}, 3: {4: Interrupted("stopped")}})
    assert len(before.started) == 4
    found = find_continuation(folder, trial)
    again = {point.variant.name for point in found.again}
    assert len(again) == 2
    with pytest.raises(Interrupted):
        go_on_with(folder, trial, True, Parts({0: {1: Interrupted("stopped")}}), unseen)
    assert {path.name for path in (folder / ".attempts").iterdir()} == again
    assert len(list(folder.glob("*/manifest.json"))) == 3  # two are finished, one was interrupted just now
    assert go_on_with(folder, trial, True, Parts(), unseen) == 0
    assert compared(folder)


def test_blocks_that_were_enough_stay_enough(tmp_path: Path) -> None:
    """Every arm takes next to no time; ten blocks are the fewest after which the experiment may end by itself."""
    trial = scenario(tmp_path, ARMS.replace("blocks: 3", "blocks: 14\nstop_at_half_width: 0.99"))
    folder, _ = stopped(trial, tmp_path / "out", {12: {1: Interrupted("stopped")}})
    after = Parts()
    assert go_on_with(folder, trial, True, after, unseen) == 0
    assert {seed for seed, _, _ in after.started} <= set(range(6, 14))
    assert min(seed for seed, _, _ in after.started) == 6
    with pytest.raises(UserError, match="are finished"):
        go_on_with(folder, trial, True, after, unseen)


def test_a_sweep_goes_on_inside_of_a_point(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path, "sweep: {seed: [0, 1, 2]}\n" + SAVED), tmp_path / "out"
    with pytest.raises(Interrupted):
        run_sweep(trial, out, Parts({1: {5: Interrupted("stopped")}}))
    after = Parts()
    assert run_sweep(trial, out, after) == 0
    assert after.started == [(2, 1, list(range(6))), (1, 1, [4, 5])]  # first those that were tried least
    folder = find_sweep(out, trial)
    assert folder is not None
    assert not (folder / ".attempts").exists()
    assert [member.run.status for member in gather([folder])[0][0].members] == ["completed"] * 3


def test_a_failure_of_a_point_that_goes_on_counts_and_keeps_its_reason(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path, "sweep: {seed: [0, 1]}\n" + SAVED), tmp_path / "out"
    errors = {start: {5: RunStopped(f"reason {start}")} for start in (0, 2, 3)}
    with pytest.raises(RunStopped, match="1 of 2 points failed"):
        run_sweep(trial, out, Parts(errors))
    folder = find_sweep(out, trial)
    assert folder is not None
    manifest = read_manifest(folder / "seed=0")
    assert [segment.failed for segment in manifest.segments] == ["reason 0", "reason 2"]
    assert manifest.error == "reason 3"
    after = Parts()
    with pytest.raises(RunStopped, match="attempts that failed: 3"):
        run_sweep(trial, out, after)
    assert after.started == []
    assert run_sweep(trial, out, after, Tries(retry_failed=True)) == 0
    assert after.started == [(0, 1, [4, 5])]


def test_a_point_that_cannot_be_built_again_keeps_its_checkpoint_and_says_why(tmp_path: Path) -> None:
    trial, out = scenario(tmp_path, "sweep: {seed: [0, 1]}\n" + SAVED), tmp_path / "out"
    with pytest.raises(Interrupted):
        run_sweep(trial, out, Parts({1: {3: Interrupted("stopped")}}))

    def cannot(*_: object) -> RunningParts:
        raise UserError("no such model")

    with pytest.raises(RunStopped, match="no such model"):
        run_sweep(trial, out, cannot)
    after = Parts()
    assert run_sweep(trial, out, after) == 0
    assert after.started == [(1, 1, [2, 3, 4, 5])]


def test_another_scenario_and_a_command_at_work_are_refused(tmp_path: Path) -> None:
    trial = scenario(tmp_path, ARMS + SAVED)
    folder, _ = stopped(trial, tmp_path / "out", {1: {3: Interrupted("stopped")}})

    def refused(text: str) -> str:
        with pytest.raises(UserError) as raised:
            go_on_with(folder, scenario(tmp_path, text), True, Parts(), unseen)
        return raised.value.what

    assert "blocks (was 3, is 4)" in refused(ARMS.replace("3", "4") + SAVED)
    assert "arms.b.epochs_per_batch (was 2, is 4)" in refused(ARMS.replace("2", "4") + SAVED)
    with (folder / "scenario.resolved.yaml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "another command" in refused(ARMS + SAVED)
    after = Parts()
    assert go_on_with(folder, scenario(tmp_path, ARMS + "checkpoint: {every: 3}\n"), True, after, unseen) == 0


def test_one_of_several_runs_and_a_sweep_say_how_they_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = stopped(scenario(tmp_path, ARMS + SAVED), tmp_path / "out", {1: {3: Interrupted("stopped")}})
    run = next(path.parent for path in folder.glob("*/manifest.json"))
    assert main(["run", "--resume", str(run)]) == 2
    assert f"run --resume {folder}" in capsys.readouterr().err
    trial = scenario(tmp_path, "sweep: {seed: [0, 1]}\n")
    run_sweep(trial, tmp_path / "swept", Parts())
    swept = find_sweep(tmp_path / "swept", trial)
    assert main(["run", "--resume", str(swept), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("trial: 2 runs are finished; nothing is left to run; ")


def test_arms_with_checkpoints_run_one_after_the_other(tmp_path: Path) -> None:
    def ways(text: str) -> set[str | None]:
        variants = expand(scenario(tmp_path, text))
        return {interleaving_of(variants[:2])}

    assert ways(ARMS) == {"step"}
    assert ways(ARMS + SAVED) == {"run"}
    assert ways(ARMS.replace("a: {}", "a: {checkpoint.every: 2}")) == {"run"}


def test_a_checkpoint_without_its_rows_is_not_gone_on_from(tmp_path: Path) -> None:
    trial = scenario(tmp_path, ARMS + SAVED)
    folder, _ = stopped(trial, tmp_path / "out", {1: {3: Interrupted("stopped")}})
    (name,) = find_continuation(folder, trial).resumes
    steps = folder / name / "steps.jsonl"
    steps.write_bytes(steps.read_bytes()[:200])
    found = find_continuation(folder, trial)
    assert (dict(found.resumes), [point.variant.name for point in found.again]) == ({}, [name])
    assert found.due == 6


class PartsOfInputs(Parts):
    """Simulated parts that know what they are made of."""

    def __call__(self, resolved: Scenario, tracer: RecordingTracer, should_stop: Callable[[], bool]) -> RunningParts:
        parts = super().__call__(resolved, tracer, should_stop)
        parts.inputs = inputs_of(resolved, make_task(resolved.task), Policy(None, None, None))
        return parts


DATA = """
task: {type: jsonl, train: data.jsonl, reward: "rewards_of_experiment:one", reward_timeout_s: null}
evaluation: {every: 3, prompts: 1}
rollout_batch_size: 8
"""


@pytest.fixture
def trial_with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scenario]:
    """Return what loads the scenario with data in the current folder, or with the data in another file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rewards_of_experiment", raising=False)
    (tmp_path / "rewards_of_experiment.py").write_text("def one(response, ground_truth):\n    return 1.0\n")
    write_data(tmp_path / "data.jsonl", "x")

    def load(*overrides: str, text: str = ARMS) -> Scenario:
        head = HEAD.replace("evaluation: {every: 3, prompts: 8}\n", "")
        (tmp_path / "trial.yaml").write_text(head + DATA + text + SAVED)
        return load_scenario(str(tmp_path / "trial.yaml"), overrides)

    return load


def write_data(file: Path, answer: str) -> None:
    rows = [{"prompt": f"p{number}", "answer": answer} for number in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_experiment_goes_on_with_its_data_wherever_they_are_and_with_no_others(
    trial_with_data: Callable[..., Scenario], tmp_path: Path
) -> None:
    errors: dict[int, dict[int, BaseException]] = {3: {3: Interrupted("stopped")}}
    parts = PartsOfInputs(errors)
    with pytest.raises(Interrupted):
        run_scenario(trial_with_data(), tmp_path / "out", True, parts, unseen)
    (folder,) = (tmp_path / "out" / "trial").iterdir()
    write_data(tmp_path / "data.jsonl", "y")
    for trial in (trial_with_data(), load_scenario(folder / "scenario.resolved.yaml")):
        with pytest.raises(UserError, match="train_prompts, whose SHA-256 was"):
            go_on_with(folder, trial, True, PartsOfInputs(), unseen)
    assert find_unfinished(tmp_path / "out", trial_with_data())[0] is None
    write_data(tmp_path / "moved.jsonl", "x")
    after = PartsOfInputs()
    assert go_on_with(folder, trial_with_data("task.train=moved.jsonl"), True, after, unseen) == 0
    assert [begun for _, _, begun in after.started] == [[2, 3, 4, 5], [*range(6)], [*range(6)]]


def test_a_sweep_goes_on_with_no_other_data_unless_it_begins_anew(
    trial_with_data: Callable[..., Scenario], tmp_path: Path
) -> None:
    trial, out = trial_with_data(text="sweep: {seed: [0, 1, 2]}\n"), tmp_path / "out"
    with pytest.raises(Interrupted):
        run_sweep(trial, out, PartsOfInputs({1: {5: Interrupted("stopped")}}))
    write_data(tmp_path / "data.jsonl", "y")
    after = PartsOfInputs()
    with pytest.raises(UserError, match="train_prompts, whose SHA-256 was") as raised:
        run_sweep(trial, out, after)
    assert "--out DIR" in str(raised.value.fix)
    assert after.started == []
    write_data(tmp_path / "data.jsonl", "x")
    assert run_sweep(trial, out, after) == 0
    assert [begun for _, _, begun in after.started] == [[*range(6)], [4, 5]]
