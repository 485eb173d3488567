"""The arithmetic task in earnest: what its page promises of three seeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.results import find_runs

RISE, FORMAT = 0.2, 0.9
"""What is promised: the rise of the held-out answer reward, and the format reward at the end."""


@pytest.mark.slow
def test_grpo_makes_arithmetic_right_more_often_on_three_seeds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "run", "arithmetic_seeds", f"--out={tmp_path}"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5400, check=False)
    assert done.returncode == 0, done.stderr
    runs, damaged = find_runs(tmp_path)
    assert damaged == []
    assert sorted(run.setting("seed") for run in runs) == [0, 1, 2]
    for run in runs:
        assert run.manifest.parameters == 918_400  # 3 * 262,400 + embeddings 1024 * 128 + the last norm's 128
        first, last = run.evaluations[0], run.evaluations[-1]
        rise = [row.metrics["validation/answer_reward"]["mean"] for row in (first, last)]
        assert rise[1] - rise[0] >= RISE
        assert last.metrics["validation/format_reward"]["mean"] > FORMAT
