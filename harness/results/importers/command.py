"""Import one log into a run folder: all of it, or nothing is written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import harness
from harness.core.errors import UserError
from harness.results import Manifest, RunFolder, experiment_name
from harness.results.anonymous import safe_name
from harness.results.importers.convert import Converted, Converter, devices_of
from harness.results.importers.entry import Crosswalk
from harness.results.importers.logs import Log, read_log
from harness.results.importers.open_instruct import OPEN_INSTRUCT
from harness.results.importers.points import Points, collect
from harness.results.importers.trl import TRL
from harness.results.importers.verl import ASYNCHRONOUS_SIGNS, VERL, VERL_ASYNCHRONOUS
from harness.results.writer import timestamp, utc_now

CROSSWALKS = {crosswalk.trainer: crosswalk for crosswalk in (VERL, TRL, OPEN_INSTRUCT)}
DOCUMENTED = (VERL, VERL_ASYNCHRONOUS, TRL, OPEN_INSTRUCT)


@dataclass(frozen=True)
class Imported:
    """A finished import.

    Attributes:
        folder: the new run folder.
        asynchronous: whether verl's generation time was read as waiting.
        devices: on which the run ran, or None.
    """

    folder: Path
    log: Log
    points: Points
    rows: Converted
    asynchronous: bool
    devices: int | None


def import_run(
    trainer: str,
    path: Path,
    out: Path,
    *,
    name: str | None = None,
    devices: int | None = None,
    seed: int = 0,
    asynchronous: bool = False,
    validation: str | None = None,
) -> Imported:
    """Read the log of another trainer into a new run folder below ``out``.

    Args:
        trainer: ``verl``, ``trl`` or ``open-instruct``.
        path: a file, or a folder with event files or a ``trainer_state.json``.
        name: of the scenario that the run is filed under; default: the trainer's.
        devices: on which the run ran, where the log cannot tell.
        asynchronous: verl only: its generation time is the trainer's wait for the next batch.
        validation: the log's name that is the validation reward.

    Raises:
        UserError: the log cannot be read, is of another trainer, or the folder cannot be written. Nothing is written.
    """
    log = read_log(path)
    crosswalk = CROSSWALKS[trainer]
    points = collect(log, crosswalk, str(path))
    asynchronous = asynchronous or (trainer == "verl" and _looks_asynchronous(points))
    if asynchronous and trainer == "verl":
        crosswalk = VERL_ASYNCHRONOUS
    devices = devices_of(points, crosswalk, devices)
    if validation is not None and validation not in points.names:
        raise UserError(
            f"the log has no {validation!r}", where="--validation", fix=_validation_names(points, crosswalk)
        )
    rows = Converter(crosswalk, devices, validation).convert(points, str(path))
    scenario = name or trainer
    about = {"trainer": trainer, "format": log.form, "sha256": log.digest, "devices": devices}
    if trainer == "verl":
        about["asynchronous"] = asynchronous
    manifest = _manifest(scenario, about, points, rows, seed)
    folder = _write(out, scenario, manifest, rows, sentences(log, points, rows))
    return Imported(folder, log, points, rows, asynchronous, devices)


def sentences(log: Log, points: Points, rows: Converted) -> list[str]:
    """Return what came of the names and what was left out, one sentence each."""
    said = [f"{len(rows.translated)} names translated, {len(rows.kept)} kept as imported/<name>"]
    if rows.steps_per_row and rows.steps_per_row > 1:
        said.append(f"each row is the mean over {rows.steps_per_row} training steps, as the log has it")
    if not rows.seconds_known:
        said.append("the log does not tell how long a step took: its seconds are 0 here, which means unknown")
    if points.non_finite:
        said.append(_counted(points.non_finite, "number", "NaN, infinite or null") + "; kept as NaN")
    if points.not_numbers:
        said.append("left out: " + _counted(points.not_numbers, "value", "no number"))
    counts = (
        (log.others, "left out: {} values of TensorBoard that are no scalars"),
        (points.without_step, "left out: {} records without a step"),
        (rows.bad_seconds, "{} times were negative or not finite, and count as unknown"),
        (points.replaced, "{} numbers were logged again and otherwise for the same step; the later ones count"),
        (points.backwards, "the log goes back to an earlier step {} times, as that of a resumed run does"),
    )
    said += [text.format(count) for count, text in counts if count]
    return said + [f"left out: {what}" for what in log.cut_off]


def _counted(counter: Counter[str], noun: str, what: str) -> str:
    total = sum(counter.values())
    names = [name for name, _ in counter.most_common(3)]
    more = ", ..." if len(counter) > len(names) else ""
    verb = f"{noun} was" if total == 1 else f"{noun}s were"
    return f"{total} {verb} {what} ({', '.join(names)}{more})"


def _looks_asynchronous(points: Points) -> bool:
    return any(name.startswith(ASYNCHRONOUS_SIGNS) for name in points.names)


def _validation_names(points: Points, crosswalk: Crosswalk) -> str:
    names = sorted(name for name in points.names if crosswalk.is_validation(name))
    return f"one of {', '.join(names[:5])}" if names else "leave it out: the log has no evaluations"


def _manifest(scenario: str, about: dict[str, Any], points: Points, rows: Converted, seed: int) -> Manifest:
    """Return the manifest of the run. It does not name the log: such names often hold a host's or a person's."""
    unknown = f"imported from a log of {about['trainer']}"
    facts = about | {"steps_per_row": rows.steps_per_row, "seconds_known": rows.seconds_known}
    facts |= {"translated": sorted(rows.translated), "kept": sorted(rows.kept), "run_totals": points.run_totals}
    machine = {"cpu": None, "cores": None, "memory_gib": None, "gpus": None}
    fingerprint = f"unknown-{about['sha256'][:8]}"  # no two logs count as of one kind of machine
    missing = dict.fromkeys(machine, unknown)
    return Manifest(
        scenario=scenario,
        experiment="",
        started_at="",
        status="completed",
        seed=seed,
        versions={"harness": harness.__version__},
        machine=machine | {"fingerprint": fingerprint, "missing": missing},
        outcome={"steps_done": rows.last_step, "elapsed_s": rows.elapsed_s, "imported": facts},
    )


def _write(out: Path, scenario: str, manifest: Manifest, rows: Converted, said: list[str]) -> Path:
    """Write the run beside its place and move it there in one step."""
    now = utc_now()
    experiment = experiment_name(out, scenario, now)
    target = out / safe_name(scenario) / experiment
    try:
        out.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".import-", dir=out))
    except OSError as error:
        raise _cannot_write(out, error) from error
    try:
        folder = _write_draft(draft, scenario, experiment, manifest, rows, said, now)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, target)
    except OSError as error:
        raise _cannot_write(out, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _write_draft(
    draft: Path, scenario: str, experiment: str, manifest: Manifest, rows: Converted, said: list[str], now: datetime
) -> Path:
    at = timestamp(now)
    with RunFolder.create(draft, scenario, experiment, None) as folder:
        for row in rows.rows:
            folder.append_step(row)
        for sentence in said:
            folder.log(sentence)
        folder.flush()
        folder.write_manifest(replace(manifest, experiment=experiment, started_at=at, finished_at=at))
        return folder.folder


def _cannot_write(out: Path, error: OSError) -> UserError:
    what = f"cannot write to the results folder {str(out)!r}: {error.strerror or error}"
    return UserError(what, where=str(out), fix="choose a folder you can write to with -o DIR")
