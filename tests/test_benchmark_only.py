"""``pytest --benchmark-only``, as it is typed in a checkout."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_it_collects_the_benchmarks_alone_without_the_long_ones() -> None:
    one_file = "--ignore-glob=*/test_?[!i]*_benchmark.py"  # the simulator's: importing the others takes seconds
    command = [sys.executable, "-m", "pytest", "--benchmark-only", "--collect-only", "-q", one_file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [line.rpartition("::") for line in done.stdout.splitlines() if "::" in line]
    assert {file for file, _, _ in names} == {"tests/benchmarks/test_simulator_benchmark.py"}
    assert {name.partition("[")[0] for _, _, name in names} == {"test_64_generators_over_20_steps"}
