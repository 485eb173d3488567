"""A forecast as a table, and the sentence that says what holds a run up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.compare import numbers
from harness.compare.experiments import SIMULATED
from harness.compare.tables import Table
from harness.core.trace import Stage
from harness.scenario import Scenario
from harness.simulate.forecast import FEWEST_DRAWS, Estimate, Forecast
from harness.simulate.machine import MachineProfile

KINDS = ("generator", "scorer", "learner")
NAMES = {"generator": "Generator", "scorer": "Scorer", "learner": "Learner"}
LANE_STAGES: dict[str, tuple[Stage, ...]] = {
    "generator": (Stage.GENERATE, Stage.WEIGHT_TRANSFER, Stage.WEIGHT_LOAD),
    "scorer": (Stage.SCORE,),
    "learner": (
        Stage.UPDATE,
        Stage.OLD_LOGPROBS,
        Stage.REFERENCE_LOGPROBS,
        Stage.PREPARE_BATCH,
        Stage.WEIGHT_PUBLISH,
        Stage.CHECKPOINT,
    ),
}
"""Whose lane a stage is on."""
HOW_FAR_OFF = (
    "Seconds forecast without an anchor in today's runs were off by 20 to 45% when this was examined (22 November "
    "2026, a quiet 2-core machine); ratios between arms carry over better: 2 to 12%."
)
"""Figures of ``docs/simulator.md``, under *How far off it is*."""
NEARLY_BUSY = 0.85
"""Share of a step from which on a lane that is at work is said to set the pace."""
WASTE_WORDS = {
    "failed": "rollouts whose reward failed",
    "dropped": "rollouts dropped as too old",
    "unused": "rollouts never trained on",
    "evicted_unused": "  of these, evicted from replay",
}


@dataclass(frozen=True)
class Forecasted:
    """A scenario's run, by its label, with what is predicted of it."""

    label: str
    scenario: Scenario
    forecast: Forecast


def forecast_table(items: Sequence[Forecasted], machine: MachineProfile) -> Table:
    """Return one column for each run: values with the ends of their 90% intervals."""
    rows = [
        _row("seconds of a training step", items, lambda found: found.step_s, numbers.number),
        _row("response tokens a second", items, lambda found: found.throughput, numbers.number),
        *_stage_rows(items),
        *_idle_rows(items),
        _row("seconds of one weight sync", items, lambda found: found.sync_s, numbers.number),
        *_lag_rows(items),
        *_waste_rows(items),
    ]
    shown = tuple(row for row in rows if any(cell != numbers.NOTHING for cell in row[1:]))
    origin = "" if machine.origin == "measured" else ", not measured"
    title = f"Forecast for the machine profile {machine.name}{origin}{SIMULATED}"
    header = ("figure", *(item.label for item in items))
    return Table(title, header, shown, _notes(items, machine), divisible=True)


def _notes(items: Sequence[Forecasted], machine: MachineProfile) -> tuple[str, ...]:
    draws = max(item.forecast.draws for item in items)
    said = [f"Median over {draws} simulated worlds [90% interval]; rewards are not simulated."]
    if draws < FEWEST_DRAWS:
        said[0] += f" With fewer than {FEWEST_DRAWS} worlds the interval is Student's, which assumes normal ones."
    if draws == 1:
        said = ["One simulated world, and no interval. Rewards are not simulated."]
    if machine.origin == "datasheet":
        said.append(f"NOT MEASURED: {machine.name} is made from data sheets, and no run was ever compared with it.")
    return tuple(said)


def warnings(items: Sequence[Forecasted]) -> list[str]:
    """Return what was extrapolated, one sentence for each input and the runs that it concerns."""
    found: dict[str, list[str]] = {}
    for item in items:
        for sentence in item.forecast.extrapolating:
            found.setdefault(sentence, []).append(item.label)
    several = len(items) > 1
    return [
        f"EXTRAPOLATING{f' in {numbers.listed(labels)}' if several else ''}: {sentence}"
        for sentence, labels in found.items()
    ]


def bottleneck(item: Forecasted) -> str:
    """Say what holds a run up, and what it spends its time on."""
    found, label = item.forecast, item.label
    if not found.step_s.value:
        return f"{label}: nothing takes any time."
    shares = {lane: sum(stages_of(item, lane).values()) / found.step_s.value for lane in KINDS}
    lane = max(shares, key=lambda kind: shares[kind])
    if item.scenario.is_synchronous or shares[lane] < NEARLY_BUSY:
        return _in_turns(item)
    stage, seconds = largest_stage(item, lane)
    other = "generator" if lane == "learner" else "learner"
    return (
        f"{label}: the {NAMES[lane]} sets the pace: it is at work for {numbers.percent(min(1.0, shares[lane]))} of a "
        f"step, mostly with {stage} ({numbers.number(seconds)} of {numbers.number(found.step_s.value)} s); the "
        f"{NAMES[other]} is at work for {numbers.percent(min(1.0, shares[other]))}."
    )


def _in_turns(item: Forecasted) -> str:
    """Name the largest stage of a run whose parts wait for each other."""
    found = item.forecast
    sizes = {lane: largest_stage(item, lane) for lane in KINDS}
    lane = max(sizes, key=lambda kind: sizes[kind][1])
    stage, seconds = sizes[lane]
    share = numbers.percent(seconds / found.step_s.value)
    why = "at lag 0 the parts take turns" if item.scenario.is_synchronous else "the parts wait for each other"
    return (
        f"{item.label}: {why}, and {stage} of the {NAMES[lane]} is the largest turn: {numbers.number(seconds)} of the "
        f"{numbers.number(found.step_s.value)} s of a step ({share})."
    )


def stages_of(item: Forecasted, lane: str) -> dict[str, float]:
    """Return the seconds of a step that one lane of a kind spends in each of its stages."""
    count, found = lanes_of(item.scenario, lane), item.forecast.stages_s
    return {stage.value: found[stage.value].value / count for stage in LANE_STAGES[lane] if stage.value in found}


def largest_stage(item: Forecasted, lane: str) -> tuple[str, float]:
    """Return the stage on which one lane of a kind spends most of a step, and its seconds."""
    seconds = stages_of(item, lane)
    stage = max(seconds, key=lambda name: seconds[name], default="nothing")
    return stage, seconds.get(stage, 0.0)


def lanes_of(scenario: Scenario, kind: str) -> int:
    """Return how many lanes of a kind a run has."""
    part = getattr(scenario.placement, kind)
    return int(getattr(part, "count", 1))


def _stage_rows(items: Sequence[Forecasted]) -> list[tuple[str, ...]]:
    seen = {name for item in items for name, figure in item.forecast.stages_s.items() if figure.high > 0}
    stages = [stage for stage in Stage if stage.value in seen and not stage.is_wait and stage is not Stage.EVALUATE]
    return [
        _row(f"  {stage.value}, s a step", items, _getter("stages_s", stage.value), numbers.number) for stage in stages
    ]


def _idle_rows(items: Sequence[Forecasted]) -> list[tuple[str, ...]]:
    return [_row(f"idle share, {NAMES[kind]}", items, _getter("idle", kind), numbers.percent) for kind in KINDS]


def _lag_rows(items: Sequence[Forecasted]) -> list[tuple[str, ...]]:
    lags = sorted({lag for item in items for lag in item.forecast.lags})
    if lags in ([], [0]):
        return []
    return [_row(f"rollouts trained on at lag {lag}", items, _getter("lags", lag), numbers.percent) for lag in lags]


def _waste_rows(items: Sequence[Forecasted]) -> list[tuple[str, ...]]:
    lost = [name for name in WASTE_WORDS if any(item.forecast.waste[name].high > 0 for item in items)]
    return [_row(WASTE_WORDS[name], items, _getter("waste", name), numbers.percent) for name in lost]


def _getter(field: str, key: str | int) -> Callable[[Forecast], Estimate | None]:
    def get(found: Forecast) -> Estimate | None:
        figures: Mapping[str | int, Estimate] = getattr(found, field)
        return figures.get(key)

    return get


def _row(
    name: str, items: Sequence[Forecasted], get: Callable[[Forecast], Estimate | None], form: numbers.Format
) -> tuple[str, ...]:
    return (name, *(written(get(item.forecast), form) for item in items))


def written(figure: Estimate | None, form: numbers.Format) -> str:
    """Write a figure: ``0.512 [0.480, 0.550]``; without brackets where there is nothing between them."""
    if figure is None:
        return numbers.NOTHING
    value, low, high = form(figure.value), form(figure.low), form(figure.high)
    return value if low == high == value else f"{value} [{low}, {high}]"
