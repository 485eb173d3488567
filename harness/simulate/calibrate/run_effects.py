"""Whether a run that is slow in one stage is slow in the others too: machines differ from run to run as a whole."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from harness.simulate.calibrate.observations import Observation
from harness.simulate.machine import StageCost

FEWEST_RUNS = 5
ASSUMED = 0.5
"""Correlation taken where there are fewer runs."""
MOST = 0.95
LONG_S = 0.005
"""Predicted seconds from which on a span tells of its run's speed: shorter ones are noise for the most part."""


def cost_of(item: Observation, stages: Sequence[StageCost]) -> StageCost | None:
    """Return the cost of an observation, as ``MachineProfile.cost_of`` finds it."""
    fitting = [cost for cost in stages if cost.stage == item.stage and cost.holds_under(item.where)]
    return max(fitting, key=lambda cost: len(cost.where), default=None)


def run_speeds(observations: Sequence[Observation], stages: Sequence[StageCost]) -> dict[str, float]:
    """Return by run how much longer its longer spans took than predicted, as a factor; those alone at work count."""
    measured: dict[str, float] = defaultdict(float)
    predicted: dict[str, float] = defaultdict(float)
    for item, seconds in _alone(observations, stages):
        if seconds >= LONG_S:
            measured[item.run] += item.seconds
            predicted[item.run] += seconds
    return {run: measured[run] / predicted[run] for run in measured}


def run_correlation(observations: Sequence[Observation], stages: Sequence[StageCost]) -> float:
    """Return the correlation of the run effects of two stages, as a mean over pairs weighted by their seconds.

    A run's effect on a stage is the logarithm of its measured over its predicted seconds, against the mean of the runs
    of its arm: by what the fit misses an arm is no matter of the machine, and differs from stage to stage.
    """
    effects = _within_arms(_effects(observations, stages), {item.run: item.arm for item in observations})
    total, weight = 0.0, 0.0
    for first, second in combinations(sorted(effects), 2):
        runs = sorted(effects[first].keys() & effects[second].keys())
        if len(runs) < FEWEST_RUNS:
            continue
        pairs = np.array([[effects[stage][run][0] for run in runs] for stage in (first, second)])
        if pairs.std(axis=1).min() > 0:
            share = math.prod(sum(effects[stage][run][1] for run in runs) for stage in (first, second))
            total += share * float(np.corrcoef(pairs)[0, 1])
            weight += share
    return min(MOST, max(0.0, total / weight)) if weight > 0 else ASSUMED


def _effects(
    observations: Sequence[Observation], stages: Sequence[StageCost]
) -> Mapping[str, dict[str, tuple[float, float]]]:
    """Return by stage and run (effect, measured seconds)."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for item, seconds in _alone(observations, stages):
        both = sums[item.stage, item.run]
        both[0] += item.seconds
        both[1] += seconds
    effects: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for (stage, run), (measured, predicted) in sums.items():
        effects[stage][run] = (math.log(measured / predicted), measured)
    return effects


def _within_arms(
    effects: Mapping[str, dict[str, tuple[float, float]]], arm_of: Mapping[str, str]
) -> Mapping[str, dict[str, tuple[float, float]]]:
    """Return the effects less their mean over the runs of the arm; arms that ran once are left out."""
    within: dict[str, dict[str, tuple[float, float]]] = {}
    for stage, of_runs in effects.items():
        arms: dict[str, list[str]] = defaultdict(list)
        for run in of_runs:
            arms[arm_of[run]].append(run)
        within[stage] = {
            run: (of_runs[run][0] - sum(of_runs[one][0] for one in runs) / len(runs), of_runs[run][1])
            for runs in arms.values()
            if len(runs) > 1
            for run in runs
        }
    return within


def _alone(observations: Sequence[Observation], stages: Sequence[StageCost]) -> Iterator[tuple[Observation, float]]:
    """Yield the spans in which nobody else worked, and their predicted seconds."""
    for item in observations:
        cost = cost_of(item, stages) if item.is_alone else None
        seconds = cost.seconds_of(item.units, item.model) if cost else 0.0
        if seconds > 0:
            yield item, seconds
