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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import TypeVar

import numpy as np

from harness.compare import numbers
from harness.compare.checkpoints import CheckpointCost
from harness.compare.experiment import SIMULATED
from harness.compare.stats.intervals import t_quantile
from harness.core.seeds import derive_seed
from harness.core.trace import Stage
from harness.report.document import Table
from harness.results import lane_kind
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
    each = tuple(measures for measures, _ in found)
    syncs = [measures.sync_s for measures in each if measures.sync_s is not None]
    return Forecast(
        machine=machine.name,
        origin=machine.origin,
        draws=draws,
        step_s=estimate([measures.step_s for measures in each]),
        stages_s=_estimates([measures.stages_s for measures in each]),
        throughput=estimate([measures.throughput for measures in each]),
        idle=_estimates([measures.idle for measures in each]),
        lags=dict(sorted(_estimates([measures.lags for measures in each]).items())),
        waste={name: estimate([measures.waste.get(name, 0.0) for measures in each]) for name in WASTE},
        sync_s=estimate(syncs) if syncs else None,
        extrapolating=farthest(sentence for _, said in found for sentence in said),
        each=each,
    )


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
    own, lengths = scenario, None
    if draw is not None and (paired or scenario.sampling.pinned_lengths is None):  # pinned ones are known from its seed
        seed = derive_seed(scenario.seed, "lengths", draw.seed, draw.number) % 2**32
        own = scenario.model_copy(update={"seed": seed})
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


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of the draws, and between which ends another one lies with 90%; see the top of this file.

    An end that falls between two order statistics is interpolated. One draw has no interval: both ends are its value.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no draws to estimate from")
    count = len(values)
    if count >= FEWEST_DRAWS:
        place = round((1 - COVERAGE) / 2 * (count + 1), 9)  # 0.05 x 20 is to be 1
        low, high = np.interp((place, count + 1 - place), range(1, count + 1), sorted(values)).tolist()
        return Estimate(median(values), low, high)
    if min(values) == max(values):
        return Estimate(values[0], values[0], values[0])
    mean = fmean(values)
    reach = t_quantile((1 + COVERAGE) / 2, count - 1) * stdev(values) * math.sqrt(1 + 1 / count)
    return Estimate(median(values), max(0.0, mean - reach), mean + reach)  # no figure here is below 0


def _estimates(each: Sequence[Mapping[K, float]]) -> dict[K, Estimate]:
    keys = dict.fromkeys(key for figures in each for key in figures)
    return {key: estimate([figures.get(key, 0.0) for figures in each]) for key in keys}


def closed_form(scenario: Scenario, machine: MachineProfile, allow: Collection[str] = ()) -> float:
    """Return the seconds of a step by plain addition: what a simulation has to beat.

    The stage costs of the central prediction, without contention, added up, of several Generators those of the busiest;
    with a lag those of the busiest lane.

    Raises:
        UserError: the profile does not know a stage that the scenario needs.
    """
    run = simulate_run(scenario, machine.model_copy(update={"contention": None}), allow=allow)
    every = run.rows
    rows = [row for row in every if not row.warmup] or every
    lanes = sorted({lane for row in rows for lane in row.lanes})
    busiest: dict[str, float] = {}
    for lane in lanes:
        seconds = fmean(sum(costs_of(row.lanes.get(lane, {})).values()) for row in rows)
        busiest[lane_kind(lane)] = max(seconds, busiest.get(lane_kind(lane), 0.0))
    return max(busiest.values()) if scenario.max_lag else sum(busiest.values())


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
    "No run of this machine is behind these seconds (--from RUN, or --pilot N): half an hour after calibration such "
    "forecasts were off by 5.4% in the median, ratios between arms by 6.9% (27 November 2026, 45 runs, quiet cores)."
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


def ratio(figures: Forecast, to: Forecast) -> Estimate:
    """Return a run's seconds of a step over another's, draw by draw: what the machine does to both alike cancels."""
    return estimate([one.step_s / other.step_s for one, other in zip(figures.each, to.each, strict=True)])


def forecast_table(items: Sequence[Forecasted], machine: MachineProfile) -> Table:
    """Return one column for each run: values with the ends of their 90% intervals.

    Of a machine whose speed is not known today, ratios come first, and seconds are ranges.
    """

    def row(name: str, figures: Iterable[Estimate | None], form: numbers.Format = numbers.number) -> tuple[str, ...]:
        return (name, *(written(figure, form) for figure in figures))

    def timed(name: str, figures: Iterable[Estimate | None]) -> tuple[str, ...]:
        return row(name, figures) if machine.speed_is_known else (name, *map(_range, figures))

    every, percent = [item.forecast for item in items], numbers.percent
    takes_time = {name for each in every for name, figure in each.stages_s.items() if figure.high > 0}
    stages = [stage.value for stage in Stage if not stage.is_wait and stage is not Stage.EVALUATE]
    lags = sorted({lag for each in every for lag in each.lags})
    lost = [name for name in WASTE_WORDS if any(each.waste[name].high > 0 for each in every)]
    ratios = [None, *(ratio(each, every[0]) if every[0].step_s.value else None for each in every[1:])]
    rows = [
        timed("seconds of a training step", (each.step_s for each in every)),
        row(f"  times that of {items[0].label}", ratios),
        ("  by plain addition", *(numbers.number(item.closed_form_s) for item in items)),
        timed("response tokens a second", (each.throughput for each in every)),
        *(timed(f"  {it}, s a step", (each.stages_s.get(it) for each in every)) for it in stages if it in takes_time),
        *(row(f"idle share, {NAMES[kind]}", (each.idle.get(kind) for each in every), percent) for kind in KINDS),
        timed("seconds of one weight sync", (each.sync_s for each in every)),
        *(
            row(f"rollouts trained on at lag {lag}", (each.lags.get(lag) for each in every), percent)
            for lag in (lags if lags != [0] else ())
        ),
        *(row(WASTE_WORDS[name], (each.waste[name] for each in every), percent) for name in lost),
    ]
    if not machine.speed_is_known:
        rows[:2] = reversed(rows[:2])
    shown = tuple(each for each in rows if any(cell != numbers.NOTHING for cell in each[1:]))
    origin = "" if machine.origin == "measured" else ", not measured"
    title = f"Forecast for the machine profile {machine.name}{origin}{SIMULATED}"
    header = ("figure", *(item.label for item in items))
    return Table(title, header, shown, _notes(items, machine))


def _range(figure: Estimate | None) -> str:
    if figure is None:
        return numbers.NOTHING
    low, high = numbers.number(figure.low), numbers.number(figure.high)
    return low if low == high else f"{low} to {high}"


def _notes(items: Sequence[Forecasted], machine: MachineProfile) -> tuple[str, ...]:
    draws = max(item.forecast.draws for item in items)
    said = [f"Median over {draws} simulated runs [90% interval]; rewards are not simulated."]
    if not machine.speed_is_known:
        said = [
            f"90% of {draws} simulated runs, with the change of the machine's speed from one occasion to the next; "
            "ratios [90% interval] do not have that in them. Rewards are not simulated."
        ]
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
        f"EXTRAPOLATING{f' in {numbers.listed(labels)}' if several else ''}: {numbers.extrapolation(sentence)}"
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
    step_s, stages_s = item.forecast.step_s.value, item.forecast.stages_s
    if not step_s:
        return f"{item.label}: nothing takes any time."
    largest, shares = dict[str, tuple[float, str]](), dict[str, float]()
    for kind in KINDS:  # of one lane of each
        count = getattr(getattr(item.scenario.placement, kind), "count", 1)
        own = [(stages_s[stage.value].value / count, stage.value) for stage in LANE_STAGES[kind] if stage in stages_s]
        largest[kind] = max(own, key=lambda each: each[0], default=(0.0, "nothing"))
        shares[kind] = sum(seconds for seconds, _ in own) / step_s
    busiest = max(shares, key=lambda kind: shares[kind])
    is_in_turns = item.scenario.is_synchronous or shares[busiest] < NEARLY_BUSY
    kind = max(largest, key=lambda kind: largest[kind][0]) if is_in_turns else busiest
    seconds, stage = largest[kind]
    took = f"{numbers.number(seconds)} of the {numbers.number(step_s)} s of a step"
    if is_in_turns:
        why = "at lag 0 the parts take turns" if item.scenario.is_synchronous else "the parts wait for each other"
        share = numbers.percent(seconds / step_s)
        return f"{item.label}: {why}, and {stage} of the {NAMES[kind]} is the largest turn: {took} ({share})."
    other = "generator" if kind == "learner" else "learner"
    return (
        f"{item.label}: the {NAMES[kind]} sets the pace: it is at work for {numbers.percent(min(1.0, shares[kind]))} "
        f"of a step, mostly with {stage} ({took}); the {NAMES[other]} is at work for "
        f"{numbers.percent(min(1.0, shares[other]))}."
    )


def written(figure: Estimate | None, form: numbers.Format) -> str:
    """Write a figure: ``0.512 [0.480, 0.550]``; without brackets where there is nothing between them."""
    if figure is None:
        return numbers.NOTHING
    value, low, high = form(figure.value), form(figure.low), form(figure.high)
    return value if low == high == value else f"{value} [{low}, {high}]"
