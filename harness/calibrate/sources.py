"""Which runs a machine profile may be fitted to: finished ones, of one machine and one set of versions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from harness.calibrate.observations import run_label
from harness.errors import UserError
from harness.results import Run, find_runs

FEWEST_STEPS = 5
"""Training steps beyond warm-up that a run must have, or it is left out."""
SHOWN = 3
_AGAIN = "measure again: python -m harness calibrate --name NAME"


def find_sources(paths: Sequence[Path]) -> list[Run]:
    """Read every run at or below the paths.

    Raises:
        UserError: there is no run there, or one is damaged.
    """
    runs: list[Run] = []
    for path in paths:
        found, damaged = find_runs(path)
        if damaged:
            first = damaged[0].error
            raise UserError(first.what, first.where, "take that folder away, or name others with --from")
        runs += found
    return runs


def check_runs(runs: Sequence[Run], exclude_models: Collection[str] = ()) -> tuple[list[Run], list[Run]]:
    """Return the training runs and the transport sweeps that a profile can be fitted to.

    Raises:
        UserError: none is left, one was simulated or knows no lengths, or they are of several machines or versions.
    """
    finished = [run for run in runs if run.status == "completed"]
    if not finished:
        raise UserError(f"none of {len(runs)} runs was completed", "--from", _AGAIN)
    _refuse([run for run in finished if run.manifest.simulated], "was simulated, and teaches nothing of a machine")
    sweeps = [run for run in finished if run.syncs]
    training = [run for run in finished if not run.syncs]
    if not training:
        raise UserError("only transport sweeps were given, and they train nothing", "--from", "add training runs")
    _refuse([run for run in training if not run.groups()], "was recorded before lengths were (it has no groups.jsonl)")
    _check_alike([*training, *sweeps])
    kept = [run for run in training if _model(run) not in exclude_models]
    if not kept:
        names = ", ".join(sorted({_model(run) for run in training}))
        raise UserError(f"without {', '.join(exclude_models)} no run is left", "--exclude-model", f"there are: {names}")
    enough = [run for run in kept if _steps(run) >= FEWEST_STEPS]
    if not enough:
        most = max(map(_steps, kept))
        what = f"no run has {FEWEST_STEPS} training steps beyond warm-up; the longest has {most}"
        raise UserError(what, "--from", "calibrate from longer runs: --set steps=16")
    return enough, sweeps


def _refuse(runs: Sequence[Run], why: str) -> None:
    if runs:
        others = f" (and {len(runs) - 1} more)" if len(runs) > 1 else ""
        raise UserError(
            f"the run {run_label(runs[0])}{others} {why}", str(runs[0].folder), f"leave it out, or {_AGAIN}"
        )


def _check_alike(runs: Sequence[Run]) -> None:
    machines = {str(run.manifest.machine.get("fingerprint")): run_label(run) for run in runs}
    if len(machines) > 1:
        told = "; ".join(f"{mark} ({label})" for mark, label in list(machines.items())[:SHOWN])
        raise UserError(f"the runs are of {len(machines)} machines: {told}", "--from", "name runs of one machine")
    for package in sorted({name for run in runs for name in run.manifest.versions}):
        found = {version: run_label(run) for run in runs if (version := run.manifest.versions.get(package))}
        if len(found) > 1:
            told = "; ".join(f"{version} ({label})" for version, label in list(found.items())[:SHOWN])
            raise UserError(
                f"the runs used several versions of {package}: {told}", "--from", "name runs of one version"
            )


def _steps(run: Run) -> int:
    return sum(not (row.warmup or row.profiled) for row in run.steps)


def _model(run: Run) -> str:
    named = run.setting("model.preset") or run.setting("model.path") or run.setting("model.type")
    return str(named).rstrip("/").rsplit("/", 1)[-1]
