"""Costs of single stages, fitted to the spans in which nobody else worked."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.simulate.calibrate.least_squares import FIT_SHAPES, Array, Fit, FitShape, active_costs, fit_costs
from harness.simulate.calibrate.observations import Observation
from harness.simulate.machine import Correction, StageCost, rounded

FEWEST_SPANS = 6
"""A stage with fewer spans gets no cost."""
UNSEEN_LOG_SD = 0.15
"""Spread assumed for a model that was not measured, where fewer than three were: leaving one out says little then."""
SLACK = 1.25
"""A cost holds by as much beyond the smallest and largest units that were fitted."""
LEAST_UNSEEN_LOG_SD = 0.08
"""The features were chosen to predict models that are left out, so what leaving them out shows is too little."""


def fit_stages(observations: Iterable[Observation]) -> list[StageCost]:
    """Fit every stage under every circumstance that has enough spans in which nobody else worked."""
    alone = [item for item in observations if item.is_alone]
    costs = []
    for model in FIT_SHAPES:
        only = dict(model.only).items()
        of_stage = [item for item in alone if item.stage in model.stages and only <= item.where.items()]
        keys = {tuple((key, item.where[key]) for key in model.where) for item in of_stage}
        for where in map(dict, sorted(keys)):
            spans = [item for item in of_stage if where.items() <= item.where.items()]
            for cost in _fit_scaled(spans, model, where):
                costs += [cost.model_copy(update={"stage": stage}) for stage in model.stages]
    return costs


def _fit_scaled(spans: Sequence[Observation], model: FitShape, where: dict[str, str]) -> list[StageCost]:
    """Fit the spans under the commonest value of ``scaled_by``, and scale that for the others; none for too few."""
    if model.scaled_by is None:
        return [fit_stage(spans, model, where)] if len(spans) >= FEWEST_SPANS else []
    key = model.scaled_by
    by_value = Counter(item.where[key] for item in spans)
    (common, count), *others = sorted(by_value.items(), key=lambda pair: (-pair[1], pair[0]))
    if count < FEWEST_SPANS:
        return []
    cost = fit_stage([item for item in spans if item.where[key] == common], model, where | {key: common})
    costs = [cost]
    for value, number in others:
        if number >= FEWEST_SPANS:
            costs.append(_scaled(cost, [item for item in spans if item.where[key] == value], where | {key: value}))
    return costs


def _scaled(cost: StageCost, spans: Sequence[Observation], where: Mapping[str, str]) -> StageCost:
    """Return a cost times what these spans are of it, as a mean over their runs."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for item in spans:
        ratios[item.run].append(item.seconds / cost.seconds_of(item.units, item.model))
    ranges = _ranges(cost.ranges, [item.units for item in spans])
    factor = float(np.mean([np.mean(each) for each in ratios.values()]))
    return times(cost, factor, where=dict(where), ranges=ranges, spans=len(spans))


def times(cost: StageCost, factor: float, **others: Any) -> StageCost:
    """Return a cost with its seconds times a factor, and with other fields."""
    seconds = {feature: rounded(factor * each) for feature, each in cost.seconds.items()}
    covariance = tuple(tuple(rounded(factor**2 * value) for value in row) for row in cost.covariance)
    return cost.model_copy(update={"seconds": seconds, "covariance": covariance, **others})


def fit_stage(spans: Sequence[Observation], model: FitShape, where: Mapping[str, str]) -> StageCost:
    """Fit one stage under given circumstances.

    Args:
        spans: of it.
        model: features.
        where: what the spans have in common, by the model's keys.
    """
    found = fit_spans(spans, model.features)
    corrections, unseen = _corrections(spans, model.features, found)
    return fitted_cost(
        (model.stages[0], where),
        model.features,
        (found.seconds, found.covariance),
        [item.units for item in spans],
        models=corrections,
        unseen_log_sd=rounded(unseen),
        step_log_sd=rounded(math.log1p(found.step_sd)),
        step_correlation=rounded(found.step_correlation),
        run_log_sd=rounded(math.log1p(found.run_sd)),
    )


def fitted_cost(
    of: tuple[str, Mapping[str, str]],
    features: Sequence[str],
    found: tuple[Array, Array],
    units: Sequence[Mapping[str, float]],
    **others: Any,
) -> StageCost:
    """Return a cost of a stage under circumstances.

    Args:
        of: these.
        found: seconds of a unit of each feature, (K,), and their covariance, (K, K).
        units: of each span that was fitted.
        others: more fields.
    """
    seconds, covariance = active_costs(features, *found)
    return StageCost(
        stage=of[0],
        where=dict(of[1]),
        seconds={feature: rounded(each) for feature, each in seconds.items()},
        covariance=tuple(tuple(map(rounded, row)) for row in covariance),
        ranges=_ranges(features, units),
        spans=len(units),
        **others,
    )


def fit_spans(spans: Sequence[Observation], features: Sequence[str]) -> Fit:
    """Fit the seconds of one unit of each feature to spans."""
    runs = {label: number for number, label in enumerate(dict.fromkeys(item.run for item in spans))}
    units = np.array([[item.units.get(feature, 0.0) for feature in features] for item in spans], dtype=np.float64)
    seconds = np.array([item.seconds for item in spans])
    return fit_costs(units, seconds, np.array([runs[item.run] for item in spans], dtype=np.int64))


def _corrections(
    spans: Sequence[Observation], features: Sequence[str], found: Fit
) -> tuple[dict[str, Correction], float]:
    """Return a factor for each model, drawn towards 1 by how little is known of it, and the spread for an unseen one.

    A model's mean relative error has the variance run^2 / runs + step^2 / spans. How much models really differ is the
    variance of these means beyond that (DerSimonian and Laird 1986, in its simplest form).
    """
    names = list(dict.fromkeys(item.model for item in spans))
    if len(names) < 2:
        return {name: Correction() for name in names if name}, UNSEEN_LOG_SD
    means, variances = [], []
    for name in names:
        errors = np.array([found.residuals[place] for place, item in enumerate(spans) if item.model == name])
        runs = len({item.run for item in spans if item.model == name})
        means.append(float(np.mean(np.clip(errors, -0.5, 1.0))))
        variances.append(found.run_sd**2 / runs + found.step_sd**2 / len(errors))
    between = max(0.0, float(np.mean([mean**2 - variance for mean, variance in zip(means, variances, strict=True)])))
    corrections = {}
    for name, mean, variance in zip(names, means, variances, strict=True):
        kept = between / (between + variance) if between > 0 else 0.0
        log_sd = math.sqrt(kept * variance)
        corrections[name] = Correction(factor=rounded(1 + kept * mean), log_sd=rounded(log_sd))
    return corrections, _unseen(spans, features, names)


def _unseen(spans: Sequence[Observation], features: Sequence[str], names: Sequence[str]) -> float:
    """Return by how much the fit misses a model that is left out of it, as a root mean square over the models."""
    if len(names) < 3:
        return UNSEEN_LOG_SD
    errors = []
    for name in names:
        others = [item for item in spans if item.model != name]
        seconds = dict(zip(features, fit_spans(others, features).seconds.tolist(), strict=True))
        ratios = []
        for item in spans:
            predicted = sum(each * item.units.get(feature, 0.0) for feature, each in seconds.items())
            if item.model == name and predicted > 0:
                ratios.append(item.seconds / predicted)
        errors.append(math.log(float(np.mean(ratios))) if ratios else UNSEEN_LOG_SD)
    return max(LEAST_UNSEEN_LOG_SD, math.sqrt(float(np.mean(np.square(errors)))))


def _ranges(features: Iterable[str], units: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return for which units a cost of spans of these holds."""
    counted = {feature: [each.get(feature, 0.0) for each in units] for feature in features}
    return {feature: (rounded(min(each) / SLACK), rounded(max(each) * SLACK)) for feature, each in counted.items()}
