"""Runs made from plain values, without a folder: what a remark or a verdict reads of a run, with known numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.compare.experiment import Experiment, Member, experiment_of
from harness.compare.run_frame import SpanTimes, figures_of
from harness.core.trace import Stage
from harness.core.types import RankStep
from harness.results import Manifest, Run
from harness.results.frames import Column, RunTable
from harness.results.occupancy import LaneAccount
from harness.results.rows import WarmUp

MACHINE = {"cpu": "Abacus 3000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "0123456789ab"}


def made_run(
    arm: str | None = "a",
    seed: int = 0,
    steps: int = 4,
    *,
    wall_s: float | Sequence[float] = 1.0,
    stages_s: Mapping[str, float | Sequence[float]] | None = None,
    metrics: Mapping[str, Sequence[float] | Column] | None = None,
    evaluations: Mapping[int, tuple[float, float]] | None = None,
    prompts: int = 256,
    settings: Mapping[str, Any] | None = None,
    status: str = "completed",
    warm_up: WarmUp | None = None,
    times: SpanTimes | None = None,
    ranks: Sequence[tuple[RankStep, ...]] = (),
    columns: Mapping[str, Sequence[float]] | None = None,
    flags: Sequence[str] = (),
    figures: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> Member:
    """Return a run that no step of is warm-up, unless ``flags`` say so.

    Args:
        wall_s: of each step, or of all.
        stages_s: seconds of each stage in every step, or step by step.
        metrics: values of the training steps, each of count 1 and a mean; or the columns.
        evaluations: step to (validation reward, response length).
        columns: of the steps, that stand in place of those that follow from the others.
        flags: of each step: ``w`` in it marks warm-up, ``p`` a profiled step.
        figures: that stand in place of those of the rows.
        manifest: fields of it beside arm and seed.
    """
    walls = np.broadcast_to(np.asarray(wall_s, dtype=np.float64), steps).copy()
    places, zeros = np.arange(steps, dtype=np.float64), np.zeros(steps)
    of_steps = {"step": places, "version": places + 1, "wall_s": walls, "elapsed_s": np.cumsum(walls)}
    of_steps["optimizer_steps"] = zeros + 1
    of_steps |= {f"timing_s/{stage}": zeros + np.asarray(seconds) for stage, seconds in (stages_s or {}).items()}
    for name, letter in (("is_warmup", "w"), ("is_profiled", "p")):
        of_steps[name] = np.array([float(letter in flag) for flag in flags]) if flags else zeros
    of_steps |= {name: np.asarray(values, dtype=np.float64) for name, values in (columns or {}).items()}
    at = [*(evaluations or {})]
    elapsed = np.concatenate([[0.0], of_steps["elapsed_s"]])[at] if at else np.empty(0)
    evaluated = {"version": np.array(at, dtype=np.float64), "step": np.array(at, dtype=np.float64)}
    rewards, lengths = ([pair[which] for pair in (evaluations or {}).values()] for which in (0, 1))
    about: dict[str, Any] = {
        "scenario": "made",
        "experiment": "20261120-111500",
        "started_at": "2026-11-20T11:15:00.000Z",
    }
    about |= {"machine": MACHINE, "threads": 2, "commit": "abcdef1", "interleaving": "step"} | manifest
    run = Run(
        folder=Path("made", arm or "run", str(seed)),
        manifest=Manifest(arm=arm, seed=seed, status=status, **about),
        status=status,
        steps=(),
        evaluations=(),
        tail=None,
        warm_up=warm_up or WarmUp(0, True),
    )
    vars(run)["settings"] = dict(settings or {})
    table = RunTable(
        run=run,
        steps=of_steps,
        metrics={name: _column(values) for name, values in (metrics or {}).items()},
        evaluated=evaluated | {"elapsed_s": elapsed},
        validation={
            "validation/reward": _column(rewards, prompts),
            "validation/response_length": _column(lengths, prompts),
        },
        lags=({},) * steps,
        optimizer_steps=({},) * steps,
        ranks=tuple(ranks) or ((),) * steps,
        version_changes=(),
    )
    return Member(table, times, figures_of(table, times) | dict(figures or {}))


def _column(values: Sequence[float] | Column, count: int = 1) -> Column:
    if isinstance(values, Column):
        return values
    known = np.asarray(values, dtype=np.float64)
    return Column(known, np.full(len(known), float(count)), "mean")


def made_experiment(*members: Member) -> Experiment:
    """Arrange runs; their arms come by ``position`` and then by name."""
    return experiment_of(Path("made"), members)


def seeds_of(arm: str, rewards: Sequence[float], **fields: Any) -> list[Member]:
    """Return a run for each seed, from a reward of 0.4 to this one."""
    return [
        made_run(arm, seed, evaluations={0: (0.4, 9.0), 4: (reward, 9.0)}, **fields)
        for seed, reward in enumerate(rewards)
    ]


def lanes(
    wall_s: float, worked_s: float, busy_s: float, together_s: float, exposed: Mapping[str, float], **work: float
) -> SpanTimes:
    """Return what spans say: of each lane its seconds of work, and seconds on the critical path by stage."""
    accounts = {
        lane: LaneAccount(lane, round(wall_s * 1e9), {Stage.UPDATE: round(own * 1e9)}, round((wall_s - own) * 1e9))
        for lane, own in work.items()
    }
    on_path = {stage: round(seconds * 1e9) for stage, seconds in exposed.items()}
    return SpanTimes((0, round(wall_s * 1e9)), accounts, accounts, {}, on_path, worked_s, busy_s, together_s, None)
