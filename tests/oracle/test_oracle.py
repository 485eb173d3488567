"""A step goes to implementations in processes of their own; one that misbehaves costs its answers only."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from harness.cli import main
from harness.core.errors import UserError
from harness.oracle.ask import Answer, Implementation, Limits, ask_all
from harness.oracle.environments import PEERS
from harness.oracle.ours import advantages, ours
from harness.oracle.peers.serve import PACKAGES
from harness.oracle.step import AdvantageOptions, Header, Importance, LossOptions, Step, read_step
from harness.oracle.table import Asked, asked, table

FAKE = """
import json, os, sys
import numpy as np
from safetensors import safe_open
said = os.fdopen(int(sys.argv[-1]), "w")
BEFORE
print(json.dumps({"package": "fake", "version": "1.0"}), file=said, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    with safe_open(asked["step"], "np") as file:
        header = json.loads(file.metadata()["step"])
        t = {name: file.get_tensor(name) for name in file.keys()}
    assert header["loss"]["aggregation"] == "token_mean"
    mask, a = t["mask"] > 0, t["advantages"][t["rows"]][:, None]
    ratio = np.exp(t["log_probs"] - t["old_log_probs"])
    free, bound = ratio * a, ratio.clip(0.8, 1.2) * a
    loss = -np.minimum(free, bound)[mask].mean()
    gradient = np.where(free <= bound, -free, 0.0)[mask] / mask.sum()
    matched = {"variant": "matched", "options": {"clip": 0.2}, "loss": loss, "gradient": gradient.tolist()}
    groups = [t["rewards"][t["group"] == number] for number in np.unique(t["group"])]
    values = np.concatenate([(r - r.mean()) / (r.std(ddof=1) + 1e-6) for r in groups]).tolist()
    CHANGE
    answer = {"losses": [matched], "advantages": [{"values": values}]}
    open(asked["answer"], "w").write(json.dumps(answer))
    print("{}", file=said, flush=True)
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
    return Step(header=header, tensors=tensors | {"advantages": advantages(Step(header=header, tensors=tensors))})


def fake(tmp_path: Path, change: str = "", name: str = "fake", before: str = "") -> list[str]:
    path = tmp_path / f"{name}.py"
    path.write_text(FAKE.replace("CHANGE", change).replace("BEFORE", before))
    return [sys.executable, str(path)]


def answered(step: Step, tmp_path: Path, change: str, seconds: float = 60) -> Asked | str:
    return ask_all({"fake": fake(tmp_path, change)}, Limits(seconds), lambda peer: asked(peer, step))["fake"]


def test_a_fake_that_computes_the_same_agrees_and_one_with_a_fault_does_not(tmp_path: Path) -> None:
    """Its own formulas, in float64; ours has token weights in float32. A clip at 1.3 moves a token's gradient."""
    step = made_step()
    found = answered(step, tmp_path, "")
    assert isinstance(found, Asked)
    own, (loss,), (weights,) = ours(step), found.answer.losses, found.answer.advantages
    assert loss.loss == pytest.approx(own.loss, rel=1e-6)
    gradient = torch.tensor(loss.gradient, dtype=torch.float64)
    assert len(gradient) == int(step.tensors["mask"].sum())
    assert (gradient - own.gradient).abs().max() < 1e-9
    assert torch.tensor(weights.values).allclose(own.advantages.float(), atol=1e-6)
    wrong = answered(step, tmp_path, "matched['gradient'][5] += 0.262; values[7] -= 0.5")
    made, details = table(step, None, {"fake": wrong})
    assert [row[:2] for row in made.rows] == [
        ("this project", "matched"),
        ("fake 1.0", "matched"),
        ("fake 1.0", "advantages"),
    ]
    assert made.rows[1][3:5] == ("2.6e-01", "2.0e-03")  # 0.262 in one of 131 tokens
    assert made.rows[2][5] == "5.0e-01"
    assert "fake 1.0, matched: clip 0.2" in details


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("raise RuntimeError('no such kernel')", "exit code 1: RuntimeError: no such kernel"),
        ("os.abort()", "SIGABRT"),
        ("print('x' * 10**7, flush=True); sys.exit(3)", "exit code 3: "),
        ("big = bytearray(3 * 2**30)", "exit code 1: MemoryError"),
        ("matched['gradient'].pop()", "its answer has no loss with a gradient of 131 values"),
        ("values = values[1:]", "its answer has no advantages of 12 rollouts"),
        ("matched = {'variant': 'another'}", "no answer that can be read"),
        ("print('{}', file=said, flush=True); continue", "no answer that can be read"),
        ("os.close(said.fileno()); os.close(0); import time; time.sleep(600)", "it closed its answers"),
        ("sys.exit(0)", "exit code 0: nothing was printed"),
    ],
)
def test_what_goes_wrong_costs_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, said: str) -> None:
    monkeypatch.setattr("harness.oracle.ask.END_S", 1.0)
    step = made_step()
    commands = {"bad": fake(tmp_path, change, "bad"), "good": fake(tmp_path)}
    found = ask_all(commands, Limits(60, 2 * 2**30), lambda peer: asked(peer, step))
    assert isinstance(found["bad"], str)
    assert found["bad"].startswith(said)
    assert isinstance(found["good"], Asked)
    rows = table(step, None, found)[0].rows
    assert [row[:2] for row in rows] == [
        ("this project", "matched"), ("bad", "failed"), ("good 1.0", "matched"), ("good 1.0", "advantages"),
    ]  # fmt: skip


def test_one_that_fails_once_is_started_again_and_one_that_always_fails_three_times(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    count = f"open({str(starts)!r}, 'a').write('x')"
    once = f"assert len(open({str(starts)!r}).read()) > 1"
    step = made_step()
    with Implementation(fake(tmp_path, once, before=count), Limits()) as peer:
        first, *others = [peer.ask(step) for _ in range(3)]
    assert first == "exit code 1: AssertionError"
    assert [isinstance(each, Answer) for each in others] == [True, True]
    assert starts.read_text() == "xx"
    starts.unlink()
    with Implementation(fake(tmp_path, before=f"{count}; sys.exit('no module')"), Limits()) as peer:
        assert {peer.about(), *(peer.ask(step) for _ in range(5))} == {"exit code 1: no module"}
    assert starts.read_text() == "xxx"


def test_the_service_and_the_command_know_the_same_implementations() -> None:
    files = {
        path.stem.removeprefix("of_")
        for path in Path(sys.modules[Answer.__module__].__file__).parent.glob("peers/of_*.py")
    }
    assert set(PACKAGES) == set(PEERS) == files


def test_one_that_prints_much_still_answers(tmp_path: Path) -> None:
    assert isinstance(answered(made_step(), tmp_path, "print('x' * 10**6)"), Asked)


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    start = "import subprocess, time; child = subprocess.Popen(['sleep', '600'])"
    change = f"{start}; open({str(marker)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    assert answered(made_step(), tmp_path, change, 10) == "no answer after 10 s"
    child = Path(f"/proc/{marker.read_text()}/stat")
    deadline = time.monotonic() + 20
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_a_step_that_was_written_is_read(tmp_path: Path) -> None:
    step = made_step(aggregation="constant", constant=24.0, dual_clip=3.0, importance=Importance(mode="tis", cap=2.0))
    step = replace(step, tensors=dict(step.tensors) | {"engine_log_probs": step.tensors["old_log_probs"] - 0.1})
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
        (
            tensors,
            {"step": json.dumps({"loss": {"aggregation": "token_mean", "kl": {"coefficient": 0.1}}})},
            "reference",
        ),
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
    assert main(["oracle"]) == 2
    assert main(["oracle", "--install", "nobody"]) == 2
