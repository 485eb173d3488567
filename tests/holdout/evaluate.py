"""The examination itself: fit, predict every held-out arm and every change, set them against what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from harness.compare.stats.intervals import t_interval
from harness.core.errors import UserError
from harness.core.spawn_pool import spawn_pool
from harness.results import Run
from harness.simulate.calibrate.fit import fit
from harness.simulate.forecast import DRAWS, Estimate, Forecast, closed_form, estimate, forecast
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import RunMetrics, costs_of, metrics_of_run
from harness.simulate.whatif.answer import what_if
from tests.holdout.plan import ChangePlan, Measured, Plan
from tests.holdout.summary import ArmScore, ChangeScore, Compared, Document, Lags, ranking, tier_score

WASTED = ("failed", "dropped", "unused")
"""Causes of waste that add up; what was evicted unused is a part of ``unused``."""


class Replay(NamedTuple):
    """Step time after over before, and by which share the replay of the run as it was misses the run."""

    ratio: float
    error: float


def evaluate(plan: Plan, measured: Measured, seed: int = 0) -> Document:
    """Carry out the examination, in a process for each core. The same runs and seed give the same document.

    Raises:
        UserError: the fitted runs cannot tell what a held-out arm needs, or the runs are not of one machine.
    """
    figures = {arm: [metrics_of_run(run) for run in runs] for arm, runs in measured.held_out.items()}
    presets = (None, *dict.fromkeys(preset for tier in plan.tiers.values() for preset in tier.without.values()))
    places = [(name, arm, tier.without.get(arm)) for name, tier in plan.tiers.items() for arm in tier.arms]
    replayed = [
        (run, changed) for changed in plan.whatif.changes.values() for run in measured.held_out[plan.whatif.start]
    ]
    with spawn_pool() as pool:
        runs = (*measured.fitted, *measured.syncs)
        machines = dict(zip(presets, pool.map(_fitted, [runs] * len(presets), presets), strict=True))
        scenarios, fits = zip(*((measured.scenarios[arm], machines[preset]) for _, arm, preset in places), strict=True)
        forecasts = pool.map(partial(forecast, draws=DRAWS, seed=seed), scenarios, fits)
        replays = list(pool.map(partial(_replay, machine=machines[None]), *zip(*replayed, strict=True)))
        scores = [
            arm_score(name, arm, figures[arm], foreseen, closed_form(measured.scenarios[arm], machines[preset]))
            for (name, arm, preset), foreseen in zip(places, forecasts, strict=True)
        ]
    once: dict[str, ArmScore] = {}  # every arm, as predicted in the first tier that has it: with all that may be fitted
    for score in scores:
        once.setdefault(score.arm, score)
    document = Document(
        chosen=plan.chosen,
        fitted=_experiments(measured.fitted),
        held_out=_experiments(measured.runs),
        machine=_machine(measured),
        draws=DRAWS,
        seed=seed,
        coverage_bounds=plan.bounds.coverage,
        stage_bound=plan.bounds.stage,
        arms=tuple(scores),
        tiers=tuple(
            tier_score(name, tier, [score for score in scores if score.tier == name])
            for name, tier in plan.tiers.items()
        ),
        ranking=ranking(list(once.values()), plan.bounds.kendall_tau),
        changes=_change_scores(plan.whatif, measured, figures, replays),
    )
    return Document.model_validate_json(document.as_json())


def _fitted(runs: Sequence[Run], preset: str | None) -> MachineProfile:
    """Fit to what may be seen: all fitted runs, or those of other models than a preset."""
    name = "holdout" if preset is None else f"holdout-without-{preset}"
    return fit(runs, name, exclude_models=() if preset is None else (preset,)).profile


def _replay(run: Run, settings: Sequence[str], machine: MachineProfile) -> Replay:
    """Ask ``whatif`` about a recorded run; how far its replay is off is shown, so it is no reason to refuse here."""
    answer = what_if(run, settings, machine=machine, bound=float("inf"), with_gains=False)
    return Replay(answer.ratio, answer.error)


def arm_score(tier: str, arm: str, repeats: Sequence[RunMetrics], foreseen: Forecast, closed_form_s: float) -> ArmScore:
    """Set one arm's forecast against its repeats."""
    nothing = Estimate(0.0, 0.0, 0.0)
    stages = dict.fromkeys(stage for one in repeats for stage in costs_of(one.stages_s))
    stages |= dict.fromkeys(costs_of(dict.fromkeys(foreseen.stages_s, 0.0)))
    kinds = dict.fromkeys(kind for one in repeats for kind in one.idle)
    return ArmScore(
        tier=tier,
        arm=arm,
        step=_compared([one.step_s for one in repeats], foreseen.step_s),
        stages={
            stage: _compared([one.stages_s.get(stage, 0.0) for one in repeats], foreseen.stages_s.get(stage, nothing))
            for stage in stages
        },
        idle={
            kind: _compared([one.idle.get(kind, 0.0) for one in repeats], foreseen.idle.get(kind, nothing))
            for kind in kinds
        },
        throughput=_compared([one.throughput for one in repeats], foreseen.throughput),
        waste=_compared(list(map(_wasted, repeats)), estimate(list(map(_wasted, foreseen.each)))),
        lags=Lags(measured=_lags(repeats), predicted=_lags(foreseen.each)),
        closed_form_s=closed_form_s,
        extrapolating=foreseen.extrapolating,
    )


def _compared(repeats: Sequence[float], value: Estimate) -> Compared:
    return Compared(repeats=tuple(repeats), value=value.value, low=value.low, high=value.high)


def _wasted(measures: RunMetrics) -> float:
    return sum(measures.waste.get(cause, 0.0) for cause in WASTED)


def _lags(runs: Sequence[RunMetrics]) -> dict[int, float]:
    """Return the mean share of each lag over runs."""
    lags = sorted({lag for run in runs for lag in run.lags})
    return {lag: fmean(run.lags.get(lag, 0.0) for run in runs) for lag in lags}


def _change_scores(
    plan: ChangePlan, measured: Measured, figures: Mapping[str, Sequence[RunMetrics]], replays: Sequence[Replay]
) -> tuple[ChangeScore, ...]:
    """Set the replays, change by change and run by run of the arm that they start from, against what was measured."""

    def step_times(arm: str) -> dict[tuple[str, int], float]:
        pairs = zip(measured.held_out[arm], figures[arm], strict=True)
        return {(run.manifest.experiment, run.manifest.seed): found.step_s for run, found in pairs}

    scores = []
    for number, (arm, settings) in enumerate(plan.changes.items()):
        count = len(measured.held_out[plan.start])
        own = replays[number * count : (number + 1) * count]
        foreseen = [log(replay.ratio) for replay in own]
        seen = paired_log_ratios(step_times(plan.start), step_times(arm))
        interval = t_interval(seen)
        scores.append(
            ChangeScore(
                start=plan.start,
                arm=arm,
                settings=settings,
                predicted=exp(fmean(foreseen)),
                predicted_low=exp(min(foreseen)),
                predicted_high=exp(max(foreseen)),
                measured=exp(fmean(seen)),
                low=exp(interval.low) if interval else None,
                high=exp(interval.high) if interval else None,
                replay_error=max(abs(replay.error) for replay in own),
            )
        )
    return tuple(scores)


def paired_log_ratios(before: Mapping[tuple[str, int], float], after: Mapping[tuple[str, int], float]) -> list[float]:
    """Return log(after / before) of the runs that share experiment and seed, in the order of ``before``.

    Raises:
        UserError: they share none.
    """
    ratios = [log(after[key] / before[key]) for key in before if key in after]
    if not ratios:
        raise UserError(
            "an arm and a change of it have no experiment and seed in common", None, "measure them together"
        )
    return ratios


def _machine(measured: Measured) -> str:
    """Return the fingerprint of the one machine.

    Raises:
        UserError: runs come from several machines, or from another one than the fitted ones.
    """
    found = {str(run.manifest.machine.get("fingerprint")): run for run in (*measured.fitted, *measured.runs)}
    if len(found) > 1:
        what = f"the runs come from {len(found)} machines ({', '.join(found)}): the examination is of one"
        where = str(list(found.values())[-1].folder)
        raise UserError(what, where, "fit and hold out runs of one machine")
    return next(iter(found))


def _experiments(runs: Iterable[Run]) -> tuple[str, ...]:
    return tuple(sorted({f"{run.manifest.scenario}/{run.manifest.experiment}" for run in runs}))
