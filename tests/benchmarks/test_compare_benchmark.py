"""Reading and comparing many runs. The goal of the project: 1,000 runs of 200 steps in 10 s and 1 GB on 2 cores.

The whole of that takes a disk's room for 740 MB and is marked slow; its seconds are printed, not asserted. The smaller
ones show what a run costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.compare.experiment import gather, gather_newest
from harness.results import load_run
from tests.benchmarks.many_runs import LAYOUTS, write_results

STEPS, MOST_BYTES = 200, 1e9


@pytest.fixture(scope="module", params=LAYOUTS)
def some_runs(request: pytest.FixtureRequest, timed: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    write_results(root, request.param, range(20 if timed else 2), STEPS)
    return root


def test_reading_a_run(benchmark: BenchmarkFixture, some_runs: Path) -> None:
    folder = next(some_runs.rglob("steps.jsonl")).parent
    benchmark.extra_info |= {"steps": STEPS}
    assert len(benchmark(load_run, folder).steps) == STEPS


@pytest.mark.parametrize("brief", [False, True], ids=["in full", "for an overview"])
def test_gathering_20_runs(benchmark: BenchmarkFixture, some_runs: Path, timed: bool, brief: bool) -> None:
    benchmark.extra_info |= {"runs": 20, "steps": STEPS}
    experiments, damaged = benchmark.pedantic(gather, ([some_runs], brief), rounds=5, warmup_rounds=1)
    assert (sum(len(experiment.members) for experiment in experiments), damaged) == (20 if timed else 2, [])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_cost_grows_linearly(benchmark: BenchmarkFixture, layout: str, tmp_path: Path) -> None:
    """Four times the runs take about four times as long: in one process, in turns, so that both meet one machine.

    The least of the turns is compared, as the one that other work disturbed least. 20 and 80 runs of 200 steps: a
    quadratic cost would show as 16 times.
    """
    few, many = tmp_path / "few", tmp_path / "many"
    for root, runs in ((few, 20), (many, 80)):
        write_results(root, layout, range(runs), STEPS)
    seconds: dict[Path, list[float]] = {few: [], many: []}
    for _ in range(4):
        for root, times in seconds.items():
            start = time.process_time()
            gather_newest([root])
            times.append(time.process_time() - start)
    ratio = min(seconds[many]) / min(seconds[few])
    benchmark.extra_info |= {"runs": 80, "steps": STEPS, "times_the_cost_of_20_runs": ratio}
    benchmark.pedantic(gather_newest, ([few],), rounds=1)
    assert 2 < ratio < 8


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_1000_runs_of_200_steps(benchmark: BenchmarkFixture, timed: bool, layout: str, tmp_path: Path) -> None:
    write_results(tmp_path, layout, range(1000 if timed else 20), STEPS)
    peaks: list[int] = []

    def compare() -> None:
        peaks.append(peak_memory([sys.executable, "-m", "harness.compare", str(tmp_path)]))

    benchmark.pedantic(compare, rounds=3)
    benchmark.extra_info |= {"runs": 1000, "steps": STEPS, "peak_bytes_of_all_processes": max(peaks)}
    assert max(peaks) < MOST_BYTES


def peak_memory(command: list[str]) -> int:
    """Run a command; return the highest memory of it and its children together that is seen, in bytes."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "120"}) as process:
        peak, root = 0, psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, memory_of(root))
            time.sleep(0.05)
    assert process.returncode == 0
    return peak


def memory_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss) + sum(map(memory_of, process.children()))
    except psutil.Error:  # it has ended
        return 0
