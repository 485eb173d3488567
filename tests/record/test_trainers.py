"""The shims of trainers on what their wheels ship, in an environment each: ``harness oracle --install NAME``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.cli import main
from harness.core.trace import Stage
from harness.oracle.environments import PEERS, REQUIREMENTS, folder_of, is_current, requirements_of
from harness.record.seams import shims
from harness.results import find_runs
from harness.results.writer import LOG
from tests.oracle.test_options import ENVIRONMENTS

HERE = Path(__file__).parent
OLDEST_TRL = HERE / "requirements" / "trl-0.24.txt"
STAGES = {
    "verl": [
        ("generate", 30), ("score", 10), ("old_logprobs", 15), ("reference_logprobs", 10), ("prepare_batch", 5),
        ("update", 25), ("weight_transfer", 5), ("evaluate", 5),
    ],
    "skyrl": [
        ("generate", 15), ("generate", 15), ("prepare_batch", 5), ("old_logprobs", 15), ("prepare_batch", 5),
        ("update", 25), ("update", 20), ("critic_train", 5), ("weight_transfer", 5), ("evaluate", 5),
    ],
    "areal": [
        ("generate", 30), ("reference_logprobs", 10), ("old_logprobs", 15), ("prepare_batch", 5), ("update", 25),
        ("weight_transfer", 5), ("checkpoint", 5), ("my own", 5), ("offload", 5),
    ],
    "trinity": [
        ("wait_for_rollouts", 30), ("update", 40), ("old_logprobs", 15), ("update", 25), ("weight_transfer", 5),
        ("checkpoint", 5),
    ],
    "tinker": [("generate", 30), ("prepare_batch", 5), ("update", 25), ("update", 10), ("evaluate", 5)],
    "openrlhf": [
        ("generate", 30), ("prepare_batch", 20), ("old_logprobs", 15), ("update", 25), ("weight_transfer", 5),
        ("checkpoint", 0),
    ],
    "swift": [
        ("update", 70), ("prepare_batch", 55), ("generate", 30), ("score", 10), ("prepare_batch", 0),
        ("old_logprobs", 15), ("update", 15), ("update", 15), ("update", 0), ("log", 0),
    ],
}  # fmt: skip
"""What a step of ``loops.py`` holds, in the order in which it begins, and the least milliseconds of each."""
FIRST = {"verl": 1, "skyrl": 1, "trinity": 1}
LOGGED = {
    "verl": ("actor/loss", [0.5, 1.0, 1.5]),
    "trinity": ("actor/loss", [0.5, 1.0, 1.5]),
    "openrlhf": ("policy_loss", [0.5] * 3),
}


def recorded(tmp_path, monkeypatch, name, *command, trainer):
    folder = folder_of(name, ENVIRONMENTS)
    if not is_current(folder, OLDEST_TRL if name == "trl-0.24" else requirements_of(name)):
        pytest.skip(f"its environment is not here, or has other packages: python -m harness oracle --install {name}")
    python = folder / "bin" / "python"
    monkeypatch.delenv("PYTHONPATH", raising=False)
    program = [str(python), "-W", "ignore", *map(str, command)]
    assert main(["record", "--trainer", trainer, "--out", str(tmp_path), "--", *program]) == 0
    (run,), damaged = find_runs(tmp_path)
    assert not damaged
    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_a_trainers_own_timers_are_recorded(tmp_path, monkeypatch, name):
    """Its step numbers, the order of its stages, none shorter than it slept, and what it counts and logs."""
    run = recorded(tmp_path, monkeypatch, name, HERE / "loops.py", name, trainer=name)
    first = FIRST.get(name, 0)
    assert [row.step for row in run.steps] == [first, first + 1, first + 2]
    spans = sorted((each for each in run.spans() if each.stage is not Stage.STARTUP), key=lambda each: each.start_ns)
    assert {each.lane for each in spans} == {"learner"}
    for row in run.steps:
        own = [each for each in spans if each.step == row.step]
        if name == "openrlhf" and row is run.steps[-1]:
            assert own.pop().stage is Stage.EVALUATE
        if name == "swift":  # between two steps the next one's batch is fetched; after the last one it logs once more
            assert own.pop().stage.value == ("log" if row is run.steps[-1] else "prepare_batch")
        assert [each.stage.value for each in own] == [stage for stage, _ in STAGES[name]]
        took = [(each.end_ns - each.start_ns) / 1e6 for each in own]
        assert [ms for ms, (_, least) in zip(took, STAGES[name], strict=True) if ms < least] == []
        counted = {"rollouts": row.metric("counted/rollouts").value, "tokens": row.metric("response_tokens").value}
        assert counted == {"rollouts": 2, "tokens": 5}
    if name in LOGGED:
        figure, values = LOGGED[name]
        assert [row.metric(figure).value for row in run.steps] == values
    assert "not recorded" not in (run.folder / LOG).read_text()


@pytest.mark.slow
def test_the_oldest_trl_that_can_be_had_is_recorded(tmp_path, monkeypatch):
    """0.24, where the profiling context is a generator, with transformers 4: a real run of six steps.

    ``make(folder, OLDEST_TRL)`` of ``harness.oracle.environments`` makes its environment.
    """
    from harness.learner.warm_start import warm_start_policy
    from harness.models.storage import save_policy

    model, tokenizer, _ = warm_start_policy("tiny", 0)
    save_policy(model, tokenizer, tmp_path / "model")
    program = HERE / "train_with_trl.py"
    run = recorded(tmp_path / "out", monkeypatch, "trl-0.24", program, tmp_path / "model", "6", trainer="trl")
    assert [row.step for row in run.steps] == list(range(6))
    stages = {"generate", "score", "prepare_batch", "old_logprobs", "reference_logprobs", "update"}
    assert stages <= set().union(*(row.stages_s for row in run.steps))
    assert all(row.metric("response_tokens").value > 0 for row in run.steps[::2])  # two passes over one batch
    assert "not recorded" not in (run.folder / LOG).read_text()


@pytest.mark.slow
def test_workers_of_ray_have_lanes_of_their_own(tmp_path, monkeypatch):
    """The loop in an actor, as in verl, and two beside it; while it waits for the judge in no span, it is a wait."""
    pytest.importorskip("ray")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    program = HERE / "train_with_ray.py"
    assert main(["record", "--out", str(tmp_path), "--", sys.executable, "-W", "ignore", str(program)]) == 0
    (run,), _ = find_runs(tmp_path)
    assert [row.step for row in run.steps] == [0, 1, 2]
    for row in run.steps:
        assert {lane: set(stages) for lane, stages in row.lanes.items()} == {
            "learner": {"wait_for_rollouts", "wait_for_batch", "update"}, "Rollouts": {"generate"}, "Judge": {"score"},
        }  # fmt: skip
        own = row.lanes
        assert own["learner"]["wait_for_rollouts"] >= own["Rollouts"]["generate"] >= 0.03
        assert (own["Judge"]["score"] >= 0.01, own["learner"]["update"] >= 0.02) == (True, True)


def test_each_trainer_has_an_environment_and_a_loop():
    assert set(STAGES) | {"trl"} == set(shims()) == {path.stem for path in REQUIREMENTS.glob("*.txt")} == set(PEERS)
