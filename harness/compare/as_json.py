"""The comparison for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from harness.compare.attribution import LaneAccount
from harness.compare.caveats import caveats, unlike
from harness.compare.experiments import Experiment, Variant
from harness.compare.figures import RunFigures
from harness.compare.findings import findings
from harness.compare.gates import GateResult
from harness.compare.imported import imported_comparison
from harness.compare.pareto import Axis, pareto, pareto_json
from harness.compare.replay import REPLAY_LINES
from harness.compare.rewards import reward_difference, target_times
from harness.compare.step_times import step_ratio
from harness.compare.tables import OFF_POLICY_LINES, OUTCOME_LINES
from harness.compare.verdicts import Judgement, judgements
from harness.results import DamagedRun
from harness.results.rows import with_nulls

SCHEMA, SCHEMA_VERSION = "harness.comparison", 2


def comparison(
    experiments: Sequence[Experiment],
    damaged: Sequence[DamagedRun],
    judge: Callable[[Experiment], Sequence[Judgement]] = judgements,
    result: GateResult | None = None,
    axes: tuple[Axis, Axis] | None = None,
) -> dict[str, Any]:
    """Return the whole comparison as plain values: every experiment, oldest first, and the runs that cannot be read.

    Args:
        judge: returns the verdicts on an experiment.
        result: what the gate says of the newest experiment; None where none was asked for.
        axes: two figures to set against each other; None where that was not asked for.
    """
    whole = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "campaigns": [_experiment(experiment, judge(experiment), axes) for experiment in experiments],
        "gate": None if result is None else asdict(result),
        "cautions": unlike([run for experiment in experiments for run in experiment.runs]),
        "damaged": [{"folder": str(item.folder), "problem": item.error.what} for item in damaged],
    }
    return with_nulls(whole)


def _experiment(experiment: Experiment, judged: Sequence[Judgement], axes: tuple[Axis, Axis] | None) -> dict[str, Any]:
    of_logs = imported_comparison(experiment, judged)
    return {
        "scenario": experiment.scenario,
        "simulated": experiment.simulated,
        "campaign": experiment.name,
        "folder": str(experiment.folder),
        "started_at": experiment.started_at,
        "variants": [_variant(experiment, variant) for variant in experiment.variants],
        "verdicts": [asdict(judgement) for judgement in judged],
        **({} if of_logs is None else {"imported": asdict(of_logs)}),
        "findings": [finding.text for finding in findings(experiment)],
        "cautions": caveats(experiment),
    } | ({} if axes is None else {"pareto": pareto_json(pareto(experiment, axes))})


def _variant(experiment: Experiment, variant: Variant) -> dict[str, Any]:
    base = experiment.variants[0]
    difference = None if variant is base else reward_difference(experiment, base, variant)
    against = None if difference is None else {"baseline": base.name} | asdict(difference)
    times = target_times(variant)
    return {
        "name": variant.name,
        "runs": [_run(run) for run in variant.runs],
        "step_ratio": None if variant is base else step_ratio(base, variant),
        "reward_last_difference": against,
        "time_to_target": None if times is None else asdict(times),
    }


def _run(run: RunFigures) -> dict[str, Any]:
    return {
        "seed": run.manifest.seed,
        "status": run.status,
        "planned_steps": run.planned_steps,
        "reward_target": run.reward_target,
        "fingerprint": run.manifest.machine.get("fingerprint"),
        "figures": {line.key: line.get(run) for line in (*OUTCOME_LINES, *OFF_POLICY_LINES, *REPLAY_LINES)},
        "warm_up": asdict(run.warm_up),
        "window": None if run.window is None else asdict(run.window),
        "step": {"mean_s": run.step_s} | (asdict(run.single_steps) if run.single_steps else {}),
        "all_stages": asdict(run.all_stages),
        "stages": {stage.value: asdict(figures) for stage, figures in run.stages.items()},
        "lanes": {lane: _lane(account) for lane, account in run.lanes.items()},
        "ledger": None if run.ledger is None else asdict(run.ledger),
        "overlap": None if run.overlap is None else asdict(run.overlap),
        "held_back": None if run.blocked_time is None else asdict(run.blocked_time),
        "sync": None if run.sync is None else asdict(run.sync),
    }


def _lane(account: LaneAccount) -> dict[str, Any]:
    stages_s = {stage.value: ns / 1e9 for stage, ns in account.stages_ns.items()}
    return {"wall_s": account.wall_ns / 1e9, "stages_s": stages_s, "unattributed_s": account.unattributed_ns / 1e9}
