"""A step goes to implementations in processes of their own; one that misbehaves costs its row only."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from harness.cli import main
from harness.core.errors import UserError
from harness.oracle import peers
from harness.oracle.ask import PEERS, Answer, Limits, ask, command_of, interpreter
from harness.oracle.command import asked, table
from harness.oracle.step import AdvantageOptions, Header, LossOptions, Step, ours, read_step, step_of_run
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario
from tests.run.conftest import unseen
from tests.run.test_recompute import KEPT
from tests.run.test_resume_run import standing_in, write_scenario

ENVIRONMENTS = Path(os.environ.get("ORACLE_ENVIRONMENTS", Path(__file__).parents[2]))
"""Where ``.venv-NAME`` are."""
FAKE = """
import json, sys
import numpy as np
from safetensors import safe_open
with safe_open(sys.argv[-2], "np") as file:
    header = json.loads(file.metadata()["step"])
    t = {name: file.get_tensor(name) for name in file.keys()}
assert header["loss"]["aggregation"] == "token_mean"
mask, a = t["mask"] > 0, t["advantages"][t["rows"]][:, None]
ratio = np.exp(t["log_probs"] - t["old_log_probs"])
free, bound = ratio * a, ratio.clip(0.8, 1.2) * a
loss = -np.minimum(free, bound)[mask].mean()
gradient = np.where(free <= bound, -free, 0.0)[mask] / mask.sum()
matched = {"variant": "matched", "options": {"clip": 0.2}, "loss": loss, "gradient": gradient.tolist()}
r = t["rewards"].reshape(-1, 4)
values = ((r - r.mean(1, keepdims=True)) / (r.std(1, keepdims=True, ddof=1) + 1e-6)).ravel().tolist()
CHANGE
answer = {"package": "fake", "version": "1.0", "losses": [matched], "advantages": [{"values": values}]}
open(sys.argv[-1], "w").write(json.dumps(answer))
"""
"""An implementation: the clipped surrogate, its gradient by hand."""


def made_step(**loss) -> Step:
    """Twelve rollouts of three groups, off-policy, one group of equal rewards, one response without a token."""
    torch.manual_seed(0)
    lengths = torch.tensor([24, 3, 10, 17, 5, 24, 8, 2, 12, 20, 6, 0])
    old = -torch.rand(12, 24, dtype=torch.float64) * 3
    rewards = torch.tensor([1, 0, 0, 1, 0.1, 0.1, 0.1, 0.1, 0, 0.5, 1, 0.25], dtype=torch.float64)
    tensors = {
        "log_probs": old + torch.randn(12, 24, dtype=torch.float64) * 0.6,
        "old_log_probs": old,
        "mask": (torch.arange(24)[None] < lengths[:, None]).to(torch.uint8),
        "rewards": rewards,
        "group": torch.arange(3).repeat_interleave(4),
        "rows": torch.arange(12),
    }
    header = Header(loss=LossOptions(**{"aggregation": "token_mean"} | loss), advantage=AdvantageOptions())
    tensors["advantages"] = rewards
    advantages = ours(Step(header=header, tensors=tensors))["advantages"]
    return Step(header=header, tensors=tensors | {"advantages": advantages})


def fake(tmp_path: Path, change: str = "", name: str = "fake") -> list[str]:
    path = tmp_path / f"{name}.py"
    path.write_text(FAKE.replace("CHANGE", change))
    return [sys.executable, str(path)]


def answered(step: Step, tmp_path: Path, change: str, seconds: float = 60) -> Answer | str:
    return asked(step, {"fake": fake(tmp_path, change)}, Limits(seconds))["fake"]


def test_a_fake_that_computes_the_same_agrees_and_one_with_a_fault_does_not(tmp_path: Path) -> None:
    """Its own formulas, in float64; ours has token weights in float32. A clip at 1.3 moves a token's gradient."""
    step = made_step()
    found = answered(step, tmp_path, "")
    assert isinstance(found, Answer)
    own = ours(step)
    assert found.losses[0].loss == pytest.approx(own["loss"], rel=1e-6)
    gradient = torch.tensor(found.losses[0].gradient, dtype=torch.float64)
    assert len(gradient) == int(step.tensors["mask"].sum())
    assert (gradient - own["gradient"]).abs().max() < 1e-9
    assert torch.tensor(found.advantages[0].values).allclose(own["advantages"].float(), atol=1e-6)
    wrong = answered(step, tmp_path, "matched['gradient'][5] += 0.25; values[7] -= 0.5")
    made, details = table(step, None, {"fake": wrong})
    assert [row[:2] for row in made.rows] == [
        ("this project", "matched"),
        ("fake 1.0", "matched"),
        ("fake 1.0", "advantages"),
    ]
    assert made.rows[1][3] == "2.5e-01"
    assert made.rows[2][4] == "5.0e-01"
    assert "fake 1.0, matched: clip 0.2" in details


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("raise RuntimeError('no such kernel')", "exit code 1: RuntimeError: no such kernel"),
        ("import os; os.abort()", "SIGABRT"),
        ("print('x' * 10**7, flush=True); sys.exit(3)", "exit code 3: "),
        ("big = bytearray(3 * 2**30)", "exit code 1: MemoryError"),
        ("matched['gradient'].pop()", "its answer has no loss with a gradient of 131 tokens"),
        ("values = values[1:]", "its answer has no advantages of 12 rollouts"),
        ("matched = {'variant': 'another'}", "no answer that can be read"),
        ("sys.exit(0)", "no answer that can be read"),
    ],
)
def test_what_goes_wrong_costs_a_row(tmp_path: Path, change: str, said: str) -> None:
    step = made_step()
    limits = Limits(60, 2 * 2**30)
    commands = {"bad": fake(tmp_path, change, "bad"), "good": fake(tmp_path)}
    found = asked(step, commands, limits)
    assert isinstance(found["bad"], str)
    assert found["bad"].startswith(said)
    assert isinstance(found["good"], Answer)
    rows = table(step, None, found)[0].rows
    assert [row[:2] for row in rows] == [
        ("this project", "matched"), ("bad", "failed"), ("good 1.0", "matched"), ("good 1.0", "advantages"),
    ]  # fmt: skip


def test_the_script_and_the_command_know_the_same_implementations() -> None:
    assert list(peers.PEERS) == list(PEERS) == list(MATCHED)


def test_one_that_prints_much_still_answers(tmp_path: Path) -> None:
    assert isinstance(answered(made_step(), tmp_path, "print('x' * 10**6)"), Answer)


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    start = "import subprocess, time; child = subprocess.Popen(['sleep', '600'])"
    change = f"{start}; open({str(marker)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    assert answered(made_step(), tmp_path, change, 20) == "no answer after 20 s"
    child = Path(f"/proc/{marker.read_text()}/stat")
    deadline = time.monotonic() + 20
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_a_step_that_was_written_is_read(tmp_path: Path) -> None:
    step = made_step(aggregation="constant", constant=24.0, dual_clip=3.0)
    path = tmp_path / "step.safetensors"
    step.write(path)
    read = read_step(path)
    assert read.header == step.header
    assert {name: torch.equal(read.tensors[name], values) for name, values in step.tensors.items()} == dict.fromkeys(
        step.tensors, True
    )


def test_a_file_that_is_no_step_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    path.write_bytes(b"no")
    with pytest.raises(UserError, match="it is not a step"):
        read_step(path)
    tensors = dict(made_step().tensors)
    header = json.dumps({"loss": {"aggregation": "token_mean"}})
    for changed, metadata, said in (
        (tensors, {}, "no 'step'"),
        (tensors, {"step": "{"}, "it is not a step"),
        (tensors, {"step": json.dumps({"loss": {"aggregation": "median"}})}, "median"),
        ({name: tensors[name] for name in tensors if name != "mask"}, {"step": header}, "it has no mask"),
        (tensors | {"mask": tensors["mask"][:, 1:]}, {"step": header}, "mask has shape"),
        (tensors | {"rows": tensors["rows"] + 1}, {"step": header}, "rows name rollouts 1 to 12 of 12"),
        (tensors | {"group": torch.arange(12) % 3}, {"step": header}, "side by side"),
    ):
        save_file({name: values.contiguous() for name, values in changed.items()}, path, metadata)
        with pytest.raises(UserError, match=said):
            read_step(path)
    assert main(["oracle", str(path)]) == 2
    assert main(["oracle", str(path), "--against", "verl,nobody"]) == 2
    assert main(["oracle", str(tmp_path)]) == 2


def test_each_optimizer_step_of_a_kept_step_has_the_recorded_loss(tmp_path: Path) -> None:
    """Two epochs of two minibatches, with replay and a KL penalty; no figure of it is ours to choose."""
    write_scenario(tmp_path, KEPT, "kept.yaml")
    with standing_in(tmp_path):
        scenario = load_scenario("kept.yaml")
        assert run_scenario(scenario, tmp_path / "out", True, show=unseen) == 0
        folder = next((tmp_path / "out" / "kept").iterdir())
        for at in range(4):
            step, recorded = step_of_run(folder, 3, scenario, at)
            assert recorded.left_out == (f"kl.coefficient {scenario.loss.kl.coefficient:g}",)
            sizes = step.tensors["advantages"].abs().mean()
            assert recorded.again == pytest.approx(recorded.loss, abs=1e-6 * float(sizes))
            assert len(step.tensors["rows"]) == 4
            assert torch.equal(ours(step)["advantages"].float(), step.tensors["advantages"].float())
        ratios = step.tensors["log_probs"] - step.tensors["old_log_probs"]
        assert ratios[step.tensors["mask"].bool()].abs().max() > 1e-4  # the last one is off-policy
        with pytest.raises(UserError, match="no optimizer step 4"):
            step_of_run(folder, 3, scenario, 4)
        with pytest.raises(UserError, match="kept are: 0, 1, 3"):
            step_of_run(folder, 2, scenario)


MATCHED = {
    "trl": ("token_mean", "sequence_mean", "constant"),
    "verl": ("token_mean", "sequence_mean", "sequence_sum", "constant"),
    "skyrl": ("token_mean", "sequence_mean", "constant"),
    "areal": ("token_mean",),
    "openrlhf": ("token_mean", "sequence_mean"),
    "trinity": ("token_mean", "sequence_mean", "sequence_sum"),
    "swift": (),
    "tinker": (),
}
"""Aggregations that each implementation has."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_shipped_code_agrees_where_options_match(tmp_path: Path, name: str) -> None:
    """With and without a dual clip, each aggregation; advantages but for eps, which TRL and ms-swift fix at 1e-4."""
    python = interpreter(name, ENVIRONMENTS)
    if python is None:
        pytest.skip(f"there is no .venv-{name}, nor has this environment the package")
    found = set()
    for aggregation in ("token_mean", "sequence_mean", "sequence_sum", "constant"):
        step = made_step(aggregation=aggregation, constant=24.0 if aggregation == "constant" else None, dual_clip=3.0)
        path = tmp_path / f"{aggregation}.safetensors"
        step.write(path)
        answer = ask(command_of(name, python), path, (int(step.tensors["mask"].sum()), 12), Limits())
        assert isinstance(answer, Answer), answer
        own, matched = ours(step), answer.losses[0]
        if matched.gradient is not None:
            found.add(aggregation)
            gap = (torch.tensor(matched.gradient, dtype=torch.float64) - own["gradient"]).abs().max()
            assert gap < 1e-8, (aggregation, matched.options)
        for each in answer.advantages:
            if each.values is not None:
                far = np.abs(np.array(each.values) - own["advantages"].numpy()).max()
                assert far < (1e-3 if name in ("trl", "swift") else 1e-5), each
    assert found == set(MATCHED[name])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("verl", [117, 177]), ("skyrl", [117])])
def test_groups_of_equal_rewards_get_advantages_elsewhere(tmp_path: Path, name: str, expected: list[int]) -> None:
    """Rewards 0.01 to 1.00 in groups of 4, 8, 16 and 32: so many of 400 groups have an advantage above 0.01, by the
    rounding of float32 sums (verl 0.9.1 by ``grpo`` and ``grpo_vectorized``, SkyRL 0.3.0). Here all are 0."""
    python = interpreter(name, ENVIRONMENTS)
    if python is None:
        pytest.skip(f"there is no .venv-{name}, nor has this environment the package")
    sizes = torch.tensor([4, 8, 16, 32]).repeat_interleave(100)
    rewards = (torch.arange(1, 101, dtype=torch.float64) / 100).repeat(4).repeat_interleave(sizes)
    ones = torch.ones(len(rewards), 1, dtype=torch.float64)
    group, rows = torch.arange(400).repeat_interleave(sizes), torch.arange(len(rewards))
    tensors = {
        "log_probs": -ones,
        "old_log_probs": -ones,
        "mask": ones,
        "rewards": rewards,
        "group": group,
        "rows": rows,
    }
    header = Header(loss=LossOptions(aggregation="token_mean"))
    step = Step(header=header, tensors=tensors | {"advantages": torch.zeros_like(rewards)})
    assert float(ours(step)["advantages"].abs().max()) == 0
    answer = asked(step, {name: command_of(name, python)}, Limits())[name]
    assert isinstance(answer, Answer), answer
    found = []
    for each in answer.advantages:
        largest = torch.zeros(400, dtype=torch.float64)
        largest.scatter_reduce_(0, group, torch.tensor(each.values, dtype=torch.float64).abs(), "amax")
        found.append(int((largest > 0.01).sum()))
    assert found == expected
