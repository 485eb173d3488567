"""Seconds of every stage of one run: a machine profile, asked for one scenario, in one possible truth.

A cost of the profile is for certain circumstances, which must agree with those of the scenario (``cost_key``):

stage                               circumstances
----------------------------------  -------------------------------------------------
generate                            engine, precision, threads, device, placement
score                               task
old_logprobs, reference_logprobs,   precision, threads, device, placement
  update
weight_publish, weight_transfer     transport
weight_load                         engine, precision
weight_verify                       part (``learner`` or ``generator``), transport
call                                call (``CALLS``), way (``there`` or ``back``), placement, transport
all_gather, reduce_scatter,         device, link (``machine`` or ``network``)
  all_reduce
exchange                            device, mode (``ddp``, ``fsdp2``, ``hybrid``, ``tensor``)
checkpoint                          asynchronous (``true``: a copy alone, or ``false``)
prepare_batch, save_policy, record, none
  checkpoint_write, startup

What the profile leaves open is drawn from seeds by name (``Draw``). Equal names give equal draws whatever else is
drawn, so that two scenarios under the same seed differ only by what differs between them (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from harness.core.errors import UserError
from harness.core.seeds import derive_seed
from harness.scenario.derived import threads_on, workers_of
from harness.scenario.schema import Scenario
from harness.settings.placement import PartSettings
from harness.simulate.features import Features
from harness.simulate.machine import MACHINES, MachineProfile, StageCost, load_machine

CALLS = ("generate", "score", "update", "publish", "load", "save_policy")
"""Methods of a part, as ``call`` names them."""

Placement = Literal["actors", "in_process"]


def cost_key(scenario: Scenario, stage: str, cores: int, has_gpu: bool) -> dict[str, str]:
    """Return what a stage's cost depends on beside its units; see the table above.

    Args:
        scenario: resolved.
        stage: a stage's name, ``call`` or ``record``. ``part``, ``call`` and ``way`` are the caller's to add.
        cores: of the machine, by which a part without a number of threads gets its share.
        has_gpu: whether the machine has one.
    """
    match stage:
        case "generate":
            return _engine(scenario) | _computing(scenario, scenario.placement.generator, cores, has_gpu)
        case "score":
            return {"task": scenario.task.type}
        case "old_logprobs" | "reference_logprobs" | "update":
            model: Any = scenario.model
            precision = {"precision": str(getattr(model, "precision", "float32"))}
            return precision | _computing(scenario, scenario.placement.learner, cores, has_gpu)
        case "weight_publish" | "weight_transfer" | "weight_verify":
            return {"transport": transport_of(scenario)}
        case "weight_load":
            return _engine(scenario)
        case "exchange" | "all_gather" | "reduce_scatter" | "all_reduce":
            return {"device": scenario.device_of(scenario.placement.learner, has_gpu)}
        case "checkpoint":
            return {"asynchronous": str(scenario.checkpoint.asynchronous).lower()}
        case "call":
            return {"placement": placement_of(scenario), "transport": transport_of(scenario)}
    return {}


def placement_of(scenario: Scenario) -> Placement:
    """Return whether the parts are Ray actors or threads of one process."""
    return "actors" if scenario.uses_ray else "in_process"


def transport_of(scenario: Scenario) -> str:
    """Return the transport's name; in one process, whether parts that do not take turns get a copy of the weights."""
    name: str = scenario.transport.type
    return "in_process_copy" if name == "in_process" and not scenario.placement.colocated else name


def model_name(scenario: Scenario) -> str:
    """Return the name under which a profile keeps what it knows of this model alone: the preset's or the folder's."""
    model: Any = scenario.model
    named = getattr(model, "preset", None) or getattr(model, "path", None) or model.type
    return str(named).rstrip("/").rsplit("/", 1)[-1]


def engine_name(scenario: Scenario) -> str:
    """Return the name under which a profile keeps costs of this engine; one worker's say nothing of several."""
    workers = workers_of(scenario)
    return scenario.engine.type if workers == 1 else f"{scenario.engine.type} of {workers} workers"


def _engine(scenario: Scenario) -> dict[str, str]:
    return {"engine": engine_name(scenario), "precision": str(getattr(scenario.engine, "precision", "float32"))}


def _computing(scenario: Scenario, part: PartSettings, cores: int, has_gpu: bool) -> dict[str, str]:
    threads, device = str(threads_on(cores, scenario, part)), scenario.device_of(part, has_gpu)
    return {"threads": threads, "device": device, "placement": placement_of(scenario)}


_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Draw:
    """Which of the possible truths, under which root seed.

    Truths come in pairs, 1 and 2, 3 and 4 and so on, that err by as much in opposite directions, so that their middle
    does not depend on which of them were drawn (antithetic variates: Hammersley and Morton 1956).
    """

    number: int
    seed: int = 0

    def stream(self, *name: str) -> np.random.Generator:
        """Return the random stream of this name, of this truth alone."""
        return np.random.default_rng(derive_seed(self.seed, "draw", self.number, *name))

    def normal(self, *name: str) -> float:
        """Return a standard normal number of this name."""
        return float(self.normals(1, *name)[0])

    def normals(self, count: int, *name: str) -> npt.NDArray[np.float64]:
        """Return so many standard normal numbers of this name, (count,); the other one of the pair has the opposite."""
        rng = np.random.default_rng(derive_seed(self.seed, "pair", (self.number + 1) // 2, *name))
        sign = 1.0 if self.number % 2 else -1.0
        drawn: npt.NDArray[np.float64] = sign * rng.standard_normal(count)
        return drawn

    def at_least_0(self, mean: float, sd: float, *name: str) -> float:
        """Return a normal number, 0 where it would be below."""
        return max(0.0, mean + sd * self.normal(*name))

    def factor(self, log_sd: float, *name: str) -> float:
        """Return a log-normal factor with mean 1."""
        return mean_one(log_sd, self.normal(*name)) if log_sd > 0 else 1.0

    def coefficients(self, means: Sequence[float], covariance: Sequence[Sequence[float]], *name: str) -> list[float]:
        """Return coefficients drawn from N(means, covariance), those below 0 set to 0.

        Args:
            means: one for each coefficient.
            covariance: of them; empty where nothing is known of it.
            name: of the stream.

        Raises:
            ValueError: the covariance is of another size than the means.
        """
        if not covariance:
            return list(means)
        matrix = np.array(covariance, dtype=np.float64)
        if matrix.shape != (len(means), len(means)):
            raise ValueError(f"a covariance of shape {matrix.shape} does not go with {len(means)} coefficients")
        drawn = np.array(means) + _root(matrix) @ self.normals(len(means), *name)
        return [max(0.0, float(value)) for value in drawn]


def mean_one(log_sd: float, z: float) -> float:
    """Return exp(s z - s^2 / 2): a factor with mean 1 where z is standard normal."""
    return math.exp(log_sd * z - log_sd * log_sd / 2)


def run_factor(draw: Draw, log_sd: float, correlation: float, *name: str) -> float:
    """Return what all spans of a cost share in one run: partly of the machine, partly of the cost alone.

    Args:
        draw: which truth.
        log_sd: spread from run to run.
        correlation: of the logarithms of two costs in the same run, 0 to 1.
        name: of the cost.
    """
    if log_sd == 0:
        return 1.0
    z = math.sqrt(correlation) * draw.normal("run") + math.sqrt(1 - correlation) * draw.normal("run", *name)
    return mean_one(log_sd, z)


class StepNoise:
    """The factor of each span after the other: log-normal with mean 1, an AR(1) process in logs.

    x_0 = z_0 and x_t = r x_(t-1) + sqrt(1 - r^2) z_t with z standard normal; the factor is exp(s x_t - s^2 / 2).

    Args:
        draw: which truth.
        log_sd: s.
        correlation: r, from 0 to below 1.
        name: of the stream.
    """

    def __init__(self, draw: Draw, log_sd: float, correlation: float, *name: str) -> None:
        self._log_sd, self._correlation = log_sd, correlation
        self._innovation = math.sqrt(1 - correlation * correlation)
        self._rng = draw.stream("step", *name) if log_sd > 0 else None
        self._ready: list[float] = []
        self._last: float | None = None

    def next(self) -> float:
        """Return the factor of the next span."""
        if self._rng is None:
            return 1.0
        if not self._ready:
            self._ready = self._rng.standard_normal(_CHUNK).tolist()[::-1]
        z = self._ready.pop()
        self._last = z if self._last is None else self._correlation * self._last + self._innovation * z
        return mean_one(self._log_sd, self._last)


def _root(covariance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a matrix R with R R^T = covariance; eigenvalues that rounding made negative count as 0."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    root: npt.NDArray[np.float64] = vectors * np.sqrt(np.clip(values, 0, None))
    return root


OPTIONAL = ("save_policy", "record", "startup")
"""Stages that cost nothing where the profile does not have them; said among the extrapolations."""
_SETTINGS = {
    "engine": ("engine.type",),
    "transport": ("transport.type",),
    "precision": ("engine.precision", "model.precision"),
    "threads": ("model.threads",),
    "device": ("placement.device",),
    "task": ("task.type",),
}
"""Where a scenario sets a circumstance."""


class CostModel:
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

    def seconds(self, stage: str, lane: str, step: int, features: Features, /, **also: str) -> float:
        """Return the seconds of one span.

        Args:
            stage: a stage of a machine profile: a Generator's ``evaluate`` is ``generate``, a Scorer's is ``score``.
            lane: whose span it is.
            step: training step, or policy version of a weight sync.
            features: units, as ``harness.simulate.features`` counts them.
            also: circumstances of this span alone: ``part``; for ``call`` also ``call`` and ``way``.

        Raises:
            UserError: the profile has no cost of this stage under these circumstances.
        """
        return self.seconds_each(stage, lane, step, (features,), **also)[0]

    def seconds_each(
        self, stage: str, lane: str, step: int, each: Sequence[Features], /, **also: str
    ) -> Sequence[float]:
        """Return the seconds of work that several ranks do side by side, each of its units, under the same noise."""
        price = self.price(stage, also)
        if price is None:
            return [0.0] * len(each)
        factor = 1.0 if self._draw is None else self._step_factor(self._draw, price.cost, lane)
        return [factor * price.of(features) for features in each]

    def price(self, stage: str, also: Mapping[str, str]) -> _Price | None:
        """Return the price of a stage; None where it is free.

        Raises:
            UserError: the profile has no cost of this stage under these circumstances.
        """
        key: tuple[str | tuple[str, str], ...] = (stage, *also.items())
        price = self._prices.get(key)
        if price is None and key not in self._prices:
            price = self._find(stage, cost_key(self._scenario, stage, self._cores, self._machine.has_gpu) | dict(also))
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
                self._by_cost[id(cost)] = _Price(cost, self._model, self._draw, self._machine)
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
            has = f"it has {', '.join(dict.fromkeys(cost.stage for cost in self._machine.stages)) or 'none'}"
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
        changed = ", ".join(f"{name}={nearest.where[key]}" for key in differing for name in _SETTINGS[key])
        allowed = " ".join(f"--allow {key}" for key in differing)
        known = (load_machine(path) for path in MACHINES.files())
        fitting = [each.name for each in known if each.origin == "measured" and each.cost_of(stage, under) is not None]
        other = "".join(f", take --machine {name}" for name in fitting)
        fix = f"set {changed}, {calibrated}{other}, or take the nearest cost with {allowed}"
        return UserError(what, "machine", fix)

    def _step_factor(self, draw: Draw, cost: StageCost, lane: str) -> float:
        noise = self._noise.get((id(cost), lane))
        if noise is None:
            name = (cost.stage, _told(cost.where), lane)
            noise = StepNoise(draw, cost.step_log_sd, cost.step_correlation, *name)
            self._noise[id(cost), lane] = noise
        return noise.next()


class _Price:
    """One cost of the profile, for one model in one possible truth; remembers the largest and smallest units."""

    def __init__(self, cost: StageCost, model: str, draw: Draw | None, machine: MachineProfile) -> None:
        self.cost, self._model = cost, model
        self._counted = [(feature, each, [math.inf, -math.inf]) for feature, each in _coefficients(cost, draw)]
        self._factor = _correction(cost, model, draw, machine)

    def of(self, features: Features) -> float:
        """Return the seconds without step noise."""
        total = 0.0
        for feature, coefficient, seen in self._counted:
            units = features.get(feature, 0.0)
            total += coefficient * units
            if units < seen[0]:
                seen[0] = units
            if units > seen[1]:
                seen[1] = units
        return total * self._factor

    def outside(self) -> Iterable[str]:
        """Yield a sentence for each feature that left its range, and for a model that nobody measured."""
        if self.cost.models and self._model not in self.cost.models:
            measured = ", ".join(self.cost.models)
            yield f"{self.cost.stage}: {self._model or 'the model'} was not measured ({measured} were)"
        seen = {feature: units for feature, _, units in self._counted}
        for feature, (low, high) in self.cost.ranges.items():
            least, most = seen.get(feature, (math.inf, -math.inf))
            if least > most:  # nobody asked for it
                continue
            where = f" ({_told(self.cost.where)})" if self.cost.where else ""
            spanned = f"the {low:.4g} to {high:.4g} that were measured"
            if most > high * (1 + 1e-9):
                yield f"{self.cost.stage}{where}: {most:.4g} {_words(feature)} are more than {spanned}"
            if least < low * (1 - 1e-9):
                yield f"{self.cost.stage}{where}: {least:.4g} {_words(feature)} are fewer than {spanned}"


def _coefficients(cost: StageCost, draw: Draw | None) -> list[tuple[str, float]]:
    means = list(cost.seconds.values())
    values = means if draw is None else draw.coefficients(means, cost.covariance, *_name(cost))
    return list(zip(cost.seconds, values, strict=True))


def _correction(cost: StageCost, model: str, draw: Draw | None, machine: MachineProfile) -> float:
    known = cost.models.get(model)
    factor = known.factor if known else 1.0
    if draw is None:
        return factor
    log_sd = known.log_sd if known else cost.unseen_log_sd
    of_the_run = run_factor(draw, cost.run_log_sd, machine.run_correlation, *_name(cost))
    occasion = draw.factor(machine.occasion_log_sd, "occasion")
    return factor * draw.factor(log_sd, "model", model, cost.stage) * of_the_run * occasion


def _differing(cost: StageCost, under: Mapping[str, str]) -> dict[str, str]:
    """Return the circumstances in which a cost differs, as the scenario has them."""
    return {key: under.get(key, "none") for key, value in cost.where.items() if under.get(key) != value}


def _name(cost: StageCost) -> tuple[str, str]:
    return cost.stage, _told(cost.where)


def _told(where: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(where.items())) or "any"


def _words(feature: str) -> str:
    """Return a feature's name in words: ``row_gflop`` units are ``row gflop``."""
    return f"units of {feature.replace('_', ' ')}"
