"""Seconds of every stage of one run: a machine profile, asked for one scenario, in one possible truth."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from harness.core.errors import UserError
from harness.scenario import Scenario
from harness.simulate.circumstances import circumstances
from harness.simulate.machine import MachineProfile, StageCost
from harness.simulate.noise import Draw, StepNoise, run_factor
from harness.simulate.terms import Terms

OPTIONAL = ("checkpoint", "record", "startup")
"""Stages that cost nothing where the profile does not have them; said among the extrapolations."""
_SETTINGS = {
    "engine": "engine.type",
    "transport": "transport.type",
    "precision": "engine.precision",
    "threads": "model.threads",
    "device": "placement.device",
    "task": "task.type",
}
"""Where a scenario sets a circumstance."""


class Seconds(Protocol):
    """What the simulated parts ask: how long this takes."""

    def seconds(self, stage: str, lane: str, step: int, terms: Terms, /, **also: str) -> float:
        """Return the seconds of one span.

        Args:
            stage: a stage of a machine profile: a Generator's ``evaluate`` is ``generate``, a Scorer's is ``score``.
            lane: whose span it is.
            step: training step, or policy version of a weight sync.
            terms: units, as ``harness.simulate.terms`` counts them.
            also: circumstances of this span alone: ``part``; for ``call`` also ``call`` and ``way``.
        """


class Costing:
    """Prices the stages of one scenario.

    Args:
        scenario: one run.
        machine: the profile.
        draw: one possible truth; None: the central prediction, without noise.
        model: name by which the profile may know a correction for the model.
        allow: circumstances, such as ``engine`` or ``threads``, in which the profile may differ from the scenario; what
            was taken instead is said among the extrapolations.
    """

    def __init__(
        self,
        scenario: Scenario,
        machine: MachineProfile,
        draw: Draw | None = None,
        *,
        model: str = "",
        allow: Collection[str] = (),
    ) -> None:
        self._scenario, self._machine, self._draw, self._model = scenario, machine, draw, model
        self._allow = frozenset(allow)
        self._cores = machine.contention.cores if machine.contention else 1
        self._prices: dict[tuple[str | tuple[str, str], ...], _Price | None] = {}  # by stage and circumstances
        self._by_cost: dict[int, _Price] = {}
        self._noise: dict[tuple[int, str], StepNoise] = {}
        self._said: dict[str, None] = {}

    def seconds(self, stage: str, lane: str, step: int, terms: Terms, /, **also: str) -> float:
        """See ``Seconds``.

        Raises:
            UserError: the profile has no cost of this stage under these circumstances.
        """
        price = self.price(stage, also)
        if price is None:
            return 0.0
        seconds = price.of(terms)
        return seconds if self._draw is None else seconds * self._step_factor(self._draw, price.cost, lane)

    def price(self, stage: str, also: Mapping[str, str]) -> _Price | None:
        """Return the price of a stage; None where it is free.

        Raises:
            UserError: the profile has no cost of this stage under these circumstances.
        """
        key: tuple[str | tuple[str, str], ...] = (stage, *also.items())
        price = self._prices.get(key)
        if price is None and key not in self._prices:
            price = self._find(
                stage, circumstances(self._scenario, stage, self._cores, self._machine.has_gpu) | dict(also)
            )
            self._prices[key] = price
        return price

    @property
    def extrapolating(self) -> tuple[str, ...]:
        """Sentences: which input left the range that was fitted, and what stands in for what the profile lacks."""
        return (*self._said, *(sentence for price in self._by_cost.values() for sentence in price.outside()))

    def _find(self, stage: str, under: dict[str, str]) -> _Price | None:
        cost = self._machine.cost_of(stage, under) or self._nearest(stage, under)
        if cost is not None:
            if id(cost) not in self._by_cost:
                self._by_cost[id(cost)] = _Price(cost, self._model, self._draw, self._machine.run_correlation)
            return self._by_cost[id(cost)]
        if stage == "call" and under.get("placement") == "in_process":
            return None
        if stage in OPTIONAL:
            self._said[f"{stage}: the profile {self._machine.name} has no cost of it, so it takes no time"] = None
            return None
        raise self._missing(stage, under)

    def _nearest(self, stage: str, under: Mapping[str, str]) -> StageCost | None:
        """Return the cost that differs in the fewest of the circumstances in which it may differ."""
        found = [
            (differing, cost)
            for cost in self._machine.stages
            if cost.stage == stage and (differing := _differing(cost, under)).keys() <= self._allow
        ]
        if not found:
            return None
        differing, cost = min(found, key=lambda pair: len(pair[0]))
        taken = ", ".join(f"{key} {cost.where[key]} in place of {value}" for key, value in differing.items())
        self._said[f"{stage}: the profile {self._machine.name} knows {taken}"] = None
        return cost

    def _missing(self, stage: str, under: Mapping[str, str]) -> UserError:
        costs = [cost for cost in self._machine.stages if cost.stage == stage]
        if not costs:
            has = f"it has {_joined(cost.stage for cost in self._machine.stages)}"
            fix = "calibrate with runs that have this stage, or take another profile"
            return UserError(f"the profile {self._machine.name} has no cost of {stage}; {has}", "machine", fix)
        nearest = min(costs, key=lambda cost: len(_differing(cost, under)))
        differing = _differing(nearest, under)
        asked = ", ".join(f"{key} {value}" for key, value in differing.items())
        has = "; ".join(dict.fromkeys(_told(cost.where) for cost in costs))
        what = f"the profile {self._machine.name} has no cost of {stage} for {asked}; it has {has}"
        calibrated = "calibrate with runs that have it"
        if not differing.keys() <= _SETTINGS.keys():
            return UserError(what, "machine", f"{calibrated}, or take another profile")
        changed = ", ".join(f"{_setting(key, stage)}={nearest.where[key]}" for key in differing)
        allowed = " ".join(f"--allow {key}" for key in differing)
        return UserError(what, "machine", f"set {changed}, {calibrated}, or take the nearest cost with {allowed}")

    def _step_factor(self, draw: Draw, cost: StageCost, lane: str) -> float:
        noise = self._noise.get((id(cost), lane))
        if noise is None:
            name = (cost.stage, _told(cost.where), lane)
            noise = StepNoise(draw, cost.step_log_sd, cost.step_correlation, *name)
            self._noise[id(cost), lane] = noise
        return noise.next()


class _Price:
    """One cost of the profile, for one model in one possible truth; remembers the largest and smallest units."""

    def __init__(self, cost: StageCost, model: str, draw: Draw | None, run_correlation: float) -> None:
        self.cost, self._model = cost, model
        self._counted = [(term, each, [math.inf, -math.inf]) for term, each in _coefficients(cost, draw)]
        self._factor = _correction(cost, model, draw, run_correlation)

    def of(self, terms: Terms) -> float:
        """Return the seconds without step noise."""
        total = 0.0
        for term, coefficient, seen in self._counted:
            units = terms.get(term, 0.0)
            total += coefficient * units
            if units < seen[0]:
                seen[0] = units
            if units > seen[1]:
                seen[1] = units
        return total * self._factor

    def outside(self) -> Iterable[str]:
        """Yield a sentence for each term that left its range, and for a model that nobody measured."""
        if self.cost.models and self._model not in self.cost.models:
            measured = ", ".join(self.cost.models)
            yield f"{self.cost.stage}: {self._model or 'the model'} was not measured ({measured} were)"
        seen = {term: units for term, _, units in self._counted}
        for term, (low, high) in self.cost.ranges.items():
            least, most = seen.get(term, (math.inf, -math.inf))
            if least > most:  # nobody asked for it
                continue
            where = f" ({_told(self.cost.where)})" if self.cost.where else ""
            spanned = f"the {low:.4g} to {high:.4g} that were measured"
            if most > high * (1 + 1e-9):
                yield f"{self.cost.stage}{where}: {most:.4g} {_words(term)} are more than {spanned}"
            if least < low * (1 - 1e-9):
                yield f"{self.cost.stage}{where}: {least:.4g} {_words(term)} are fewer than {spanned}"


def _coefficients(cost: StageCost, draw: Draw | None) -> list[tuple[str, float]]:
    means = list(cost.seconds.values())
    values = means if draw is None else draw.coefficients(means, cost.covariance, *_name(cost))
    return list(zip(cost.seconds, values, strict=True))


def _correction(cost: StageCost, model: str, draw: Draw | None, run_correlation: float) -> float:
    known = cost.models.get(model)
    factor = known.factor if known else 1.0
    if draw is None:
        return factor
    log_sd = known.log_sd if known else cost.unseen_log_sd
    of_the_run = run_factor(draw, cost.run_log_sd, run_correlation, *_name(cost))
    return factor * draw.factor(log_sd, "model", model, cost.stage) * of_the_run


def _differing(cost: StageCost, under: Mapping[str, str]) -> dict[str, str]:
    """Return the circumstances in which a cost differs, as the scenario has them."""
    return {key: under.get(key, "none") for key, value in cost.where.items() if under.get(key) != value}


def _setting(key: str, stage: str) -> str:
    of_the_learner = stage in ("update", "old_logprobs", "reference_logprobs")
    return "model.precision" if key == "precision" and of_the_learner else _SETTINGS[key]


def _name(cost: StageCost) -> tuple[str, str]:
    return cost.stage, _told(cost.where)


def _told(where: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(where.items())) or "any"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _words(term: str) -> str:
    """Return a term's name in words: ``row_gflop`` units are ``row gflop``."""
    return f"units of {term.replace('_', ' ')}"
