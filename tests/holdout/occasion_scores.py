"""How far forecasts of one occasion's calibration were off the runs that were made later, run by run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results import Run, find_runs
from harness.scenario.axes import expand
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario
from harness.simulate.anchor import anchored
from harness.simulate.calibrate.exchange import find_collectives
from harness.simulate.calibrate.fit import fit
from harness.simulate.calibrate.observations import find_sources
from harness.simulate.forecast import DRAWS, closed_form, forecast
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import metrics_of_run

ALONE, ANCHORED, PILOT = "the profile alone", "from a run of another arm", "from a pilot of the arm"
CLOSED, CLOSED_ANCHORED = "closed form, the profile alone", "closed form, from a run of another arm"
WAYS = (ALONE, ANCHORED, PILOT, CLOSED, CLOSED_ANCHORED)
"""Ways to predict; a closed form has no interval."""


@dataclass(frozen=True)
class Row:
    """One run that was held out, and one forecast of it.

    Attributes:
        measured_s: seconds of a training step, warm-up left out.
        value, low, high: of the forecast, with its 90% interval; both ends are the value where it has none.
    """

    occasion: int
    arm: str
    block: int
    way: str
    measured_s: float
    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.value / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the run."""
        return self.low <= self.measured_s <= self.high

    @property
    def half_width(self) -> float:
        """Half of the interval, as a share of the value."""
        return (self.high - self.low) / 2 / self.value


@dataclass(frozen=True)
class Summary:
    """One way to predict, over all occasions.

    Attributes:
        error: median of the absolute errors over the runs.
        bias: median of the errors.
        inside: share of the runs in their interval; NaN for a closed form, as ``half_width``, the median.
        ratio_error: median absolute error of the ratios between two arms, means over an occasion's blocks.
        worst: the largest absolute error.
    """

    way: str
    runs: int
    error: float
    bias: float
    worst: float
    inside: float
    half_width: float
    ratio_error: float


def judge(folder: Path, scenario: Path, draws: int = DRAWS) -> list[Row]:
    """Predict the runs of one occasion in every way; return each run with each forecast.

    Args:
        folder: of the occasion, as ``tests.holdout.occasions record`` leaves it.
        scenario: the arms.
        draws: of each forecast.

    Raises:
        UserError: a part of the occasion is missing or damaged.
    """
    calibration = [folder / "calibration"]
    collectives = find_collectives(calibration)
    machine = fit(find_sources(calibration), f"occasion-{folder.name}", collectives=collectives).profile
    (anchor,) = _runs(folder / "anchor")
    at_anchor = anchored(machine, anchor).profile
    pilots = {run.manifest.arm: run for run in _runs(folder / "pilot")}
    held, rows = _runs(folder / "held"), list[Row]()
    arms, there = _arms(scenario), pilots.keys() & {run.manifest.arm for run in held}
    if missing := [arm for arm in arms if arm not in there]:
        raise UserError(f"no run of {', '.join(missing)} was completed", str(folder), "record these arms again")
    for arm, settings in arms.items():
        machines = {
            ALONE: machine,
            ANCHORED: at_anchor,
            PILOT: anchored(machine, pilots[arm]).profile,
        }
        predicted = dict(_predicted(settings, machines, draws))
        for run in (run for run in held if run.manifest.arm == arm):
            measured = metrics_of_run(run).step_s
            for way, (value, low, high) in predicted.items():
                rows.append(Row(int(folder.name), arm, run.manifest.block or 0, way, measured, value, low, high))
    return rows


def _predicted(
    scenario: Scenario, machines: Mapping[str, MachineProfile], draws: int
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    for way, machine in machines.items():
        step = forecast(scenario, machine, draws).step_s
        yield way, (step.value, step.low, step.high)
    for way, of in ((CLOSED, ALONE), (CLOSED_ANCHORED, ANCHORED)):
        value = closed_form(scenario, machines[of])
        yield way, (value, value, value)


def _runs(folder: Path) -> list[Run]:
    """Return the runs that were completed; one that failed may have been made again beside it."""
    runs, damaged = find_runs(folder)
    if damaged:
        raise damaged[0].error
    return [run for run in runs if run.status == "completed"]


def _arms(scenario: Path) -> dict[str, Scenario]:
    """Return one run of each arm: blocks differ in their seeds alone."""
    return {str(each.arm): each.scenario for each in expand(load_scenario(scenario)) if not each.block}


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Return one line for each way to predict."""
    return [_summary(way, [row for row in rows if row.way == way]) for way in WAYS]


def _summary(way: str, rows: Sequence[Row]) -> Summary:
    has_interval = any(row.high > row.low for row in rows)
    return Summary(
        way=way,
        runs=len(rows),
        error=median(abs(row.error) for row in rows),
        bias=median(row.error for row in rows),
        worst=max(abs(row.error) for row in rows),
        inside=fmean(row.is_inside for row in rows) if has_interval else float("nan"),
        half_width=median(row.half_width for row in rows) if has_interval else float("nan"),
        ratio_error=median(abs(ratio - 1) for ratio in ratios(rows)),
    )


def ratios(rows: Iterable[Row]) -> list[float]:
    """Return for each pair of arms of an occasion the predicted ratio of their step times over the measured one."""
    by_occasion: dict[int, dict[str, list[Row]]] = {}
    for row in rows:
        by_occasion.setdefault(row.occasion, {}).setdefault(row.arm, []).append(row)
    found = []
    for arms in by_occasion.values():
        offs = {arm: each[0].value / fmean(row.measured_s for row in each) for arm, each in arms.items()}
        found += [offs[first] / offs[second] for first, second in combinations(sorted(offs), 2)]
    return found


def ratio_drift(rows: Iterable[Row]) -> float:
    """Return the median change of a measured ratio of two arms between two occasions: what no calibration can know."""
    by_arm: dict[str, dict[int, set[tuple[int, float]]]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, {}).setdefault(row.occasion, set()).add((row.block, row.measured_s))
    means = {arm: {at: fmean(s for _, s in runs) for at, runs in each.items()} for arm, each in by_arm.items()}
    changes = [
        abs(means[one][first] / means[two][first] / (means[one][second] / means[two][second]) - 1)
        for one, two in combinations(sorted(means), 2)
        for first, second in combinations(sorted(means[one].keys() & means[two].keys()), 2)
    ]
    return median(changes) if changes else float("nan")


def as_markdown(rows: Sequence[Row], command: str) -> str:
    """Return the page: one line for each way, then every run."""

    def percent(value: float, sign: str = "") -> str:
        return "" if value != value else f"{100 * value:{sign}.1f}%"

    occasions = sorted({row.occasion for row in rows})
    lines = [
        "# Forecasts over occasions",
        "",
        f"`{command}` wrote this page from {len({(r.occasion, r.arm, r.block) for r in rows})} runs of "
        f"{len(occasions)} occasions. An occasion is a calibration, a pause of 30 minutes or more, a run of "
        "another arm (`tests/holdout/occasion_anchor.yaml`), a pilot of five steps of each arm, and the runs that are "
        "predicted (`tests/holdout/occasions.yaml`), each command in a process of its own. Profiles are fitted to the "
        "runs of the calibration by the code of this page.",
        "",
        "Error: predicted over measured seconds of a training step, minus 1. Ratios: how far off those of two arms.",
        "",
        "| forecast | runs | median error | median, with sign | largest | in the 90% interval | half-width | ratios |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each.way} | {each.runs} | {percent(each.error)} | {percent(each.bias, '+')} | {percent(each.worst)} | "
        f"{percent(each.inside)} | {percent(each.half_width)} | {percent(each.ratio_error)} |"
        for each in summaries(rows)
    ]
    if (drift := ratio_drift(rows)) == drift:
        lines += ["", f"Measured ratios of two arms changed by {percent(drift)} (median) from occasion to occasion."]
    lines += ["", "## Every run", "", f"| occasion | arm | block | measured, s | {' | '.join(WAYS)} |"]
    lines += ["|---:|---|---:|---:|" + "---:|" * len(WAYS)]
    runs = dict.fromkeys((row.occasion, row.arm, row.block, row.measured_s) for row in rows)
    by_run = {(row.occasion, row.arm, row.block, row.way): row for row in rows}
    for occasion, arm, block, measured in runs:
        cells = [_cell(by_run[occasion, arm, block, way]) for way in WAYS]
        lines.append(f"| {occasion} | {arm} | {block} | {measured:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    ends = f" [{row.low:.3f}, {row.high:.3f}]{'' if row.is_inside else ' *'}" if row.high > row.low else ""
    return f"{row.value:.3f}{ends} {100 * row.error:+.0f}%"


def save_rows(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as JSON lines."""
    with whole_file(path) as stream:
        stream.write("".join(json.dumps(asdict(row)) + "\n" for row in rows).encode())


def load_rows(path: Path) -> list[Row]:
    """Read the rows of earlier occasions; none where there is no file."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
