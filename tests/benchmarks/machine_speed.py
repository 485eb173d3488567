"""Does a short piece of fixed work, done after every training step, explain how long the steps take?

    python tests/benchmarks/machine_speed.py --steps 150 --runs 2 -o docs/measured/machine_speed.json

Runs the quickstart's loop with the smallest model in float32 and a probe after every step: a matrix product with the
run's precision and threads, a copy in memory, and a loop of Python calls, about 5 ms in all. Their time is taken out of
the steps. Steps are put into blocks; what is asked is how much of the blocks' step times the probe explains, and how
much the steps in between explain, which are the best probe there could be. Other work on the machine must come and go
meanwhile, else there is nothing to explain.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from harness.probes.machine_speed import SpeedProbe
from harness.results import EvaluationRow, StepRow
from harness.run.arm_runner import ArmRunner
from harness.run.factory import PartsFactory
from harness.run.interleaving import Group
from harness.run.session import Experiment
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario

KINDS = ("product", "copy", "calls", "all")
Numbers = NDArray[np.float64]


def measured_run(steps: int, seed: int) -> list[dict[str, float]]:
    """Run the loop once; return for each training step its seconds without the probe, and the probe's after it."""
    changes = (
        "model.preset=tiny", "model.threads=1", f"steps={steps}", f"seed={seed}", "save_policy=false", "profile=off",
        "trackers=[]", f"evaluation.every={steps}", "evaluation.prompts=8",
    )  # fmt: skip
    probe, rows = SpeedProbe(), list[dict[str, float]]()

    def after_row(row: StepRow | EvaluationRow) -> None:
        if isinstance(row, StepRow):
            before = rows[-1]["all"] if rows else 0.0  # the probe ran within the time of the next step
            rows.append({"step": row.wall_s - before} | probe.measure())

    with tempfile.TemporaryDirectory() as folder, PartsFactory() as factory:
        runner = ArmRunner(Experiment(Path(folder), "machine_speed"), factory, Console(stderr=True), quiet=True)
        failures = runner.run(Group(expand(load_scenario("quickstart", changes)), None), listeners=[after_row])
    if failures:
        raise failures[0][1]
    return rows[2:-1]  # without the first steps, which are warm-up, and the last, which has the evaluation


def block_logs(rows: Sequence[dict[str, float]], per_block: int) -> dict[str, Numbers]:
    """Return the log of each block's mean seconds, shape [blocks], by name.

    ``step``: of every second step. ``other_steps``: of those between them, which say how well anything that ran at
    nearly the same time could explain the first ones. The rest: of each kind of work.
    """
    blocks = [rows[start : start + per_block] for start in range(0, len(rows) - per_block + 1, per_block)]
    taken = {"step": ("step", 0), "other_steps": ("step", 1)}
    means = {
        name: [np.mean([row[column] for row in block[first::2]]) for block in blocks]
        for name, (column, first) in taken.items()
    }
    means |= {kind: [np.mean([row[kind] for row in block]) for block in blocks] for kind in KINDS}
    return {name: np.log(np.array(values)) for name, values in means.items()}


def explained(logs: dict[str, Numbers]) -> dict[str, dict[str, float]]:
    """Return how each column goes with ``step``.

    ``r2``: the squared correlation. ``r2_changes``: that of the changes from one block to the next, which a slow trend
    common to both does not help. ``left_sd``: standard deviation of step - column, both in logs: what is not explained
    once the column is divided out.
    """
    step = logs["step"]
    return {
        name: {
            "r2": float(np.corrcoef(step, column)[0, 1] ** 2),
            "r2_changes": float(np.corrcoef(np.diff(step), np.diff(column))[0, 1] ** 2),
            "left_sd": float(np.std(step - column, ddof=1)),
        }
        for name, column in logs.items()
        if name != "step"
    }


def main() -> None:
    """Run, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150, help="training steps of each run")
    parser.add_argument("--per-block", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    loads, runs = [os.getloadavg()[0]], []
    for seed in range(options.runs):
        runs.append(measured_run(options.steps, seed))
        loads.append(os.getloadavg()[0])
    result: dict[str, Any] = {
        "command": f"python tests/benchmarks/machine_speed.py --runs {options.runs} --steps {options.steps}",
        "load_average": [round(load, 2) for load in loads],
        "step_s_median": float(np.median([row["step"] for rows in runs for row in rows])),
        "probe_s_median": float(np.median([row["all"] for rows in runs for row in rows])),
        "blocks": {},
    }
    for per_block in options.per_block:
        each = [block_logs(rows, per_block) for rows in runs]
        logs = {name: np.concatenate([found[name] for found in each]) for name in each[0]}
        result["blocks"][str(per_block)] = {
            "number": len(logs["step"]),
            "sd_of_step": float(np.std(logs["step"], ddof=1)),
            "explained": explained(logs),
        }
    print(json.dumps(result, indent=2))
    if options.out is not None:
        columns = {name: [[round(row[name], 6) for row in rows] for rows in runs] for name in ("step", *KINDS)}
        options.out.write_text(json.dumps(result | {"seconds": columns}) + "\n")


if __name__ == "__main__":
    main()
