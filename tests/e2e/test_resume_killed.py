"""Real processes, killed while they train: the run that goes on ends with the policy of one that never stopped."""

from __future__ import annotations

import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.results import load_run
from tests.e2e.conftest import finish, start, wait_until
from tests.run.test_resume_run import SCENARIO, rows, write_scenario

pytestmark = pytest.mark.slow
POLICY = "policy/model.safetensors"
ONE_PROCESS = """
faults: {delays: {update: 0.3}}
"""
ACTORS = """
faults: {delays: {update: 0.3}}
transport: {type: shared_memory}
placement: {learner: {cpus: 0.5}, generator: {cpus: 0.5}, scorer: {cpus: 0.5}}
checkpoint: {every: 2, asynchronous: true}
"""
RANKS = """
faults: {delays: {update: 0.3}}
transport: {type: shared_memory}
learner: {sharding: fsdp2}
placement: {learner: {ranks: 2, cpus: 0.25}, generator: {cpus: 0.5}, scorer: {cpus: 0.5}}
"""


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return start("run", *arguments, "--quiet", cwd=folder)


def run_folder(out: Path) -> Path:
    return next((out / "resumed").iterdir())


def started(folder: Path, step: int, *arguments: str) -> subprocess.Popen[str]:
    """Start the run into ``folder / "killed"`` and return once it has the checkpoint of a step."""
    process, place = command(folder, "resumed.yaml", "--out", "killed", *arguments), f"checkpoints/step_{step}"
    wait_until(lambda: list(folder.glob(f"killed/resumed/*/{place}")), place, process=process, pause_s=0.02)
    return process


def whole_and_killed(folder: Path, *arguments: str) -> tuple[Path, Path]:
    """Run to the end, and again until a kill between two checkpoints; return both folders."""
    finish(command(folder, "resumed.yaml", "--out", "whole", *arguments))
    process = started(folder, 4, *arguments)
    process.kill()
    process.communicate()
    left = run_folder(folder / "killed")
    assert load_run(left).status == "did not finish"
    return run_folder(folder / "whole"), left


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(ACTORS, id="actors, checkpoints beside"),
        pytest.param(RANKS, id="two ranks of FSDP2"),
        pytest.param(
            ONE_PROCESS + "engine: {type: vllm, precision: float32, max_batch: 16}\n",
            marks=pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (make install-vllm)"),
            id="vLLM",
        ),
    ],
)
def test_killed_and_gone_on(tmp_path: Path, more: str) -> None:
    own = {line.partition(":")[0] for line in more.splitlines()}
    base = [line for line in SCENARIO.splitlines() if line.partition(":")[0] not in own]
    write_scenario(tmp_path, "\n".join(base) + more)
    whole, left = whole_and_killed(tmp_path)
    finish(command(tmp_path, "--resume", str(left)))
    assert (left / POLICY).read_bytes() == (whole / POLICY).read_bytes()
    for name in ("groups.jsonl", "rollouts.jsonl"):
        assert rows(left / name) == rows(whole / name)
    run = load_run(left)
    assert (run.status, [row.step for row in run.steps]) == ("completed", list(range(8)))
    assert [segment.start_step for segment in run.manifest.segments] in ([2], [4])


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    write_scenario(tmp_path, SCENARIO + ONE_PROCESS)
    process = started(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    told = finish(process, 130)[1].strip().splitlines()[-1].rpartition("python -m harness run ")[2]
    assert told == f"--resume {run_folder(tmp_path / 'killed').relative_to(tmp_path)}"
    finish(command(tmp_path, *told.split()))
    assert [row.step for row in load_run(run_folder(tmp_path / "killed")).steps] == list(range(8))
