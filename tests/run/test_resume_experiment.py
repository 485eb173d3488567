"""Experiments that were stopped and go on: which runs are left alone, go on or are made again, and what is compared."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.compare import Member, gather
from harness.compare.completeness import Gaps, gaps
from harness.core.errors import Interrupted, RunStopped, UserError
from harness.results import load_run, read_manifest
from harness.results.experiment_plan import read_plan
from harness.run.continuation import find_continuation, find_sweep, find_unfinished
from harness.run.engine import Tries
from harness.run.experiment import go_on_with, run_scenario
from harness.run.inputs import inputs_of
from harness.run.interleaving import interleaving_of
from harness.run.parts import RunningParts
from harness.run.policy import Policy
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.tasks.make import make_task
from tests.run.conftest import BUILT, QUIET, Caps, Load, Planned, run, run_sweep, unseen

STEPS = f"steps: 6\n{QUIET}"
HEAD = STEPS + "evaluation: {every: 3, prompts: 8}\n"
ARMS = HEAD + "arms: {a: {}, b: {epochs_per_batch: 2}}\nblocks: 2\n"
SAVED = "checkpoint: {every: 2}\n"
ALL = [*range(6)]


def planned(errors: dict[int, tuple[int, BaseException]], of: type[Planned] = Planned) -> Planned:
    """Parts of which the n-th start raises something in a training step."""
    return of({number: [error] for number, error in errors.items()})


def stopping(number: int, step: int, of: type[Planned] = Planned) -> Planned:
    return planned({number: (step, Interrupted("stopped"))}, of)


def stopped(trial: Scenario, out: Path, parts: Planned) -> Path:
    """Run an experiment that is interrupted; return its folder."""
    with pytest.raises(Interrupted, match="run --resume"):
        run_scenario(trial, out, True, parts, unseen)
    (folder,) = (out / "trial").iterdir()
    return folder


def go_on(folder: Path, trial: Scenario) -> list[tuple[int, int, list[int]]]:
    """Go on with an experiment to its end; return what was started."""
    parts = Planned()
    assert go_on_with(folder, trial, True, parts, unseen) == 0
    return parts.started


def compared(folder: Path) -> list[Any]:
    """Return what is compared of an experiment, without what is a time."""
    (experiment,), damaged = gather([folder])
    assert (damaged, gaps(experiment, damaged)) == ([], Gaps((), ()))

    def facts(member: Member) -> list[Any]:
        about, rewards = member.manifest, [*zip(member.table.rewards.step, member.table.rewards.reward, strict=True)]
        return [about.block, about.seed, about.position, about.interleaving, about.status, member.steps, rewards]

    return [(arm, list(map(facts, members))) for arm, members in experiment.arms.items()]


def whole(trial: Scenario, out: Path) -> tuple[list[tuple[int, int, list[int]]], list[Any]]:
    """Run an experiment that nothing stops; return what was started, and what is compared of it."""
    parts = Planned()
    run(trial, out, parts)
    (folder,) = (out / "trial").iterdir()
    return parts.started, compared(folder)


def test_a_run_inside_of_a_block_goes_on_and_finished_ones_are_left_alone(load: Load, tmp_path: Path) -> None:
    trial, before = load(ARMS + SAVED), stopping(2, 3)
    order, expected = whole(trial, tmp_path / "whole")
    folder = stopped(trial, tmp_path / "out", before)
    assert before.started == [*order[:2], (*order[2][:2], [0, 1, 2, 3])]
    names = [f"{'ab'[epochs - 1]},block={seed}" for seed, epochs, _ in order]
    kept = {name: (folder / name / "steps.jsonl").read_bytes() for name in names[:2]}
    found = find_continuation(folder, load_scenario(folder / "scenario.resolved.yaml"))
    assert (found.finished, set(found.resumes), found.again) == (frozenset(names[:2]), {names[2]}, [])
    after = go_on(folder, load_scenario(folder / "scenario.resolved.yaml"))
    assert after == [(*order[2][:2], [2, 3, 4, 5]), order[3]]
    assert {name: (folder / name / "steps.jsonl").read_bytes() for name in names[:2]} == kept
    resumed = load_run(folder / names[2])
    assert [segment.start_step for segment in resumed.manifest.segments] == [2]
    assert [row.step for row in resumed.steps] == ALL
    assert compared(folder) == expected
    assert not (folder / ".attempts").exists()
    with pytest.raises(UserError, match="all 4 runs"):
        go_on(folder, trial)


def test_arms_in_turns_make_a_broken_block_again_and_finished_blocks_count(load: Load, tmp_path: Path) -> None:
    trial = load(ARMS)
    order, expected = whole(trial, tmp_path / "whole")
    folder = stopped(trial, tmp_path / "out", stopping(2, 4))
    kept = (folder / "a,block=0" / "spans.jsonl").read_bytes()
    broken = (folder / "b,block=1" / "steps.jsonl").read_bytes()
    assert go_on(folder, trial) == order[2:]
    assert (folder / "a,block=0" / "spans.jsonl").read_bytes() == kept
    assert (folder / ".attempts" / "b,block=1" / "0" / "steps.jsonl").read_bytes() == broken
    assert {path.name for path in (folder / ".attempts").iterdir()} == {"a,block=1", "b,block=1"}
    assert compared(folder) == expected


def test_an_interruption_of_what_goes_on_leaves_all_attempts_set_aside(load: Load, tmp_path: Path) -> None:
    trial = load(ARMS + "interleaving: run\n")
    parts = planned({1: (2, RunStopped("a death")), 3: (4, Interrupted("stopped"))})
    folder = stopped(trial, tmp_path / "out", parts)
    again = {point.variant.name for point in find_continuation(folder, trial).again}
    assert (len(parts.started), len(again)) == (4, 2)
    with pytest.raises(Interrupted):
        go_on_with(folder, trial, True, stopping(0, 1), unseen)
    assert {path.name for path in (folder / ".attempts").iterdir()} == again
    assert len(list(folder.glob("*/manifest.json"))) == 3  # two are finished, one was interrupted just now
    go_on(folder, trial)
    assert compared(folder)


def test_blocks_that_were_enough_stay_enough(load: Load, tmp_path: Path) -> None:
    """Every arm takes next to no time; ten blocks are the fewest after which the experiment may end by itself."""
    trial = load(ARMS.replace("blocks: 2", "blocks: 12\nstop_at_half_width: 0.99"))
    folder = stopped(trial, tmp_path / "out", stopping(12, 1))
    seeds = {seed for seed, _, _ in go_on(folder, trial)}
    assert {6} <= seeds <= set(range(6, 12))
    made = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
    assert sorted(run.folder for run in read_plan(folder).due) == made  # the others are not missing
    with pytest.raises(UserError, match="are finished"):
        go_on(folder, trial)


def test_a_checkpoint_without_its_rows_is_not_gone_on_from(load: Load, tmp_path: Path) -> None:
    trial = load(ARMS + SAVED)
    folder = stopped(trial, tmp_path / "out", stopping(1, 3))
    (name,) = find_continuation(folder, trial).resumes
    steps = folder / name / "steps.jsonl"
    steps.write_bytes(steps.read_bytes()[:200])
    found = find_continuation(folder, trial)
    assert (dict(found.resumes), [point.variant.name for point in found.again], found.due) == ({}, [name], 4)


def test_another_scenario_and_a_command_at_work_are_refused(load: Load, tmp_path: Path, capsys: Caps) -> None:
    folder = stopped(load(ARMS + SAVED), tmp_path / "out", stopping(1, 3))

    def refused(text: str) -> str:
        with pytest.raises(UserError) as raised:
            go_on(folder, load(text))
        return raised.value.what

    assert "blocks (was 2, is 4)" in refused(ARMS.replace("blocks: 2", "blocks: 4") + SAVED)
    assert "arms.b.epochs_per_batch (was 2, is 4)" in refused(ARMS.replace("batch: 2", "batch: 4") + SAVED)
    with (folder / "scenario.resolved.yaml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "another command" in refused(ARMS + SAVED)
    run_of_it = next(path.parent for path in folder.glob("*/manifest.json"))
    assert main(["run", "--resume", str(run_of_it)]) == 2
    assert f"run --resume {folder}" in capsys.readouterr().err
    assert go_on(folder, load(ARMS + "checkpoint: {every: 3}\n"))


def test_arms_with_checkpoints_run_one_after_the_other(load: Load) -> None:
    texts = (ARMS, ARMS + SAVED, ARMS.replace("a: {}", "a: {checkpoint.every: 2}"))
    assert [interleaving_of(expand(load(text))[:2]) for text in texts] == ["step", "run", "run"]


# ---- sweeps


SWEEP = HEAD + SAVED + "sweep: {seed: [0, 1, 2]}\n"
TWO = SWEEP.replace("[0, 1, 2]", "[0, 1]")


def test_a_sweep_goes_on_inside_of_a_point(load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial, out, after = load(SWEEP), tmp_path / "out", Planned()
    with pytest.raises(Interrupted):
        run_sweep(trial, out, stopping(1, 5))
    assert run_sweep(trial, out, after) == 0
    assert after.started == [(2, 1, ALL), (1, 1, [4, 5])]  # first those that were tried least
    folder = find_sweep(out, trial)
    assert folder is not None
    assert not (folder / ".attempts").exists()
    assert [member.run.status for member in gather([folder])[0][0].members] == ["completed"] * 3
    assert main(["run", "--resume", str(folder), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("trial: 3 runs are finished; nothing is left to run; ")


def test_a_failure_of_a_point_that_goes_on_counts_and_keeps_its_reason(load: Load, tmp_path: Path) -> None:
    trial, out, after = load(TWO), tmp_path / "out", Planned()
    with pytest.raises(RunStopped, match="1 of 2 points failed"):
        run_sweep(trial, out, planned({start: (5, RunStopped(f"reason {start}")) for start in (0, 2, 3)}))
    folder = find_sweep(out, trial)
    assert folder is not None
    manifest = read_manifest(folder / "seed=0")
    assert [*[segment.failed for segment in manifest.segments], manifest.error] == [f"reason {n}" for n in (0, 2, 3)]
    with pytest.raises(RunStopped, match="attempts that failed: 3"):
        run_sweep(trial, out, after)
    assert after.started == []
    assert run_sweep(trial, out, after, tries=Tries(retry_failed=True)) == 0
    assert after.started == [(0, 1, [4, 5])]


def test_a_point_that_cannot_be_built_again_keeps_its_checkpoint_and_says_why(load: Load, tmp_path: Path) -> None:
    trial, out, after = load(TWO), tmp_path / "out", Planned()
    with pytest.raises(Interrupted):
        run_sweep(trial, out, stopping(1, 3))
    with pytest.raises(RunStopped, match="no such model"):
        run_sweep(trial, out, planned({0: (BUILT, UserError("no such model"))}))
    assert run_sweep(trial, out, after) == 0
    assert after.started == [(1, 1, [2, 3, 4, 5])]


# ---- with data


class WithInputs(Planned):
    """Simulated parts that know what they are made of."""

    def __call__(self, resolved: Scenario, *given: Any) -> RunningParts:
        parts = super().__call__(resolved, *given)
        parts.inputs = inputs_of(resolved, make_task(resolved.task), Policy(None, None, None))
        return parts


DATA = """
task: {type: jsonl, train: data.jsonl, reward: "rewards_of_experiment:one", reward_timeout_s: null}
evaluation: {every: 3, prompts: 1}
rollout_batch_size: 8
"""


def write_data(file: Path, answer: str) -> None:
    rows = [{"prompt": f"p{number}", "answer": answer} for number in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scenario]:
    """Return what loads a scenario with data in the current folder, or with the data in another file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rewards_of_experiment", raising=False)
    (tmp_path / "rewards_of_experiment.py").write_text("def one(response, ground_truth):\n    return 1.0\n")
    write_data(tmp_path / "data.jsonl", "x")

    def load(text: str, *overrides: str) -> Scenario:
        (tmp_path / "trial.yaml").write_text(text.replace(HEAD, STEPS) + DATA)
        return load_scenario(str(tmp_path / "trial.yaml"), overrides)

    return load


def test_an_experiment_goes_on_with_its_data_alone(with_data: Callable[..., Scenario], tmp_path: Path) -> None:
    trial, after = with_data(ARMS + SAVED), WithInputs()
    folder = stopped(trial, tmp_path / "out", stopping(2, 3, WithInputs))
    write_data(tmp_path / "data.jsonl", "y")
    for again in (trial, load_scenario(folder / "scenario.resolved.yaml")):
        with pytest.raises(UserError, match="train_prompts, whose SHA-256 was"):
            go_on_with(folder, again, True, WithInputs(), unseen)
    assert find_unfinished(tmp_path / "out", trial)[0] is None
    write_data(tmp_path / "moved.jsonl", "x")
    assert go_on_with(folder, with_data(ARMS + SAVED, "task.train=moved.jsonl"), True, after, unseen) == 0
    assert [begun for _, _, begun in after.started] == [[2, 3, 4, 5], ALL]


def test_a_sweep_goes_on_with_its_data_alone(with_data: Callable[..., Scenario], tmp_path: Path) -> None:
    trial, out, after = with_data(SWEEP), tmp_path / "out", WithInputs()
    with pytest.raises(Interrupted):
        run_sweep(trial, out, stopping(1, 5, WithInputs))
    write_data(tmp_path / "data.jsonl", "y")
    with pytest.raises(UserError, match="train_prompts, whose SHA-256 was") as raised:
        run_sweep(trial, out, after)
    assert "--out DIR" in str(raised.value.fix)
    assert after.started == []
    write_data(tmp_path / "data.jsonl", "x")
    assert run_sweep(trial, out, after) == 0
    assert [begun for _, _, begun in after.started] == [ALL, [4, 5]]
