"""How well the costs of a profile describe the spans that they were fitted to, as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.report.document import Table
from harness.simulate.calibrate.observations import Observation
from harness.simulate.machine import Contention, MachineProfile, StageCost


@dataclass(frozen=True, slots=True)
class StageFit:
    """How well one cost describes its spans.

    Attributes:
        errors: by arm, mean measured seconds over the predicted ones, minus 1; empty where no training run has it.
    """

    cost: StageCost
    errors: Mapping[str, float]

    @property
    def median_error(self) -> float | None:
        """Median over the arms of the absolute error."""
        return median(map(abs, self.errors.values())) if self.errors else None

    @property
    def worst(self) -> tuple[str, float] | None:
        """The arm that is missed most, and by how much."""
        return max(self.errors.items(), key=lambda item: abs(item[1])) if self.errors else None


def stage_fits(profile: MachineProfile, observations: Sequence[Observation]) -> list[StageFit]:
    """Compare every cost of a profile with the spans that it is for, those in which nobody else worked."""
    return [StageFit(cost, _errors(cost, profile, observations)) for cost in profile.stages]


def _errors(cost: StageCost, profile: MachineProfile, observations: Sequence[Observation]) -> dict[str, float]:
    measured: dict[str, float] = defaultdict(float)
    predicted: dict[str, float] = defaultdict(float)
    for item in observations:
        if item.stage == cost.stage and item.is_alone and profile.cost_of(item.stage, item.where) is cost:
            measured[item.arm] += item.seconds
            predicted[item.arm] += cost.seconds_of(item.units, item.model)
    return {arm: measured[arm] / predicted[arm] - 1 for arm in measured if predicted[arm] > 0}


def fit_table(profile: MachineProfile, fits: Sequence[StageFit]) -> Table:
    """Return how well each cost describes its spans."""
    return Table(
        title=f"How well {profile.name} describes the runs it was fitted to",
        header=("stage", "under", "spans", "error", "worst arm", "by", "a span", "a run", "unseen"),
        rows=tuple(map(_fit_row, fits)),
        notes=(
            "error: median over the arms of how far the mean of a stage's spans is from its prediction; worst arm: the "
            "one with the largest, measured over predicted.",
            "a span, a run: spread of single spans within a run, and of whole runs, around the prediction; unseen: "
            "that of a model that was not measured.",
            *_slowdown(profile.contention),
            *profile.notes,
        ),
        words=2,
    )


def cost_table(profile: MachineProfile) -> Table:
    """Return the seconds of one unit of each feature."""
    rows = []
    for cost in profile.stages:
        for place, (feature, seconds) in enumerate(cost.seconds.items()):
            error = _seconds(cost.covariance[place][place] ** 0.5) if cost.covariance else ""
            rows.append((cost.stage, _under(cost), feature, _seconds(seconds), error, _range(cost, feature)))
    return Table(
        title=f"Costs of {profile.name}",
        header=("stage", "under", "term", "one unit", "standard error", "holds for"),
        rows=tuple(rows),
        notes=("harness/simulate/features.py says what each term counts.",),
        words=3,
    )


def _fit_row(fit: StageFit) -> tuple[str, ...]:
    error, worst = fit.median_error, fit.worst
    return (
        fit.cost.stage,
        _under(fit.cost),
        str(fit.cost.spans),
        "" if error is None else f"{error:.1%}",
        "" if worst is None else worst[0],
        "" if worst is None else f"{worst[1]:+.0%}",
        *(f"{spread:.0%}" for spread in (fit.cost.step_log_sd, fit.cost.run_log_sd, fit.cost.unseen_log_sd)),
    )


def _slowdown(contention: Contention | None) -> tuple[str, ...]:
    if contention is None:
        return ()
    found = f"{contention.slowdown:.2f}, with a standard error of {contention.slowdown_sd:.2f}"
    return (f"slow-down of a part by each other one at work: {found}.",)


def _under(cost: StageCost) -> str:
    return ", ".join(value if key != "part" else f"the {value}" for key, value in cost.where.items())


def _range(cost: StageCost, feature: str) -> str:
    low, high = cost.ranges.get(feature, (0.0, 0.0))
    return f"{low:.3g}" if high - low < 1e-3 * high else f"{low:.3g} to {high:.3g}"


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
