"""What goes beyond the cost of one stage alone: runs that are slow as a whole, contention, and other transports.

The costs of transports that no training run has are from isolated weight syncs of a transport sweep. A sync in a sweep
need not cost what one in a training run does. Transports that both have say how the two relate, and that is carried
over where it is about the same work: copying the weights into memory. How long they travel is taken as it was measured
in isolation, since the transports that both have do not travel alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from harness.simulate.calibrate.least_squares import SYNC_FEATURES, active_costs
from harness.simulate.calibrate.observations import Observation
from harness.simulate.calibrate.stages import fit_spans, times
from harness.simulate.machine import Contention, StageCost, rounded

FEWEST_RUNS = 5
ASSUMED_CORRELATION = 0.5
"""Correlation taken where there are fewer runs."""
MOST_CORRELATION = 0.95
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
    effects = _effects_within_arms(observations, stages)
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
    return min(MOST_CORRELATION, max(0.0, total / weight)) if weight > 0 else ASSUMED_CORRELATION


def _effects_within_arms(
    observations: Sequence[Observation], stages: Sequence[StageCost]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return by stage and run (effect, measured seconds); arms that ran once are left out."""
    sums: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    for item, seconds in _alone(observations, stages):
        both = sums[item.stage][item.arm].setdefault(item.run, [0.0, 0.0])
        both[0] += item.seconds
        both[1] += seconds
    effects: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for stage, arms in sums.items():
        for runs in arms.values():
            logs = {run: math.log(measured / predicted) for run, (measured, predicted) in runs.items()}
            mean = sum(logs.values()) / len(logs)
            if len(logs) > 1:
                effects[stage] |= {run: (log - mean, runs[run][0]) for run, log in logs.items()}
    return effects


def _alone(observations: Sequence[Observation], stages: Sequence[StageCost]) -> Iterator[tuple[Observation, float]]:
    """Yield the spans in which nobody else worked, and their predicted seconds."""
    for item in observations:
        cost = cost_of(item, stages) if item.is_alone else None
        seconds = cost.seconds_of(item.units, item.model) if cost else 0.0
        if seconds > 0:
            yield item, seconds


LEAST_OVERLAP = 0.5
"""Share of a span in which another part must have worked: what is left of it would blur the estimate."""
MOST_Q = 0.9
ASSUMED_SLOWDOWN, ASSUMED_SLOWDOWN_SD = 0.2, 0.15
"""Slow-down taken where no run has two parts at work at the same time."""
LEAST_SD = 0.05
"""Of what one run says: two runs of the same kind are known to differ by about that much."""

Overlapped = tuple[float, float, float]
"""Seconds, share of them in which another part worked, share of them that alone it would not have taken."""


def fit_contention(
    observations: Sequence[Observation], stages: Sequence[StageCost], cores: int
) -> tuple[Contention, list[str]]:
    """Return the contention of a machine with so many cores, and in words how it was found.

    A part at 1 / (1 + s) of its speed during the share f of its span, and at full speed before and after, takes y
    seconds for work of p seconds: p / y = 1 - f q with q = s / (1 + s). p is what the fitted cost predicts, times how
    fast the run was where only one part worked. q is fitted by least squares to the overlapped spans of each run,
    weighted by their seconds, and averaged over the runs; s follows.
    """
    by_run = _overlapped(observations, stages, cores)
    if not by_run:
        said = f"contention: no run had two parts at work at once; a slow-down of {ASSUMED_SLOWDOWN:g} was assumed"
        return Contention(cores=cores, slowdown=ASSUMED_SLOWDOWN, slowdown_sd=ASSUMED_SLOWDOWN_SD), [said]
    shares = [_slowed(rows) for rows in by_run.values()]
    q = min(MOST_Q, max(0.0, float(np.mean(shares))))
    spread = float(np.std(shares, ddof=1)) if len(shares) > 1 else 0.0
    q_sd = max(spread, LEAST_SD) / math.sqrt(len(shares))
    spans, runs = sum(map(len, by_run.values())), len(by_run)
    said = (
        f"contention: from {spans} spans of {runs} run{'s' if runs > 1 else ''} in which another part worked at the "
        "same time, against the cost of the same work alone at that run's speed"
    )
    slowdown, slowdown_sd = q / (1 - q), q_sd / (1 - q) ** 2
    return Contention(cores=cores, slowdown=rounded(slowdown), slowdown_sd=rounded(slowdown_sd)), [said]


def _overlapped(
    observations: Sequence[Observation], stages: Sequence[StageCost], cores: int
) -> dict[str, list[Overlapped]]:
    """Return by run its longer spans in which so many others worked that a core was left for each."""
    speeds = run_speeds(observations, stages)
    by_run: dict[str, list[Overlapped]] = defaultdict(list)
    for item in observations:
        cost = cost_of(item, stages)
        if cost is None or item.run not in speeds or not LEAST_OVERLAP <= item.others <= cores - 1:
            continue
        if item.stage == "call":  # which is a way, and no work
            continue
        predicted = cost.seconds_of(item.units, item.model) * speeds[item.run]
        if predicted >= LONG_S:
            by_run[item.run].append((item.seconds, min(1.0, item.others), 1 - predicted / item.seconds))
    return by_run


def _slowed(rows: Sequence[Overlapped]) -> float:
    seconds, share, lost = (np.array(column) for column in zip(*rows, strict=True))
    return float((seconds * share * lost).sum() / (seconds * share * share).sum())


STORES = ("object_store", "object_store_numpy")
"""Transports that put new memory into Ray's store for each sync; the others write into memory that they keep."""
CARRIED_LOG_SD, ISOLATED_LOG_SD = 0.15, 0.25
"""Spread of a cost that was carried over, and of one that was taken as it was measured in isolation. Assumed: what
relations differ by between the transports and stages that both have."""


def costs_of_other_transports(
    syncs: Sequence[Observation], training: Sequence[Observation], known: Sequence[StageCost]
) -> tuple[list[StageCost], list[str]]:
    """Return the costs of transports that only the sweep has, and in words how they were carried over.

    Args:
        syncs: of transport sweeps.
        training: of training runs.
        known: costs that were fitted to these; what a Generator's verification costs is taken from them.
    """
    syncs = _without_the_generators_share(syncs, known)
    have = {item.where["transport"] for item in training if item.stage == "weight_publish"}
    others = sorted({item.where["transport"] for item in syncs} - have)
    costs: list[StageCost] = []
    notes: list[str] = []
    for transport in others:
        factor, said = _publish_factor(transport, sorted(have), syncs, training)
        for stage, part in (("weight_publish", {}), ("weight_verify", {"part": "learner"}), ("weight_transfer", {})):
            cost = _fitted(stage, {**part, "transport": transport}, syncs)
            if cost is not None:
                copies = stage == "weight_publish"
                spread = CARRIED_LOG_SD if copies else ISOLATED_LOG_SD
                own = {"run_log_sd": spread, "step_log_sd": rounded(cost.step_log_sd)}
                costs.append(times(cost, factor if copies else 1.0, **own))
        notes.append(f"{transport}: from isolated syncs; {said}, the rest as it was measured there")
    return costs, notes


def _without_the_generators_share(syncs: Sequence[Observation], known: Sequence[StageCost]) -> list[Observation]:
    """Take the Generator's part off the verification of a sync, which a sweep tells as a sum over both ends."""
    kept = []
    for item in syncs:
        if item.stage == "weight_verify":
            theirs = replace(item, where={"part": "generator", **item.where})
            cost = cost_of(theirs, known)
            seconds = item.seconds - (cost.seconds_of(item.units) if cost else item.seconds / 2)
            if seconds <= 0:
                continue
            item = replace(item, seconds=seconds, where={"part": "learner", **item.where})
        kept.append(item)
    return kept


def _publish_factor(
    transport: str, have: Sequence[str], syncs: Sequence[Observation], training: Sequence[Observation]
) -> tuple[float, str]:
    """Return seconds in training over those of isolated syncs, of the transports that publish alike; and in words."""
    found = {
        name: relation
        for name in have
        if (name in STORES) == (transport in STORES) and (relation := _relation(name, syncs, training)) is not None
    }
    if not found:
        return 1.0, "publishing too"
    factor = math.exp(float(np.mean([math.log(relation) for relation in found.values()])))
    told = " and ".join(f"{relation:.2f} of {name}" for name, relation in found.items())
    return factor, f"publishing times {factor:.2f}, as training runs relate to isolated syncs ({told})"


def _relation(transport: str, syncs: Sequence[Observation], training: Sequence[Observation]) -> float | None:
    """Return the median of measured seconds in training over those that the sweep predicts for as many bytes."""
    where = {"transport": transport}
    cost = _fitted("weight_publish", where, syncs)
    if cost is None:
        return None
    later = [item for item in _spans("weight_publish", where, training) if not item.units["first"]]
    ratios = [item.seconds / cost.seconds_of(item.units) for item in later if cost.seconds_of(item.units) > 0]
    return float(np.median(ratios)) if ratios else None


def _spans(stage: str, where: dict[str, str], items: Sequence[Observation]) -> list[Observation]:
    return [item for item in items if item.stage == stage and item.is_alone and where.items() <= item.where.items()]


def _fitted(stage: str, where: dict[str, str], syncs: Sequence[Observation]) -> StageCost | None:
    spans = _spans(stage, where, syncs)
    if not spans:
        return None
    one_run = [replace(item, run="") for item in spans]
    found = fit_spans(one_run, SYNC_FEATURES)
    seconds, covariance = active_costs(SYNC_FEATURES, found.seconds, found.covariance)
    units = {feature: [item.units[feature] for item in spans] for feature in SYNC_FEATURES}
    return StageCost(
        stage=stage,
        where=where,
        seconds=seconds,
        covariance=tuple(map(tuple, covariance)),
        step_log_sd=math.log1p(found.step_sd),
        ranges={feature: (rounded(min(each)), rounded(max(each))) for feature, each in units.items()},
        spans=len(spans),
    )
