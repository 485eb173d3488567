"""The examination itself: fit, predict every held-out arm, set it against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from harness.core.errors import UserError
from harness.results import Run
from harness.scenario import Scenario
from harness.simulate.calibrate.fit import fit
from harness.simulate.forecast import DRAWS, Estimate, Forecast, estimate, forecast
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import RunMetrics, metrics_of_run, step_time
from tests.holdout.baselines import Baselines, costs_of, peak_gb_s, peak_gflop_s
from tests.holdout.changes import change_scores
from tests.holdout.document import ArmScore, Compared, Document, Lags
from tests.holdout.plan import Plan
from tests.holdout.reading import Measured
from tests.holdout.side_by_side import Each, side_by_side
from tests.holdout.summing_up import choices, first_tier_only, ranking, tier_score
from tests.holdout.work import FittedRun, fitted_run

WASTED = ("failed", "dropped", "unused")
"""Causes of waste that add up; what was evicted unused is a part of ``unused``."""
Say = Callable[[str], None]


def examine(
    plan: Plan,
    measured: Measured,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    processes: int | None = None,
    say: Say = lambda line: None,
) -> Document:
    """Carry out the examination. The same runs, draws and seed give the same document.

    Args:
        processes: that work at the same time; None: one for each core.
        say: hears what is being done.

    Raises:
        UserError: the fitted runs cannot tell what a held-out arm needs.
    """
    figures = {arm: [metrics_of_run(run) for run in runs] for arm, runs in measured.held_out.items()}
    known = [fitted_run(run) for run in measured.fitted]
    with side_by_side(processes) as each:
        say("fitting")
        left_out = dict.fromkeys(preset for tier in plan.tiers.values() for preset in tier.without.values())
        presets = (None, *left_out)
        runs = (*measured.fitted, *measured.syncs)
        machines = dict(zip(presets, each(_fitted, [(runs, preset) for preset in presets]), strict=True))
        scores = _scores(plan, measured, known, machines, figures, (draws, seed), each, say)
        say("what-if")
        changes = change_scores(plan.whatif, measured, machines[None], figures, each) if plan.whatif else ()
    tiers = [
        tier_score(name, tier, [score for score in scores if score.tier == name]) for name, tier in plan.tiers.items()
    ]
    return Document(
        chosen=plan.chosen,
        fitted=experiments(measured.fitted),
        held_out=experiments(measured.runs),
        machine=_machine(measured),
        draws=draws,
        seed=seed,
        coverage_bounds=plan.bounds.coverage,
        stage_bound=plan.bounds.stage,
        arms=tuple(scores),
        tiers=tuple(tiers),
        ranking=ranking(first_tier_only(scores), plan.bounds.kendall_tau),
        choices=choices(first_tier_only(scores), _models(measured.scenarios)),
        changes=changes,
        notes=notes(plan, measured, known),
    )


def _scores(
    plan: Plan,
    measured: Measured,
    known: Sequence[FittedRun],
    machines: Mapping[str | None, MachineProfile],
    figures: Mapping[str, Sequence[RunMetrics]],
    draws_and_seed: tuple[int, int],
    each: Each,
    say: Say,
) -> list[ArmScore]:
    """Predict every arm of every tier, from the fit that the tier allows."""
    places = [(name, arm, tier.without.get(arm)) for name, tier in plan.tiers.items() for arm in tier.arms]
    tasks = [(measured.scenarios[arm], machines[preset], *draws_and_seed) for _, arm, preset in places]
    scores = []
    for (name, arm, preset), foreseen in zip(places, each(_forecast, tasks), strict=True):
        say(f"predicted {name}: {arm}")
        allowed = [item for item in known if preset is None or item.preset != preset]
        baselines = Baselines(allowed, machines[preset], peak_gflop_s(allowed), peak_gb_s(measured.syncs))
        scores.append(arm_score(name, arm, figures[arm], foreseen, baselines.predict(measured.scenarios[arm])))
    return scores


def _forecast(task: tuple[Scenario, MachineProfile, int, int]) -> Forecast:
    scenario, machine, draws, seed = task
    return forecast(scenario, machine, draws=draws, seed=seed)


def _fitted(task: tuple[tuple[Run, ...], str | None]) -> MachineProfile:
    """Fit to what may be seen: all fitted runs, or those of other models than a preset."""
    runs, preset = task
    name = "holdout" if preset is None else f"holdout-without-{preset}"
    return fit(runs, name, exclude_models=() if preset is None else (preset,))


def arm_score(
    tier: str, arm: str, repeats: Sequence[RunMetrics], foreseen: Forecast, baselines: Mapping[str, float | None]
) -> ArmScore:
    """Set one arm's forecast against its repeats."""
    nothing = Estimate(0.0, 0.0, 0.0)
    stages = dict.fromkeys(stage for one in repeats for stage in costs_of(one.stages_s))
    stages |= dict.fromkeys(stage for stage in costs_of(dict.fromkeys(foreseen.stages_s, 0.0)))
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


def _lags(runs: Sequence[RunMetrics]) -> dict[str, float]:
    """Mean share of each lag over runs."""
    lags = sorted({lag for run in runs for lag in run.lags})
    return {str(lag): fmean(run.lags.get(lag, 0.0) for run in runs) for lag in lags}


def _models(scenarios: Mapping[str, Scenario]) -> dict[str, str]:
    return {arm: str(getattr(scenario.model, "preset", scenario.model.type)) for arm, scenario in scenarios.items()}


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


def experiments(runs: Iterable[Run]) -> tuple[str, ...]:
    """Return the experiments of runs, as SCENARIO/CAMPAIGN."""
    return tuple(sorted({f"{run.manifest.scenario}/{run.manifest.experiment}" for run in runs}))


def notes(plan: Plan, measured: Measured, known: Sequence[FittedRun]) -> tuple[str, ...]:
    """Return what a reader has to know: what was fitted, what is new, and what is not."""
    repeats = sorted({len(runs) for runs in measured.held_out.values()})
    said = [
        f"{len(measured.runs)} held-out runs of {len(measured.held_out)} arms, {' or '.join(map(str, repeats))} "
        f"repeats each; {len(measured.fitted)} fitted runs of other experiments. Errors are against the mean of the "
        "repeats; intervals are those of a single run.",
        "Stages are scored where they make up 5% of the measured step or more. Repeats of an arm, and stages of a run, "
        "share what the machine did and what was predicted: counts inside intervals are of fewer things than they "
        "seem.",
        _peaks(known, measured.syncs),
    ]
    said += [
        f"{arm} has the settings of the fitted arm {twin}, the number of steps and evaluations apart: it examines "
        f"other runs, not other settings. The fitted runs took {seconds:.3f} s a step, the held-out ones {held:.3f} s: "
        f"these {100 * (seconds / held - 1):+.1f}% are the machine's, before anything is predicted."
        for arm, twin, seconds, held in _twins(measured)
    ]
    if measured.syncs:
        said.append(
            "No fitted training run has a transport of the tier `transport`: what these cost comes from isolated "
            f"weight syncs ({', '.join(experiments(measured.syncs))}), with nothing else at work."
        )
    dropped = [f"{arm} ({preset})" for tier in plan.tiers.values() for arm, preset in tier.without.items()]
    if dropped:
        said.append(f"Fitted without any run of the arm's own model: {', '.join(dropped)}.")
    return tuple(said)


def _peaks(known: Sequence[FittedRun], sweeps: Sequence[Run]) -> str:
    gflop_s, gb_s = peak_gflop_s(known), peak_gb_s(sweeps)
    shown = [
        f"{gflop_s:.1f} x 10^9 operations a second, of the fastest updates" if gflop_s else "no operations",
        f"{gb_s:.1f} x 10^9 bytes a second, read and written, of the fastest plain copy" if gb_s else "no bytes",
    ]
    return f"Peaks of the roofline, as measured: {' and '.join(shown)}."


_LENGTH = ("steps", "evaluation", "name", "description", "seed", "blocks")


def _twins(measured: Measured) -> list[tuple[str, str, float, float]]:
    """Return the held-out arms that have a fitted arm's settings, the run's length apart, and the step time of both."""
    found = []
    for arm, runs in measured.held_out.items():
        settings = _comparable(runs[0])
        alike = [run for run in measured.fitted if _comparable(run) == settings]
        if alike:
            seconds, held = (fmean(step_time(run.steps) for run in repeats) for repeats in (alike, runs))
            found.append((arm, alike[0].manifest.arm or "", seconds, held))
    return found


def _comparable(run: Run) -> dict[str, object]:
    return {key: value for key, value in run.settings.items() if key not in _LENGTH}
