"""Write a results folder of many simulated runs, through the public writer: what the benchmarks of compare read.

A run is of the size of a recorded one of ``async_lag1``: 26 metrics and 12 spans a step, an evaluation every tenth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from harness.core.types import Metric, Metrics
from harness.results import RunFolder
from harness.scenario.load import load_scenario, resolved_yaml
from tests.benchmarks.runner import counted, parser
from tests.run_folders import RunPlan, write_run

EXAMPLE = "python -m tests.benchmarks.many_runs /tmp/many --layout blocks --runs 1000 --steps 200"
LAYOUTS = ("blocks", "campaigns")
SYNC = ("bytes", "tensors", "publish_s", "transfer_s", "load_s", "verify_s", "bandwidth_gb_s")
MEANS = ("reward/total", "response_length", "clip_fraction", "token_entropy", "loss", "grad_norm", "off_policy/mean")
MORE = tuple(f"own/{number}" for number in range(9))


def write_results(root: Path, layout: str, runs: Iterable[int], steps: int) -> None:
    """Write runs of these numbers: as two arms in blocks of one experiment, or as one experiment each."""
    settings = resolved_yaml(load_scenario("quickstart", [f"steps={steps}"]))
    for number in runs:
        write(root, layout, number, steps, settings).close()


def write(root: Path, layout: str, number: int, steps: int, settings: str) -> RunFolder:
    """Write one run, whose times and metrics depend on its number only."""
    in_blocks, noise = layout == "blocks", random.Random(number)
    seconds = number if not in_blocks else 0
    at = f"{1 + seconds // 86_400:02}", f"{seconds // 3600 % 24:02}", f"{seconds // 60 % 60:02}", f"{seconds % 60:02}"
    slower = 1.05 if in_blocks and number % 2 else 1.0

    def metrics(step: int) -> Metrics:
        names = (*MEANS, *(f"sync/{name}" for name in SYNC), *MORE)
        peaks = {name: Metric(noise.random(), "max", 64) for name in ("ratio/max", "off_policy/max")}
        return {name: Metric(noise.random(), count=64) for name in names} | peaks | {"tokens": Metric(668, "sum", 1)}

    plan = RunPlan(
        scenario="many" if in_blocks else "single",
        experiment=f"202611{at[0]}-{''.join(at[1:])}",
        started_at=f"2026-11-{at[0]}T{':'.join(at[1:])}.000Z",
        arm=("base", "slower")[number % 2] if in_blocks else None,
        block=number // 2 if in_blocks else None,
        seed=number // 2 if in_blocks else number,
        steps=steps,
        pace=lambda step: slower * noise.lognormvariate(0, 0.03),
        evaluations={version: (version / (version + 50), 12.0) for version in range(0, steps + 1, 10)},
        metrics=metrics,
        settings=settings,
    )
    return write_run(root, plan)


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("folder", type=Path)
    made.add_argument(
        "--layout", choices=LAYOUTS, default="blocks", help="one experiment, or one for each run (blocks)"
    )
    made.add_argument("--runs", type=int, default=1000)
    made.add_argument("--steps", type=int, default=200)
    options = made.parse_args()
    numbers = counted(range(options.runs), options.runs, "runs written")
    write_results(options.folder, options.layout, numbers, options.steps)


if __name__ == "__main__":
    main()
