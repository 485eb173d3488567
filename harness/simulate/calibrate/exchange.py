"""What ranks cost each other: collectives measured by themselves, and how much longer a stage is by those of a mode.

The seconds y of a stage that ranks share out, at the speed v of its run and beside the other ranks' work, are

    y / (v c) = p + a s + b u

with p the seconds of the rank that has most to compute, at the fitted cost of one process, c what ranks at work on
the same cores slow each other down by, s the seconds of the collectives by themselves and u their number. v is how the
sampling of the same run, which nothing is beside, compares with the fitted cost. a and b are not below 0, and are
fitted by least squares of relative errors to recorded runs of several ranks. ``exchange`` in the profile is a s + b u.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.results import Run
from harness.results.jsonl import read_json
from harness.scenario.derived import threads_on
from harness.simulate.calibrate.effects import run_speeds
from harness.simulate.calibrate.least_squares import FitShape, covariance_of
from harness.simulate.calibrate.observations import COLLECTIVES_FILE, Observation, ObservedRun
from harness.simulate.calibrate.stages import fit_stage, fitted_cost
from harness.simulate.cost_model import CostModel, model_name
from harness.simulate.machine import Contention, Device, MachineProfile, StageCost
from harness.simulate.ranks import COLLECTIVES, EXCHANGE, WITH_RANKS, Collective, RankCosts
from harness.simulate.recorded_run import run_label

SCHEMA, SCHEMA_VERSION = "harness.collectives", 1
PIECES = 3
"""A size counts as the medians of so many pieces of its repeats, so that a fit knows how sure it is."""
FEATURES = ("collective_s", "unit")
LEAST_SD = 0.05
"""Relative spread of a run around the fit, where few runs show less."""


@dataclass(frozen=True)
class CollectiveTimes:
    """Measured collectives of one machine.

    Attributes:
        machine: its fingerprint.
        versions: of the packages.
        device: ``cpu`` or ``cuda``.
        ranks: that took part.
        times: ``name``, ``bytes`` of the whole tensor, and ``seconds`` of each repeat.
    """

    machine: str
    versions: dict[str, str]
    device: str
    ranks: int
    times: Sequence[dict[str, Any]]


def save_collectives(found: CollectiveTimes, folder: Path) -> Path:
    """Write measured collectives into a new folder; return it."""
    folder.mkdir(parents=True)
    header = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}
    with whole_file(folder / COLLECTIVES_FILE) as stream:
        stream.write((json.dumps(header | vars(found), indent=1) + "\n").encode())
    return folder


def find_collectives(paths: Sequence[Path]) -> list[CollectiveTimes]:
    """Read all measured collectives at or below the paths.

    Raises:
        UserError: a file is of another version, or no such file.
    """
    files = {
        file.resolve()
        for path in paths
        for file in ([path] if path.name == COLLECTIVES_FILE else sorted(path.rglob(COLLECTIVES_FILE)))
    }
    found = []
    for file in sorted(files):
        data = read_json(file, dict[str, Any])
        if (data.get("schema"), data.get("schema_version")) != (SCHEMA, SCHEMA_VERSION):
            raise UserError(f"{file} is of another version than {SCHEMA_VERSION}", str(file), "measure again")
        found.append(read_json(file, CollectiveTimes))
    return found


def fit_collectives(measured: Sequence[CollectiveTimes]) -> list[StageCost]:
    """Return the seconds of a hop and of a GB for each collective that was measured; all within a machine."""
    spans: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for number, each in enumerate(measured):
        where = {"device": each.device, "link": "machine"}
        for row in each.times:
            units = Collective(row["name"], each.ranks, each.ranks, row["bytes"] / 1e9, 1).units
            seconds = [float(median(piece)) for piece in np.array_split(row["seconds"], PIECES) if len(piece)]
            spans[each.device, row["name"]] += [
                Observation(row["name"], where, "", units, taken, f"collectives {number}", "collectives", place)
                for place, taken in enumerate(seconds)
            ]
    return [
        fit_stage(spans[device, name], FitShape((name,), (), ("hop", "gb")), {"device": device, "link": "machine"})
        for device, name in sorted(spans)
        if name in COLLECTIVES
    ]


class RankSpan(NamedTuple):
    """A stage that ranks shared out, as recorded and as priced.

    Attributes:
        seconds: recorded, over the speed of the run and what ranks slow each other down by.
        computing_s: priced, of the rank that has most.
        features: of the exchange.
    """

    run: str
    seconds: float
    computing_s: float
    features: dict[str, float]


def rank_spans(
    run: Run, stages: Sequence[StageCost], contention: Contention, speed: float
) -> Iterator[tuple[str, RankSpan]]:
    """Yield the stages of a recorded run of several ranks whose exchange is of one mode, with it.

    Args:
        stages: fitted costs of one process, and of collectives.
        speed: of the run.

    Raises:
        UserError: a cost that is needed was not fitted.
    """
    observed = ObservedRun(run)
    scenario, gpus = observed.scenario, len(run.manifest.machine.get("gpus") or ())
    device, sources = Device(name="-", gpus=gpus), ("-",)
    machine = MachineProfile(
        name="being fitted", made="-", device=device, sources=sources, contention=contention, stages=tuple(stages)
    )
    costs = CostModel(scenario, machine, model=model_name(scenario))
    ranked = RankCosts("learner", costs, observed.work, machine)
    if not gpus:
        ranks, learner = scenario.placement.learner.ranks, scenario.placement.learner
        wanted = ranks * threads_on(contention.cores, scenario, learner)
        speed *= (1 + contention.slowdown * (ranks - 1)) * max(1.0, wanted / contention.cores)
    for span in observed.spans:
        groups = observed.behind(span) if span.stage in WITH_RANKS and observed.counts(span) else []
        shared = ranked.shared(span.stage, span.step, groups) if groups else None
        if shared is not None and len(shared.exchanged) == 1:
            ((mode, features),) = shared.exchanged.items()
            yield mode, RankSpan(observed.label, (span.end_ns - span.start_ns) / 1e9 / speed, shared.pace_s, features)


def fit_exchange(
    runs: Sequence[Run], observations: Sequence[Observation], stages: Sequence[StageCost], contention: Contention
) -> tuple[list[StageCost], list[str]]:
    """Return the cost of the exchange of each mode, and in words how it was found.

    Args:
        runs: of several ranks.
        observations: of all runs, those of several ranks with what is not their Learner's.
        stages: that were fitted to these, and to measured collectives.
        contention: of the machine.

    Raises:
        UserError: no collectives were measured.
    """
    if runs and not any(cost.stage in COLLECTIVES for cost in stages):
        what = "runs of several ranks were given, and no measured collectives"
        raise UserError(
            what, "--from", f"add the folder with {COLLECTIVES_FILE} that calibrate wrote, or leave these runs out"
        )
    speeds = run_speeds(observations, stages)
    by_mode: dict[str, list[RankSpan]] = defaultdict(list)
    for run in runs:
        speed = speeds.get(run_label(run), 1.0)
        for mode, span in rank_spans(run, stages, contention, speed):
            by_mode[mode].append(span)
    costs, notes = [], []
    for mode, spans in sorted(by_mode.items()):
        costs.append(fit_mode(mode, spans))
        count = len({span.run for span in spans})
        notes.append(f"exchange of {mode}: from {len(spans)} spans of {count} run{'s' if count > 1 else ''}")
    return costs, notes


def fit_mode(mode: str, spans: Sequence[RankSpan]) -> StageCost:
    """Fit the exchange of one mode; see the top of this file."""
    total_N = np.array([span.seconds for span in spans])
    units_NK = np.array([[span.features[feature] for feature in FEATURES] for span in spans])
    scale_K = np.maximum(units_NK.max(axis=0), 1e-12)
    rows_NK = units_NK / scale_K / total_N[:, None]
    left_N = 1 - np.array([span.computing_s for span in spans]) / total_N
    b_K = nnls(rows_NK, left_N)[0]
    runs = sorted({span.run for span in spans})
    of_run = [np.array([span.run == run for span in spans]) for run in runs]
    errors = [float((left_N - rows_NK @ b_K)[own].mean()) for own in of_run]
    spread = max(LEAST_SD, (sum(error**2 for error in errors) / max(1, len(runs) - int((b_K > 0).sum()))) ** 0.5)
    means_RK = np.array([rows_NK[own].mean(axis=0) for own in of_run])
    covariance_KK = spread**2 * covariance_of(means_RK, b_K) / np.outer(scale_K, scale_K)
    found = b_K / scale_K, covariance_KK
    return fitted_cost((EXCHANGE, {"mode": mode}), FEATURES, found, [span.features for span in spans])
