"""What grows when one process makes run after run on Ray, or one command follows the other: nothing.

    python -m tests.benchmarks.runs_in_a_row [--runs 10] [--commands] [--memory-mib 60]

Prints, before the first run and after each: processes below this one, its open descriptors and resident memory, the
bytes in /dev/shm and the temporary files. Exits with 1 where one of them is more after the last run than after the
second, resident memory by more than is allowed. With ``--commands`` each run is a command of its own. Ray itself leaves
up to two sockets at each ``init`` and ``shutdown`` in one process, without any part of this project: they are allowed.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario
from tests.e2e.conftest import Traces

SETTINGS = (
    "model={type: preset, preset: tiny, warm_start: false, threads: 1}",
    "sampling.max_tokens=8",
    "rollout_batch_size=8",
    "group_size=4",
    "steps=4",
    "evaluation={every: 4, prompts: 4}",
    "transport={type: shared_memory}",
    "placement={generator: {cpus: 0.25}, learner: {cpus: 0.25}, scorer: {cpus: 0.25}}",
)
SCENARIO = "sync_k1"
WARM = 2
"""Runs after which everything is loaded."""
RAYS_OWN = 2
"""Descriptors that each start of Ray leaves."""
TORCH_CACHE = "torchinductor_"


class Held(NamedTuple):
    """What is there between two runs."""

    processes: int
    descriptors: int
    resident_mib: float
    shared_bytes: int
    temporary_files: int


def held(traces: Traces) -> Held:
    gc.collect()
    own, shared = psutil.Process(), Path("/dev/shm")
    sizes = [entry.stat().st_size for name in traces.shared_memory() if (entry := shared / name).exists()]
    files = [name for name in os.listdir(traces.folder) if not name.startswith(TORCH_CACHE)]
    return Held(len(traces.processes()), own.num_fds(), own.memory_info().rss / 2**20, sum(sizes), len(files))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--memory-mib", type=float, default=60.0, help="by which resident memory may be more")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder, tempfile.TemporaryDirectory() as out:
        traces = Traces(Path(folder))
        os.environ.update(traces.environment)
        tempfile.tempdir = None  # read TMPDIR again
        found = [held(traces)]
        print(f"{'run':>6} {'processes':>9} {'descriptors':>11} {'MiB resident':>12} {'/dev/shm':>9} {'files':>5}")
        for number in range(asked.runs + 1):
            if number:
                make_run(Path(out), asked.commands)
                found.append(held(traces))
            last = found[-1]
            print(
                f"{number or 'before':>6} {last.processes:>9} {last.descriptors:>11} {last.resident_mib:>12.0f} "
                f"{last.shared_bytes:>9} {last.temporary_files:>5}",
                flush=True,
            )
    warm, last = found[min(WARM, asked.runs)], found[-1]
    of_ray = 0 if asked.commands else RAYS_OWN * max(0, asked.runs - WARM)
    allowed = Held(0, of_ray, asked.memory_mib, 0, 0)
    grown = [
        f"{name}: {before:g} to {after:g}"
        for name, before, after, more in zip(Held._fields, warm, last, allowed, strict=True)
        if after > before + more
    ]
    print("; ".join(grown) or "nothing grew")
    return int(bool(grown))


def make_run(out: Path, as_command: bool) -> None:
    if as_command:
        settings = [argument for each in SETTINGS for argument in ("--set", each)]
        command = [sys.executable, "-m", "harness", "run", SCENARIO, "--quiet", "--out", str(out), *settings]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    else:
        run_scenario(load_scenario(SCENARIO, list(SETTINGS)), out, quiet=True, show=lambda _: None)


if __name__ == "__main__":
    sys.exit(main())
