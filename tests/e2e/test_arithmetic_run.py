"""The arithmetic task in earnest: what its page promises of three seeds."""

import os
from pathlib import Path

import pytest

from harness.results import find_runs
from tests.e2e.conftest import finish, start

RISE, FORMAT = 0.2, 0.9
"""What is promised: the rise of the held-out answer reward, and the format reward at the end."""


@pytest.mark.slow
def test_grpo_makes_arithmetic_right_more_often_on_three_seeds(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    finish(start("run", "arithmetic_seeds", f"--out={tmp_path / 'out'}", environment=environment), within_s=5400)
    runs, damaged = find_runs(tmp_path / "out")
    assert damaged == []
    assert sorted(run.setting("seed") for run in runs) == [0, 1, 2]
    for run in runs:
        assert run.manifest.parameters == 918_400  # 3 * 262,400 + embeddings 1024 * 128 + the last norm's 128
        first, last = run.evaluations[0], run.evaluations[-1]
        rise = [row.metrics["validation/answer_reward"]["mean"] for row in (first, last)]
        assert rise[1] - rise[0] >= RISE
        assert last.metrics["validation/format_reward"]["mean"] > FORMAT
