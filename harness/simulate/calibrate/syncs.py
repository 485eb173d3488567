"""Costs of transports that no training run has, from isolated weight syncs of a transport sweep.

A sync in a sweep need not cost what one in a training run does. Transports that both have say how the two relate, and
that is carried over where it is about the same work: copying the weights into memory. How long they travel is taken as
it was measured in isolation, since the transports that both have do not travel alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.simulate.calibrate.least_squares import active_terms, fit_costs
from harness.simulate.calibrate.observations import Observation
from harness.simulate.calibrate.run_effects import cost_of
from harness.simulate.calibrate.terms import SYNC_TERMS
from harness.simulate.machine import StageCost
from harness.simulate.machines import rounded

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
                costs.append(_scaled(cost, factor if copies else 1.0, CARRIED_LOG_SD if copies else ISOLATED_LOG_SD))
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
    units = np.array([[item.units[term] for term in SYNC_TERMS] for item in spans])
    found = fit_costs(units, np.array([item.seconds for item in spans]), np.zeros(len(spans), dtype=np.int64))
    places = active_terms(SYNC_TERMS, found)
    columns = zip(SYNC_TERMS, units.T, strict=True)
    return StageCost(
        stage=stage,
        where=where,
        seconds={SYNC_TERMS[place]: float(found.seconds[place]) for place in places},
        covariance=tuple(tuple(map(float, row)) for row in found.covariance[np.ix_(places, places)]),
        step_log_sd=math.log1p(found.step_sd),
        ranges={term: (rounded(float(column.min())), rounded(float(column.max()))) for term, column in columns},
        spans=len(spans),
    )


def _scaled(cost: StageCost, factor: float, spread: float) -> StageCost:
    return cost.model_copy(
        update={
            "seconds": {term: rounded(factor * seconds) for term, seconds in cost.seconds.items()},
            "covariance": tuple(tuple(rounded(factor * factor * value) for value in row) for row in cost.covariance),
            "step_log_sd": rounded(cost.step_log_sd),
            "run_log_sd": spread,
        }
    )
