"""Step times of two ranks, predicted and measured: runs of DDP and FSDP2 that no profile was fitted to.

Collectives are measured, the arms of scenarios/calibration.yaml and scenarios/calibration_ranks.yaml are run, and those
of tests/holdout/ranks.yaml, in as many rounds as are asked for, so that what the machine changes in between falls on
all. A profile is fitted to the first two, and forecasts the third; no run of these is in the fit, and the profile's
sources are checked for that. Beside the step its stage ``update`` is compared, in which the ranks exchange most.

    python -m tests.benchmarks.ranks_predicted --results results/ranks --rounds 2
    python -m tests.benchmarks.ranks_predicted --from results/ranks
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness.core.trace import Stage
from harness.results import Run
from harness.results.writer import SCENARIO
from harness.run.experiment import run_scenario
from harness.scenario.load import load_scenario
from harness.simulate.calibrate.command import SCENARIOS, measured_collectives
from harness.simulate.calibrate.exchange import find_collectives
from harness.simulate.calibrate.fit import fit
from harness.simulate.calibrate.observations import find_sources
from harness.simulate.forecast import forecast
from harness.simulate.metrics import metrics_of_run
from harness.simulate.recorded_run import run_label

HELD_OUT = "tests/holdout/ranks.yaml"
GOAL = 0.15


def measure(results: Path, rounds: int, changes: Sequence[str]) -> None:
    """Make all runs."""
    for _ in range(rounds):
        measured_collectives(results)
        for name in (*SCENARIOS, HELD_OUT):
            run_scenario(load_scenario(name, ["blocks=1", *changes]), results, quiet=True)


def compared(results: Path, draws: int) -> dict[str, Any]:
    """Fit to what is no held-out run, and return predicted beside measured seconds of each held-out arm."""
    runs = [run for run in find_sources([results]) if run.status == "completed"]
    held_out = [run for run in runs if run.manifest.scenario == Path(HELD_OUT).stem]
    fitted = fit([run for run in runs if run not in held_out], "ranks", collectives=find_collectives([results])).profile
    assert not {run_label(run) for run in held_out} & set(fitted.sources), "a held-out run was fitted"
    by_arm: dict[str, list[Run]] = defaultdict(list)
    for run in held_out:
        by_arm[str(run.manifest.arm)].append(run)
    arms = {}
    for arm, repeats in by_arm.items():
        found = forecast(load_scenario(repeats[0].folder / SCENARIO), fitted, draws)
        measured = [metrics_of_run(run) for run in repeats]
        stages = {name: fmean(each.stages_s.get(name, 0.0) for each in measured) for name in found.stages_s}
        arms[arm] = {
            "measured_s": [each.step_s for each in measured],
            "predicted_s": [found.step_s.value, found.step_s.low, found.step_s.high],
            "off": found.step_s.value / fmean(each.step_s for each in measured) - 1,
            "stages": {name: [figure.value, stages[name]] for name, figure in found.stages_s.items() if figure.value},
        }
    exchange = {cost.where["mode"]: cost.seconds for cost in fitted.stages if cost.stage == "exchange"}
    collectives = {cost.stage: cost.seconds for cost in fitted.stages if cost.where.get("link")}
    slowdown = fitted.contention.slowdown if fitted.contention else None
    return {"arms": arms, "exchange": exchange, "collectives": collectives, "slowdown": slowdown}


def main() -> None:
    """Measure where nothing was measured yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/ranks"))
    parser.add_argument("--from", dest="source", type=Path, help="compare what was measured before")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--draws", type=int, default=39)
    parser.add_argument("--set", action="append", default=[], help="change a setting of all runs")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if options.source is None:
        measure(options.results, options.rounds, options.set)
    found = compared(options.source or options.results, options.draws)
    print(
        "| held-out arm | measured, s a step | predicted [90%] | off by | update measured | update predicted | off by |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for arm, row in found["arms"].items():
        value, low, high = row["predicted_s"]
        times = ", ".join(f"{each:.3f}" for each in row["measured_s"])
        own, real = row["stages"][Stage.UPDATE.value]
        step = f"{value:.3f} [{low:.3f}, {high:.3f}] | {row['off']:+.1%}"
        print(f"| {arm} | {times} | {step} | {real:.3f} | {own:.3f} | {own / real - 1:+.1%} |")
    off = median(abs(row["off"]) for row in found["arms"].values())
    within = sum(abs(row["off"]) <= GOAL for row in found["arms"].values())
    print(f"\nmedian {off:.1%}; {within} of {len(found['arms'])} arms within {GOAL:.0%}; load {load:.1f} at the start")
    print(json.dumps({key: value for key, value in found.items() if key != "arms"}))


if __name__ == "__main__":
    main()
