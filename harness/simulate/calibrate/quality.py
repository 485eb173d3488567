"""How well the costs of a profile describe the spans that they were fitted to, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.document import Table
from harness.simulate.calibrate.effects import SECONDS, priced
from harness.simulate.calibrate.observations import Observation
from harness.simulate.machine import MachineProfile, StageCost


def fit_table(profile: MachineProfile, observations: Sequence[Observation]) -> Table:
    """Return how well each cost describes its spans, those in which nobody else worked."""
    spans = priced(observations, profile.stages)
    sums = spans[spans.is_alone].groupby(["cost", "arm"])[SECONDS].sum()
    errors = (sums.seconds / sums.predicted - 1)[sums.predicted > 0]
    rows = []
    for place, cost in enumerate(profile.stages):
        found = ("", "", "")
        if place in errors.index:
            own = errors[place]
            worst = own.abs().idxmax()
            found = f"{own.abs().median():.1%}", worst, f"{own[worst]:+.0%}"
        spreads = (f"{spread:.0%}" for spread in (cost.step_log_sd, cost.run_log_sd, cost.unseen_log_sd))
        rows.append((cost.stage, _under(cost), str(cost.spans), *found, *spreads))
    slowdown: tuple[str, ...] = ()
    if (contention := profile.contention) is not None:
        told = f"{contention.slowdown:.2f}, with a standard error of {contention.slowdown_sd:.2f}"
        slowdown = (f"slow-down of a part by each other one at work: {told}.",)
    return Table(
        title=f"How well {profile.name} describes the runs it was fitted to",
        header=("stage", "under", "spans", "error", "worst arm", "by", "a span", "a run", "unseen"),
        rows=tuple(rows),
        notes=(
            "error: median over the arms of how far the mean of a stage's spans is from its prediction; worst arm: the "
            "one with the largest, measured over predicted.",
            "a span, a run: spread of single spans within a run, and of whole runs, around the prediction; unseen: "
            "that of a model that was not measured.",
            *slowdown,
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
