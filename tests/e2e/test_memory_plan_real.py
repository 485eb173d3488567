"""The memory plan against what a run of a model large enough to matter really holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["qwen, 2 layers, 16 x 48", "the same, checkpointing"])
def test_the_plan_is_within_a_fifth_below_and_a_third_above_what_is_held(case: str) -> None:
    """94 million weights of the public width; docs/memory.md has the figures of all cases."""
    script = ROOT / "tests" / "benchmarks" / "memory_plan_vs_real.py"
    command = [sys.executable, str(script), "--json", "--only", case]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ}, cwd=ROOT)
    (figures,) = json.loads(done.stdout.splitlines()[-1])
    assert 0.8 < figures["planned"] / figures["real"] < 1.33
