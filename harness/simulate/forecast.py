"""What a machine profile says of a run that nobody has made: central values with 90% intervals.

A scenario is simulated several times, each time in another world that the profile leaves possible: other coefficients
within their uncertainty, another run effect, other noise, other lengths. The value is the median over these draws. The
interval runs between order statistics: of n draws and one true run, all alike, each place in their order is equally
likely for the true one, so that it lies between the k-th and the (n + 1 - k)-th draw with probability
(n + 1 - 2k) / (n + 1), whatever the distribution (Wilks 1941, Annals of Mathematical Statistics 12). With k = 0.05 (n +
1), that is 90%: 19 draws are the fewest, and then the interval is their range. Of fewer draws Student's t makes one,
mean +- t_(n-1) s sqrt(1 + 1/n), which is exact for normal draws alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import TypeVar

from harness.compare import numbers
from harness.compare.checkpoints import CheckpointCost
from harness.compare.experiment import SIMULATED
from harness.compare.stats.intervals import t_quantile
from harness.core.seeds import derive_seed
from harness.core.trace import Stage
from harness.report.document import Table
from harness.scenario.schema import Scenario
from harness.settings.checkpoint import CheckpointSettings
from harness.simulate.cost_model import CostModel, Draw, model_name
from harness.simulate.features import Workload
from harness.simulate.lengths import PairedLengths, length_source
from harness.simulate.machine import MachineProfile, Origin
from harness.simulate.metrics import WASTE, RunMetrics, costs_of, metrics_of
from harness.simulate.parts import ProfileCosts
from harness.simulate.simulated_run import simulate_run
from harness.simulate.timeline import CallPlan

K = TypeVar("K")

COVERAGE = 0.9
FEWEST_DRAWS = 19
"""From here on there are order statistics that cover ``COVERAGE``."""
DRAWS = 39
"""The interval then leaves out the lowest and the highest draw. From seed to seed each end moves by about a tenth of
its width: sqrt(0.05 x 0.95 / 39) / 0.103 = 0.34 standard deviations of 3.29, for normal draws."""


_OUTSIDE = re.compile(r": (?P<units>[\d.]+(?:e[+-]\d+)?) units of .* are (?P<side>more|fewer) than")
"""How ``harness.simulate.cost_model`` says which units left the range."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted figure: its median over the draws, and between which ends it lies with 90%."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """What is predicted of a scenario on a machine; what each figure means is told in ``RunMetrics``.

    Attributes:
        machine: name of the profile.
        origin: whether the profile was measured.
        draws: how many worlds were simulated.
        extrapolating: sentences that say which input left which range of the profile; empty inside.
        each: the measures of each draw, in order.
    """

    machine: str
    origin: Origin
    draws: int
    step_s: Estimate
    stages_s: Mapping[str, Estimate]
    throughput: Estimate
    idle: Mapping[str, Estimate]
    lags: Mapping[int, Estimate]
    waste: Mapping[str, Estimate]
    sync_s: Estimate | None
    extrapolating: tuple[str, ...] = ()
    each: tuple[RunMetrics, ...] = field(default=(), repr=False)


def forecast(
    scenario: Scenario,
    machine: MachineProfile,
    draws: int = DRAWS,
    seed: int = 0,
    *,
    allow: Collection[str] = (),
    paired: bool = False,
) -> Forecast:
    """Predict a run.

    Args:
        scenario: one run: no arms, no sweep.
        machine: the profile.
        draws: how many possible worlds; from ``FEWEST_DRAWS`` on the intervals assume no distribution.
        seed: of the draws. Equal seeds give equal draws to different scenarios, so that they compare pairwise.
        allow: circumstances in which the profile may differ from the scenario; see ``world.build_run``.
        paired: for the points of a sweep: give scenarios with more and fewer Generators the same lengths (see
            ``harness.simulate.lengths``), and leave out steps in which an evaluation ended, since a point is shorter
            than the run that it stands for and an evaluation would weigh more in it.

    Raises:
        UserError: the profile does not know a stage that the scenario needs.
        ValueError: there is less than one draw.
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}, must be at least 1")
    found = [predicted(scenario, machine, Draw(number, seed), allow, paired) for number in range(1, draws + 1)]
    extrapolating = farthest(sentence for _, said in found for sentence in said)
    return summed_up(machine, [measures for measures, _ in found], extrapolating)


def predicted(
    scenario: Scenario,
    machine: MachineProfile,
    draw: Draw | None,
    allow: Collection[str] = (),
    paired: bool = False,
) -> tuple[RunMetrics, tuple[str, ...]]:
    """Simulate one world; return its measures and what was extrapolated. See ``forecast`` for the arguments.

    Raises:
        UserError: the profile does not know a stage that the scenario needs.
    """
    own = scenario if draw is None else _with_own_lengths(scenario, draw, paired)
    lengths = None
    if paired:
        lengths = PairedLengths(length_source(own, machine, model_name(own), allow=allow), own)
    run = simulate_run(own, machine, draw=draw, allow=allow, lengths=lengths)
    replay = next((facts.replay[0] for facts in reversed(run.steps) if facts.replay is not None), None)
    evicted = 0 if replay is None else replay.evicted_unused * scenario.group_size
    return metrics_of(run.table(without_evaluations=paired), run.spans, run.ledger, evicted), run.extrapolating


def farthest(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return each extrapolation once, that of the draw which left the range by most."""
    kept: dict[str, tuple[float, str]] = {}
    for sentence in sentences:
        found = _OUTSIDE.search(sentence)
        how_far = 0.0 if found is None else float(found["units"]) * (1 if found["side"] == "more" else -1)
        key = sentence if found is None else sentence[: found.start()] + sentence[found.end("units") :]
        if key not in kept or how_far > kept[key][0]:
            kept[key] = how_far, sentence
    return tuple(sentence for _, sentence in kept.values())


def _with_own_lengths(scenario: Scenario, draw: Draw, paired: bool) -> Scenario:
    """Give each draw other lengths, by its seed; those that the scenario pins are known from its own and stay."""
    if scenario.sampling.pinned_lengths is not None and not paired:
        return scenario
    seed = derive_seed(scenario.seed, "lengths", draw.seed, draw.number) % 2**32
    return scenario.model_copy(update={"seed": seed})


def summed_up(machine: MachineProfile, each: Sequence[RunMetrics], extrapolating: tuple[str, ...]) -> Forecast:
    """Make a forecast of the measures of several draws."""
    syncs = [measures.sync_s for measures in each if measures.sync_s is not None]
    return Forecast(
        machine=machine.name,
        origin=machine.origin,
        draws=len(each),
        step_s=estimate([measures.step_s for measures in each]),
        stages_s=_estimates([measures.stages_s for measures in each]),
        throughput=estimate([measures.throughput for measures in each]),
        idle=_estimates([measures.idle for measures in each]),
        lags=dict(sorted(_estimates([measures.lags for measures in each]).items())),
        waste={name: estimate([measures.waste.get(name, 0.0) for measures in each]) for name in WASTE},
        sync_s=estimate(syncs) if syncs else None,
        extrapolating=extrapolating,
        each=tuple(each),
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of the draws, and between which ends another one lies with 90%; see the top of this file.

    An end that falls between two order statistics is interpolated. One draw has no interval: both ends are its value.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no draws to estimate from")
    ordered = sorted(values)
    if len(ordered) < FEWEST_DRAWS:
        return _of_few(ordered)
    place = (1 - COVERAGE) / 2 * (len(ordered) + 1)
    low, high = _at(ordered, place), _at(ordered, len(ordered) + 1 - place)
    return Estimate(median(ordered), low, high)


def _of_few(values: Sequence[float]) -> Estimate:
    """Return Student's interval for one more draw; no figure here is below 0."""
    if min(values) == max(values):
        return Estimate(values[0], values[0], values[0])
    count, mean = len(values), fmean(values)
    reach = t_quantile((1 + COVERAGE) / 2, count - 1) * stdev(values) * math.sqrt(1 + 1 / count)
    return Estimate(median(values), max(0.0, mean - reach), mean + reach)


def _at(ordered: Sequence[float], place: float) -> float:
    """Return the order statistic at a place, the lowest one being 1."""
    place = min(max(round(place, 9), 1.0), float(len(ordered)))  # 0.05 x 20 is to be 1
    below = int(place)
    above = min(below + 1, len(ordered))
    return ordered[below - 1] + (place - below) * (ordered[above - 1] - ordered[below - 1])


def _estimates(each: Sequence[Mapping[K, float]]) -> dict[K, Estimate]:
    keys = dict.fromkeys(key for figures in each for key in figures)
    return {key: estimate([figures.get(key, 0.0) for figures in each]) for key in keys}


def closed_form(scenario: Scenario, machine: MachineProfile, allow: Collection[str] = ()) -> float:
    """Return the seconds of a step by plain addition: what a simulation has to beat.

    The stage costs of the central prediction, without contention, added up; with a lag those of the busiest lane.

    Raises:
        UserError: the profile does not know a stage that the scenario needs.
    """
    run = simulate_run(scenario, machine.model_copy(update={"contention": None}), allow=allow)
    every = run.rows(with_last_evaluation=False)
    rows = [row for row in every if not row.warmup] or every
    lanes = sorted({lane for row in rows for lane in row.lanes})
    busy = [fmean(sum(costs_of(row.lanes.get(lane, {})).values()) for row in rows) for lane in lanes]
    return max(busy) if scenario.max_lag else sum(busy)


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
        Stage.SAVE_POLICY,
    ),
}
"""Whose lane a stage is on."""
HOW_FAR_OFF = (
    "Seconds forecast without an anchor in today's runs were off by 20 to 45% when this was examined (22 November "
    "2026, a quiet 2-core machine); ratios between arms carry over better: 2 to 12%."
)
"""Figures of ``docs/simulator.md``, under *How far off it is*."""
NOT_MEASURED = "NOT MEASURED: {} is made from data sheets, and no run was ever compared with it."
NEARLY_BUSY = 0.85
"""Share of a step from which on a lane that is at work is said to set the pace."""
WASTE_WORDS = {
    "failed": "rollouts whose reward failed",
    "discarded": "rollouts discarded, all rewards equal",
    "dropped": "rollouts dropped as too old",
    "unused": "rollouts never trained on",
    "evicted_unused": "  of these, evicted from replay",
}


@dataclass(frozen=True)
class Forecasted:
    """A scenario's run, by its label, with what is predicted of it, and by ``closed_form`` beside it."""

    label: str
    scenario: Scenario
    forecast: Forecast
    closed_form_s: float


def forecast_table(items: Sequence[Forecasted], machine: MachineProfile) -> Table:
    """Return one column for each run: values with the ends of their 90% intervals."""
    rows = [
        _row("seconds of a training step", items, lambda found: found.step_s, numbers.number),
        ("  by plain addition", *(numbers.number(item.closed_form_s) for item in items)),
        _row("response tokens a second", items, lambda found: found.throughput, numbers.number),
        *_stage_rows(items),
        *(_row(f"idle share, {NAMES[kind]}", items, _getter("idle", kind), numbers.percent) for kind in KINDS),
        _row("seconds of one weight sync", items, lambda found: found.sync_s, numbers.number),
        *_lag_rows(items),
        *_waste_rows(items),
    ]
    shown = tuple(row for row in rows if any(cell != numbers.NOTHING for cell in row[1:]))
    origin = "" if machine.origin == "measured" else ", not measured"
    title = f"Forecast for the machine profile {machine.name}{origin}{SIMULATED}"
    header = ("figure", *(item.label for item in items))
    return Table(title, header, shown, _notes(items, machine))


def _notes(items: Sequence[Forecasted], machine: MachineProfile) -> tuple[str, ...]:
    draws = max(item.forecast.draws for item in items)
    said = [f"Median over {draws} simulated runs [90% interval]; rewards are not simulated."]
    if draws < FEWEST_DRAWS:
        said[0] += f" With fewer than {FEWEST_DRAWS} draws the interval is Student's, which assumes normal errors."
    if draws == 1:
        said = ["One simulated run, and no interval. Rewards are not simulated."]
    said.append("By plain addition: the stage costs without contention; with a lag, those of the busiest lane.")
    if machine.origin == "datasheet":
        said.append(NOT_MEASURED.format(machine.name))
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


def checkpoint_cost(scenario: Scenario, machine: MachineProfile, allow: Collection[str] = ()) -> CheckpointCost | None:
    """Return what checkpoints would cost a run; None where it makes none, or its steps take no time.

    Two central runs, with and without them, say by how much one makes training longer.
    """
    settings = scenario.checkpoint
    if settings.every is None:
        return None
    model = CostModel(scenario, machine, model=model_name(scenario), allow=allow)
    costs = ProfileCosts("learner", model, Workload(scenario), {})
    without = scenario.model_copy(update={"checkpoint": CheckpointSettings()})
    plain_s, loop_s = (simulate_run(each, machine, allow=allow).seconds for each in (without, scenario))
    if not plain_s:
        return None
    return CheckpointCost(
        every=settings.every,
        step_s=plain_s / scenario.steps,
        blocked_s=_seconds(costs.checkpoint(0)),
        exposed_s=max(0.0, loop_s - plain_s) / max(1, scenario.steps // settings.every),
        pending_s=_seconds(costs.write_checkpoint(0)) if settings.asynchronous else 0.0,
    )


def _seconds(plan: CallPlan) -> float:
    return plan.request_s + sum(each.seconds for each in plan.stages) + plan.response_s


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
