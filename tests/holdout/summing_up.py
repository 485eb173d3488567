"""From the arms of an examination to its tiers, its ranking and what following it costs: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tests.holdout.document import SMALL, ArmScore, Chosen, Compared, Counted, Ranking, TierScore
from tests.holdout.plan import TierPlan
from tests.holdout.scores import (
    choose,
    inside,
    kendall_tau,
    median_absolute,
    noise_floor,
    signed_error,
    tau_between_repeats,
)


def tier_score(name: str, plan: TierPlan, arms: Sequence[ArmScore]) -> TierScore:
    """Sum up the arms of a tier."""
    steps = [arm.step for arm in arms]
    large = {stage: None for arm in arms for stage in arm.large_stages}
    return TierScore(
        name=name,
        what=plan.what,
        bound=plan.bound,
        arms=tuple(arm.arm for arm in arms),
        error=median_absolute(step.error for step in steps),
        floor=noise_floor([step.repeats for step in steps]),
        baselines={baseline: _baseline_error(baseline, arms) for baseline in arms[0].baselines},
        stages={stage: _stage_error(stage, arms) for stage in large},
        small=_small_stages(arms),
        coverage=_coverage(steps),
        stage_coverage=_coverage([arm.stages[stage] for arm in arms for stage in arm.large_stages]),
    )


def _baseline_error(name: str, arms: Sequence[ArmScore]) -> float | None:
    """Median absolute error of a baseline; None where it has nothing to say of an arm."""
    predicted = [arm.baselines[name] for arm in arms]
    if any(value is None for value in predicted):
        return None
    pairs = zip(predicted, arms, strict=True)
    return median_absolute(signed_error(value or 0.0, arm.step.measured) for value, arm in pairs)


def _stage_error(stage: str, arms: Sequence[ArmScore]) -> float:
    return median(abs(arm.stages[stage].error) for arm in arms if stage in arm.large_stages)


def _small_stages(arms: Sequence[ArmScore]) -> dict[str, float]:
    """Largest share of the step, by stage, over the arms in which it stays below 5%."""
    shares: dict[str, float] = {}
    for arm in arms:
        for stage in arm.stages:
            if (share := arm.share(stage)) < SMALL:
                shares[stage] = max(share, shares.get(stage, 0.0))
    return shares


def _coverage(figures: Sequence[Compared]) -> Counted:
    hits = sum(inside(figure.low, figure.high, figure.repeats) for figure in figures)
    return Counted(inside=hits, of=sum(len(figure.repeats) for figure in figures))


def ranking(arms: Sequence[ArmScore], bound: float) -> Ranking:
    """Compare the order of the arms by predicted step time with the measured one."""
    return Ranking(
        tau=kendall_tau([arm.step.value for arm in arms], [arm.step.measured for arm in arms]),
        bound=bound,
        repeats=tau_between_repeats([arm.step.repeats for arm in arms]),
    )


def choices(arms: Sequence[ArmScore], models: Mapping[str, str]) -> tuple[Chosen, ...]:
    """Follow the simulator where there is something to choose: among the arms of the model that most of them have.

    Args:
        models: of each arm, by its name.
    """
    names = [models[arm.arm] for arm in arms]
    usual = max(names, key=names.count)
    comparable = [arm for arm in arms if models[arm.arm] == usual]
    if len(comparable) < 2:
        return ()
    steps = {arm.arm: (arm.step.value, arm.step.measured) for arm in comparable}
    tokens = {arm.arm: (1 / arm.throughput.value, 1 / arm.throughput.measured) for arm in comparable}
    return (
        _chosen("which arm makes the fastest training step", steps),
        _chosen("which arm trains a response token fastest", tokens),
    )


def _chosen(question: str, costs: Mapping[str, tuple[float, float]]) -> Chosen:
    predicted, measured = ({arm: pair[side] for arm, pair in costs.items()} for side in (0, 1))
    found = choose(predicted, measured)
    return Chosen(
        question=question,
        arms=tuple(costs),
        picked=found.picked,
        best=found.best,
        regret=found.regret,
        pairs=found.pairs,
        wrong=found.wrong,
        mean_cost=found.mean_cost,
        worst_cost=found.worst_cost,
    )


def first_tier_only(arms: Sequence[ArmScore]) -> list[ArmScore]:
    """Return every arm once, as predicted in the first tier that has it: with all that may be fitted."""
    once: dict[str, ArmScore] = {}
    for arm in arms:
        once.setdefault(arm.arm, arm)
    return list(once.values())
