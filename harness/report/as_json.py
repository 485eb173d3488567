"""The comparison for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.compare.environment import unlike
from harness.compare.experiment import Experiment, Member
from harness.compare.gates import GateResult
from harness.compare.judging import Judgement, direction, fair_direction, judgements
from harness.compare.remarks import remarks_of
from harness.compare.remarks.answer import reward_difference
from harness.compare.run_frame import EXPOSED, OFF_POLICY, OUTCOME, RAN, REPLAY, TIMING, TOTAL
from harness.compare.stats.verdicts import STEP
from harness.compare.steadiness import step_ratio
from harness.compare.syncs import Syncs, syncs_of
from harness.results import DamagedRun
from harness.results.frames import stages_in
from harness.results.occupancy import LaneAccount
from harness.results.rows import with_nulls

SCHEMA, SCHEMA_VERSION = "harness.comparison", 3


def comparison(
    experiments: Sequence[Experiment],
    damaged: Sequence[DamagedRun],
    judge: Callable[[Experiment], Sequence[Judgement]] = judgements,
    result: GateResult | None = None,
) -> dict[str, Any]:
    """Return the whole comparison as plain values: every experiment, oldest first, and the runs that cannot be read.

    Args:
        judge: returns the verdicts on an experiment.
        result: what the gate says of the newest experiment; None where none was asked for.
    """
    whole = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "campaigns": [_experiment(experiment, judge(experiment)) for experiment in experiments],
        "gate": None if result is None else asdict(result),
        "cautions": unlike([member for experiment in experiments for member in experiment.members]),
        "damaged": [{"folder": str(item.folder), "problem": item.error.what} for item in damaged],
    }
    return with_nulls(whole)


def _experiment(experiment: Experiment, judged: Sequence[Judgement]) -> dict[str, Any]:
    remarks = remarks_of(experiment, judged)
    findings = [
        {"key": each.key, "text": f"{each.text} {each.command}".strip()} for each in remarks if each.kind != "caution"
    ]
    return {
        "scenario": experiment.scenario,
        "simulated": experiment.simulated,
        "campaign": experiment.name,
        "folder": str(experiment.folder),
        "started_at": experiment.started_at,
        "variants": [_arm(experiment, arm) for arm in experiment.arms],
        "verdicts": [_judgement(judgement) for judgement in judged],
        "findings": findings,
        "cautions": [each.text for each in remarks if each.kind == "caution"],
    }


def _judgement(judgement: Judgement) -> dict[str, Any]:
    every = [asdict(effect) | {"direction": direction(effect)} for effect in judgement.effects]
    step = next(place for place, effect in enumerate(every) if effect["name"] == STEP)
    floor, facts = judgement.noise_floor, asdict(judgement)
    del facts["effects"]
    return facts | {
        "fairness": facts["fairness"] | {"direction": fair_direction(judgement)},
        "noise_floor": None if floor is None else asdict(floor) | {"direction": direction(floor)},
        "endpoint": every[0] if step else None,
        "step": every[step],
        "stages": every[step + 1 :],
    }


def _arm(experiment: Experiment, arm: str) -> dict[str, Any]:
    base = experiment.labels[0]
    difference = None if arm == base else reward_difference(experiment, base, arm)
    return {
        "name": arm,
        "runs": [_run(member) for member in experiment.arms[arm]],
        "step_ratio": None if arm == base else step_ratio(experiment, base, arm),
        "reward_last_difference": None if difference is None else {"baseline": base} | asdict(difference),
    }


def _run(member: Member) -> dict[str, Any]:
    figures, table, times, syncs = member.figures, member.table, member.times, syncs_of(member.table)
    step = {"mean_s": figures.get("step_s")}
    spread = {"p10_s": "step_s_p10", "median_s": "median_step_s", "p90_s": "step_s_p90"}
    overlap = ("worked_s", "busy_s", "together_s")
    return {
        "seed": member.manifest.seed,
        "status": member.run.status,
        "planned_steps": figures["planned_steps"],
        "reward_target": figures["reward_target"],
        "fingerprint": member.manifest.machine.get("fingerprint"),
        "figures": {figure.key: figures.get(figure.key) for figure in (*OUTCOME, *OFF_POLICY, *REPLAY)},
        "warm_up": asdict(table.run.warm_up),
        "window": _window(member),
        "step": step | {name: figures[column] for name, column in spread.items() if column in figures},
        "stages": {stage.value: _stage(figures, stage.value) for stage in stages_in(figures)},
        "exposed_s": {name.removeprefix(EXPOSED): value for name, value in figures.items() if name.startswith(EXPOSED)},
        "lanes": {} if times is None else {lane: _lane(account) for lane, account in times.lanes.items()},
        "ledger": None if table.run.ledger is None else asdict(table.run.ledger),
        "overlap": None if times is None else {name: getattr(times, name) for name in overlap},
        "held_back": None if times is None or times.blocked is None else asdict(times.blocked),
        "sync": None if syncs is None else asdict(syncs) | _sync_seconds(syncs),
    }


def _window(member: Member) -> dict[str, Any] | None:
    figures, table = member.figures, member.table
    if "first_measured" not in figures:
        return None
    names = {"first": "first_measured", "last": "last_measured", "steps": "measured_steps", "all_steps": "steps"}
    seconds = float(table.wall_s[table.is_measured].sum())
    return {name: figures[key] for name, key in names.items()} | {"seconds": seconds}


def _stage(figures: Mapping[str, Any], stage: str) -> dict[str, Any]:
    mean_s, step_s = figures[TIMING + stage], figures.get("step_s")
    share = mean_s / step_s if step_s else 0.0
    return {"mean_s": mean_s, "steps": figures[RAN + stage], "share": share, "total_s": figures[TOTAL + stage]}


def _sync_seconds(syncs: Syncs) -> dict[str, Any]:
    return {"seconds": {part: own.tolist() for part, own in syncs.seconds.items()}, "whole_s": syncs.whole_s.tolist()}


def _lane(account: LaneAccount) -> dict[str, Any]:
    stages_s = {stage.value: ns / 1e9 for stage, ns in account.stages_ns.items()}
    return {"wall_s": account.wall_ns / 1e9, "stages_s": stages_s, "unattributed_s": account.unattributed_ns / 1e9}
