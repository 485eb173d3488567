"""From recorded runs to a machine profile."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from harness.core.errors import UserError
from harness.results import Run
from harness.simulate.calibrate.effects import costs_of_other_transports, fit_contention, run_correlation
from harness.simulate.calibrate.exchange import CollectiveTimes, fit_collectives, fit_exchange
from harness.simulate.calibrate.observations import (
    FEWEST_STEPS,
    Observation,
    check_runs,
    model_of,
    observe,
    observe_sweep,
    recorded_lengths,
)
from harness.simulate.calibrate.stages import fit_stages
from harness.simulate.machine import OCCASION_LOG_SD, Device, MachineProfile, rounded
from harness.simulate.recorded_run import run_label


@dataclass(frozen=True)
class Calibration:
    """A profile and the spans that it was fitted to."""

    profile: MachineProfile
    observations: tuple[Observation, ...]


def fit(
    runs: Sequence[Run],
    name: str,
    *,
    exclude_models: Collection[str] = (),
    collectives: Sequence[CollectiveTimes] = (),
) -> Calibration:
    """Fit a machine profile to recorded runs: training runs, and transport sweeps for further transports.

    Args:
        runs: of one machine and one set of versions.
        name: of the profile.
        exclude_models: models whose runs are left out.
        collectives: measured between ranks of this machine.

    Raises:
        UserError: there is no run left, or they are not of one machine and version, or they cannot be used.
    """
    training, sweeps = check_runs(runs, exclude_models)
    found = tuple(item for run in training for item in observe(run))
    syncs = [item for run in sweeps for item in observe_sweep(run)]
    stages = fit_stages(found)
    others, notes = costs_of_other_transports(syncs, found, stages)
    stages += others
    facts = training[0].manifest.machine
    cores = int(facts.get("cores") or 1)
    machine = f"{facts.get('cpu') or 'a machine'} with {cores} core{'s' if cores != 1 else ''}, measured"
    contention, said = fit_contention(found, stages, cores)
    own = facts.get("fingerprint")
    if strangers := [each.machine for each in collectives if each.machine != own]:
        what = f"collectives are of the machine {strangers[0]}, and the runs of {own}"
        raise UserError(what, "--from", "name collectives and runs of one machine")
    stages += fit_collectives(collectives)
    of_ranks = [run for run in training if (run.setting("placement.learner.ranks") or 1) > 1]
    exchanges, told = fit_exchange(of_ranks, found, stages, contention)
    stages += exchanges
    excluded = [f"runs of the model {model} were left out of the fit" for model in sorted(exclude_models)]
    folders = {
        run.folder for run in (*training, *sweeps)
    }  # of models that were left out on purpose nothing more is said
    count = sum(run.folder not in folders and model_of(run) not in exclude_models for run in runs)
    why = f"not completed, or fewer than {FEWEST_STEPS} training steps beyond warm-up"
    unused = [f"{count} of {len(runs)} runs could not be used: {why}"] if count else []
    profile = MachineProfile(
        name=name,
        description=machine,
        origin="measured",
        made=max(run.manifest.started_at for run in training)[:10],
        device=Device(
            name=str(facts.get("cpu") or "unknown"),
            fingerprint=facts.get("fingerprint"),
            gpus=len(facts.get("gpus") or ()),
            memory_gib=float(facts["memory_gib"]) if facts.get("memory_gib") else None,
        ),
        versions={name: version for name, version in training[0].manifest.versions.items() if version is not None},
        sources=tuple(sorted(run_label(run) for run in (*training, *sweeps))),
        notes=(*excluded, *unused, *notes, *said, *told),
        occasion_log_sd=OCCASION_LOG_SD,
        run_correlation=rounded(run_correlation(found, stages)),
        contention=contention,
        startup_s=_startups(training),
        stages=tuple(stages),
        lengths=tuple(recorded_lengths(training)),
    )
    return Calibration(profile, found)


def _startups(runs: Sequence[Run]) -> dict[Literal["in_process", "actors"], float]:
    """Return the median seconds of a start-up by where the parts ran; a warm start is in the first one only."""
    found: dict[Literal["in_process", "actors"], list[float]] = {}
    for run in runs:
        in_process, seconds = run.setting("transport.type") == "in_process", run.manifest.startup_s
        if seconds is not None:
            found.setdefault("in_process" if in_process else "actors", []).append(seconds)
    return {place: rounded(median(values)) for place, values in found.items()}
