"""What goes beyond the cost of one stage alone: runs that are slow as a whole, contention, and other transports.

The costs of transports that no training run has are from isolated weight syncs of a transport sweep. A sync in a sweep
need not cost what one in a training run does. Transports that both have say how the two relate, and that is carried
over where it is about the same work: copying the weights into memory. How long they travel is taken as it was measured
in isolation, since the transports that both have do not travel alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from harness.compare.numbers import plural
from harness.simulate.calibrate.least_squares import SYNC_FEATURES, active_costs
from harness.simulate.calibrate.observations import Observation
from harness.simulate.calibrate.stages import fit_spans, times
from harness.simulate.machine import Contention, StageCost, rounded
from harness.simulate.timeline import ASSUMED_SLOWDOWN, ASSUMED_SLOWDOWN_SD

if TYPE_CHECKING:
    import pandas as pd

SECONDS = ["seconds", "predicted"]
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


def priced(observations: Sequence[Observation], stages: Sequence[StageCost]) -> pd.DataFrame:
    """Return a row for each observation that has a cost: what it is of, its seconds, and those predicted.

    ``cost`` is the cost's place, ``is_alone`` whether nobody else worked meanwhile.
    """
    import pandas as pd

    places = {id(cost): place for place, cost in enumerate(stages)}
    rows = [
        (
            it.stage,
            it.arm,
            it.run,
            places[id(cost)],
            it.is_alone,
            it.others,
            it.seconds,
            cost.seconds_of(it.units, it.model),
        )
        for it in observations
        if (cost := cost_of(it, stages)) is not None
    ]
    return pd.DataFrame(rows, columns=["stage", "arm", "run", "cost", "is_alone", "others", *SECONDS])


def run_speeds(observations: Sequence[Observation], stages: Sequence[StageCost]) -> dict[str, float]:
    """Return by run how much longer its longer spans took than predicted, as a factor; those alone at work count."""
    return _speeds(priced(observations, stages))


def _speeds(spans: pd.DataFrame) -> dict[str, float]:
    sums = spans[spans.is_alone & (spans.predicted >= LONG_S)].groupby("run")[SECONDS].sum()
    speeds: dict[str, float] = (sums.seconds / sums.predicted).to_dict()
    return speeds


def run_correlation(observations: Sequence[Observation], stages: Sequence[StageCost]) -> float:
    """Return the correlation of the run effects of two stages, as a mean over pairs weighted by their seconds.

    A run's effect on a stage is the logarithm of its measured over its predicted seconds, against the mean of the runs
    of its arm, if it has several: by what the fit misses an arm is no matter of the machine, and differs from stage to
    stage.
    """
    spans = priced(observations, stages)
    sums = spans[spans.is_alone & (spans.predicted > 0)].groupby(["stage", "arm", "run"])[SECONDS].sum()
    logs = np.log(sums.seconds / sums.predicted)
    of_arm = logs.groupby(["stage", "arm"])
    several = of_arm.transform("size") > 1
    effects, seconds = ((logs - of_arm.transform("mean"))[several], sums.seconds[several])
    effects, seconds = (each.droplevel("arm").unstack("stage") for each in (effects, seconds))
    total, weight = 0.0, 0.0
    for pair in combinations(effects, 2):
        both = effects[[*pair]].dropna()
        if len(both) >= FEWEST_RUNS and both.std(ddof=0).min() > 0:
            share = float(seconds.loc[both.index, [*pair]].sum().prod())
            total += share * float(both.corr().iloc[0, 1])
            weight += share
    return min(MOST_CORRELATION, max(0.0, total / weight)) if weight > 0 else ASSUMED_CORRELATION


LEAST_OVERLAP = 0.5
"""Share of a span in which another part must have worked: what is left of it would blur the estimate."""
MOST_Q = 0.9
LEAST_SD = 0.05
"""Of what one run says: two runs of the same kind are known to differ by about that much."""


def fit_contention(
    observations: Sequence[Observation], stages: Sequence[StageCost], cores: int
) -> tuple[Contention, list[str]]:
    """Return the contention of a machine with so many cores, and in words how it was found.

    A part at 1 / (1 + s) of its speed during the share f of its span, and at full speed before and after, takes y
    seconds for work of p seconds: p / y = 1 - f q with q = s / (1 + s). p is what the fitted cost predicts, times how
    fast the run was where only one part worked. q is fitted by least squares to the overlapped spans of each run,
    weighted by their seconds, and averaged over the runs; s follows.
    """
    spans = priced(observations, stages)
    spans["predicted"] *= spans.run.map(_speeds(spans))
    # the longer spans of work in which so many others worked that a core was left for each
    spans = spans[
        (spans.stage != "call") & spans.others.between(LEAST_OVERLAP, cores - 1) & (spans.predicted >= LONG_S)
    ]
    if not len(spans):
        said = f"contention: no run had two parts at work at once; a slow-down of {ASSUMED_SLOWDOWN:g} was assumed"
        return Contention(cores=cores, slowdown=ASSUMED_SLOWDOWN, slowdown_sd=ASSUMED_SLOWDOWN_SD), [said]
    beside = spans.seconds * spans.others.clip(upper=1.0)
    lost = beside * (1 - spans.predicted / spans.seconds)
    shares = (lost.groupby(spans.run).sum() / (beside**2 / spans.seconds).groupby(spans.run).sum()).tolist()
    q = min(MOST_Q, max(0.0, float(np.mean(shares))))
    spread = float(np.std(shares, ddof=1)) if len(shares) > 1 else 0.0
    q_sd = max(spread, LEAST_SD) / math.sqrt(len(shares))
    said = (
        f"contention: from {len(spans)} spans of {plural(len(shares), 'run')} in which another part worked at the "
        "same time, against the cost of the same work alone at that run's speed"
    )
    slowdown, slowdown_sd = q / (1 - q), q_sd / (1 - q) ** 2
    return Contention(cores=cores, slowdown=rounded(slowdown), slowdown_sd=rounded(slowdown_sd)), [said]


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
