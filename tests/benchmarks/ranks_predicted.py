"""Step times of two ranks, predicted and measured: runs of DDP and FSDP2 that no profile was fitted to.

Collectives are measured, the arms of the calibration scenarios are run, and those of ``tests/holdout/ranks.yaml``, in
rounds, so that what the machine changes in between falls on all. A profile is fitted to the first two, and forecasts
the third; no run of these is in the fit, and the profile's sources are checked for that.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

from harness.core.trace import Stage
from harness.report.document import Table
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
from tests.benchmarks.runner import counted, parser, publish

EXAMPLE = "python -m tests.benchmarks.ranks_predicted --results results/ranks --rounds 2"
HELD_OUT = "tests/holdout/ranks.yaml"
GOAL = 0.15


def measure(results: Path, rounds: int) -> None:
    """Make all runs."""
    names = (*SCENARIOS, HELD_OUT) * rounds
    for number, name in counted(enumerate(names), len(names), "scenarios run"):
        if number % (len(SCENARIOS) + 1) == 0:
            measured_collectives(results)
        run_scenario(load_scenario(name, ["blocks=1"]), results, quiet=True)


def compared(results: Path, draws: int) -> tuple[list[float], Table]:
    """Fit to what is no held-out run; return how far each held-out arm's forecast is off, and the table."""
    runs = [run for run in find_sources([results]) if run.status == "completed"]
    held_out = [run for run in runs if run.manifest.scenario == Path(HELD_OUT).stem]
    fitted = fit([run for run in runs if run not in held_out], "ranks", collectives=find_collectives([results])).profile
    assert not {run_label(run) for run in held_out} & set(fitted.sources), "a held-out run was fitted"
    by_arm: dict[str, list[Run]] = defaultdict(list)
    for run in held_out:
        by_arm[str(run.manifest.arm)].append(run)
    off, rows, stage = [], [], Stage.UPDATE.value
    for arm, repeats in by_arm.items():
        found = forecast(load_scenario(repeats[0].folder / SCENARIO), fitted, draws)
        measured = [metrics_of_run(run) for run in repeats]
        off.append(found.step_s.value / fmean(each.step_s for each in measured) - 1)
        predicted = f"{found.step_s.value:.3f} [{found.step_s.low:.3f}, {found.step_s.high:.3f}]"
        real, own = fmean(each.stages_s.get(stage, 0.0) for each in measured), found.stages_s[stage].value
        times = ", ".join(f"{each.step_s:.3f}" for each in measured)
        rows.append((arm, times, predicted, f"{off[-1]:+.1%}", f"{real:.3f}", f"{own:.3f}", f"{own / real - 1:+.1%}"))
    within = sum(abs(each) <= GOAL for each in off)
    note = f"Median {median(map(abs, off)):.1%}; {within} of {len(off)} arms within {GOAL:.0%}."
    header = ("held-out arm", "measured, s a step", "predicted [90%]", "off by", "update", "predicted", "off by")
    return off, Table("Held-out runs", header, tuple(rows), (note,))


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--results", type=Path, default=Path("results/ranks"))
    made.add_argument("--rounds", type=int, default=2, help="0: compare what was measured before (2)")
    made.add_argument("--draws", type=int, default=39)
    options = made.parse_args()
    measure(options.results, options.rounds)
    off, table = compared(options.results, options.draws)
    publish("Ranks predicted", [table], options, off=off)


if __name__ == "__main__":
    main()
