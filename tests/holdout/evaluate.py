"""The examination itself: fit, predict every held-out arm and every change, set them against what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from harness.compare.stats.intervals import t_interval
from harness.core.errors import UserError
from harness.core.experiment import NAMING
from harness.core.spawn_pool import spawn_pool
from harness.results import Run
from harness.simulate.calibrate.fit import fit
from harness.simulate.forecast import DRAWS, Estimate, Forecast, estimate, forecast
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import RunMetrics, costs_of, metrics_of_run, step_time, table_of_rows
from harness.simulate.whatif.answer import what_if
from tests.holdout.baselines import Baselines, FittedRun, fitted_run, peak_gb_s, peak_gflop_s
from tests.holdout.plan import ChangePlan, Measured, Plan
from tests.holdout.summary import (
    ArmScore,
    ChangeScore,
    Compared,
    Document,
    Lags,
    choices,
    ranking,
    rounded,
    tier_score,
)

WASTED = ("failed", "dropped", "unused")
"""Causes of waste that add up; what was evicted unused is a part of ``unused``."""
LENGTH_OF_RUN = ("steps", "evaluation", *NAMING, "seed", "blocks")


class Replay(NamedTuple):
    """Step time after over before, and by which share the replay of the run as it was misses the run."""

    ratio: float
    error: float


def evaluate(plan: Plan, measured: Measured, *, draws: int = DRAWS, seed: int = 0) -> Document:
    """Carry out the examination, in a process for each core. The same runs, draws and seed give the same document.

    Raises:
        UserError: the fitted runs cannot tell what a held-out arm needs, or the runs are not of one machine.
    """
    figures = {arm: [metrics_of_run(run) for run in runs] for arm, runs in measured.held_out.items()}
    known = [fitted_run(run) for run in measured.fitted]
    presets = (None, *dict.fromkeys(preset for tier in plan.tiers.values() for preset in tier.without.values()))
    places = [(name, arm, tier.without.get(arm)) for name, tier in plan.tiers.items() for arm in tier.arms]
    replayed = [
        (run, changed) for changed in plan.whatif.changes.values() for run in measured.held_out[plan.whatif.start]
    ]
    with spawn_pool() as pool:
        runs = (*measured.fitted, *measured.syncs)
        machines = dict(zip(presets, pool.map(_fitted, [runs] * len(presets), presets), strict=True))
        scenarios, fits = zip(*((measured.scenarios[arm], machines[preset]) for _, arm, preset in places), strict=True)
        forecasts = pool.map(partial(forecast, draws=draws, seed=seed), scenarios, fits)
        replays = list(pool.map(partial(_replay, machine=machines[None]), *zip(*replayed, strict=True)))
        scores = []
        for (name, arm, preset), foreseen in zip(places, forecasts, strict=True):
            allowed = [item for item in known if preset is None or item.preset != preset]
            baselines = Baselines(allowed, machines[preset], peak_gflop_s(allowed), peak_gb_s(measured.syncs))
            scores.append(arm_score(name, arm, figures[arm], foreseen, baselines.predict(measured.scenarios[arm])))
    once: dict[str, ArmScore] = {}  # every arm, as predicted in the first tier that has it: with all that may be fitted
    for score in scores:
        once.setdefault(score.arm, score)
    models = {arm: str(getattr(one.model, "preset", one.model.type)) for arm, one in measured.scenarios.items()}
    return rounded(
        Document(
            chosen=plan.chosen,
            fitted=_experiments(measured.fitted),
            held_out=_experiments(measured.runs),
            machine=_machine(measured),
            draws=draws,
            seed=seed,
            coverage_bounds=plan.bounds.coverage,
            stage_bound=plan.bounds.stage,
            arms=tuple(scores),
            tiers=tuple(
                tier_score(name, tier, [score for score in scores if score.tier == name])
                for name, tier in plan.tiers.items()
            ),
            ranking=ranking(list(once.values()), plan.bounds.kendall_tau),
            choices=choices(list(once.values()), models),
            changes=_change_scores(plan.whatif, measured, figures, replays),
            notes=_notes(plan, measured, known),
        )
    )


def _fitted(runs: Sequence[Run], preset: str | None) -> MachineProfile:
    """Fit to what may be seen: all fitted runs, or those of other models than a preset."""
    name = "holdout" if preset is None else f"holdout-without-{preset}"
    return fit(runs, name, exclude_models=() if preset is None else (preset,)).profile


def _replay(run: Run, settings: Sequence[str], machine: MachineProfile) -> Replay:
    """Ask ``whatif`` about a recorded run; how far its replay is off is shown, so it is no reason to refuse here."""
    answer = what_if(run, settings, machine=machine, bound=float("inf"), with_gains=False)
    return Replay(answer.ratio, answer.error)


def arm_score(
    tier: str, arm: str, repeats: Sequence[RunMetrics], foreseen: Forecast, baselines: Mapping[str, float | None]
) -> ArmScore:
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
        baselines=dict(baselines),
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


def _notes(plan: Plan, measured: Measured, known: Sequence[FittedRun]) -> tuple[str, ...]:
    """Return what a reader has to know: what was fitted, what is new, and what is not."""
    repeats = sorted({len(runs) for runs in measured.held_out.values()})
    gflop_s, gb_s = peak_gflop_s(known), peak_gb_s(measured.syncs)
    peaks = [
        f"{gflop_s:.1f} x 10^9 operations a second, of the fastest updates" if gflop_s else "no operations",
        f"{gb_s:.1f} x 10^9 bytes a second, read and written, of the fastest plain copy" if gb_s else "no bytes",
    ]
    said = [
        f"{len(measured.runs)} held-out runs of {len(measured.held_out)} arms, {' or '.join(map(str, repeats))} "
        f"repeats each; {len(measured.fitted)} fitted runs of other experiments. Errors are against the mean of the "
        "repeats; intervals are those of a single run.",
        "Stages are scored where they make up 5% of the measured step or more. Repeats of an arm, and stages of a run, "
        "share what the machine did and what was predicted: counts inside intervals are of fewer things than they "
        "seem.",
        f"Peaks of the roofline, as measured: {' and '.join(peaks)}.",
    ]
    for arm, runs in measured.held_out.items():
        twins = [run for run in measured.fitted if _but_for_length(run) == _but_for_length(runs[0])]
        if twins:
            fitted_s, held_s = (fmean(step_time(table_of_rows(run.steps)) for run in alike) for alike in (twins, runs))
            said.append(
                f"{arm} has the settings of the fitted arm {twins[0].manifest.arm}, the number of steps and "
                f"evaluations apart: it examines other runs, not other settings. The fitted runs took {fitted_s:.3f} s "
                f"a step, the held-out ones {held_s:.3f} s: these {100 * (fitted_s / held_s - 1):+.1f}% are the "
                "machine's, before anything is predicted."
            )
    if measured.syncs:
        said.append(
            "No fitted training run has a transport of the tier `transport`: what these cost comes from isolated "
            f"weight syncs ({', '.join(_experiments(measured.syncs))}), with nothing else at work."
        )
    dropped = [f"{arm} ({preset})" for tier in plan.tiers.values() for arm, preset in tier.without.items()]
    if dropped:
        said.append(f"Fitted without any run of the arm's own model: {', '.join(dropped)}.")
    return tuple(said)


def _but_for_length(run: Run) -> dict[str, object]:
    return {key: value for key, value in run.settings.items() if key not in LENGTH_OF_RUN}
