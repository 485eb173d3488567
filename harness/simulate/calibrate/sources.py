"""Which runs a machine profile may be fitted to: finished ones, of one machine and one set of versions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from harness.core.errors import UserError
from harness.results import Run, find_runs
from harness.simulate.calibrate.observations import run_label

FEWEST_STEPS = 5
"""Training steps beyond warm-up that a run must have, or it is left out."""
SHOWN = 3
_AGAIN = "measure again: python -m harness calibrate --name NAME"


def find_sources(paths: Sequence[Path]) -> list[Run]:
    """Read every run at or below the paths, each once: a folder may be named twice, and an experiment may have a copy.

    Raises:
        UserError: there is no run there, or one is damaged.
    """
    runs: dict[tuple[str, str], Run] = {}
    for path in paths:
        found, damaged = find_runs(path)
        if damaged:
            first = damaged[0].error
            raise UserError(first.what, first.where, "take that folder away, or name others with --from")
        runs |= {(run_label(run), run.manifest.started_at): run for run in found}
    return list(runs.values())


def check_runs(runs: Sequence[Run], exclude_models: Collection[str] = ()) -> tuple[list[Run], list[Run]]:
    """Return the training runs and the transport sweeps that a profile can be fitted to.

    Raises:
        UserError: none is left, one was simulated, slowed down or knows no lengths, they are of several machines or
            versions, or none is of a model that is to be left out.
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
    delayed = [run for run in training if any((run.setting("faults.delays") or {}).values())]
    _refuse(delayed, "was slowed down on purpose (faults.delays)")
    _check_alike([*training, *sweeps])
    _check_models(exclude_models, {model_of(run) for run in training})
    kept = [run for run in training if model_of(run) not in exclude_models]
    enough = [run for run in kept if _steps(run) >= FEWEST_STEPS]
    if not enough:
        most = max(map(_steps, kept))
        what = f"no run has {FEWEST_STEPS} training steps beyond warm-up; the longest has {most}"
        raise UserError(what, "--from", "calibrate from longer runs: --set steps=16")
    return enough, sweeps


def _check_models(excluded: Collection[str], there: Collection[str]) -> None:
    unknown = [name for name in excluded if name not in there]
    there_are = f"there are: {', '.join(sorted(there))}"
    if unknown:
        raise UserError(f"no run is of the model {unknown[0]!r}", "--exclude-model", there_are)
    if not set(there) - set(excluded):
        raise UserError(f"without {', '.join(excluded)} no run is left", "--exclude-model", there_are)


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


def model_of(run: Run) -> str:
    """Return the name of a run's model, as ``harness.simulate.circumstances.model_name`` has it."""
    named = run.setting("model.preset") or run.setting("model.path") or run.setting("model.type")
    return str(named).rstrip("/").rsplit("/", 1)[-1]
