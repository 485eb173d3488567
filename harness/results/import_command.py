"""``python -m harness import TRAINER PATH``: the metric log of verl, TRL or open-instruct becomes a run folder.

All of it, or nothing is written. Exit codes: 0 fine; 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import harness
from harness.core.arguments import from_1, out_argument
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.results import Manifest, RunFolder, experiment_name
from harness.results.anonymous import safe_name
from harness.results.importers.convert import Converted, Converter, Points, collect, devices_of
from harness.results.importers.logs import Log, read_log
from harness.results.importers.trainers import ASYNCHRONOUS_SIGNS, CROSSWALKS, VERL_ASYNCHRONOUS, Crosswalk
from harness.results.writer import timestamp, utc_now

DESCRIPTION = "Read the metric log of another trainer into a run folder, for compare and report."
EXAMPLES = """example:
  python -m harness import verl logs/gsm8k.jsonl --out results/ --name gsm8k_verl
  python -m harness.compare results/

docs/importing.md has every name and unit.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("trainer", choices=sorted(CROSSWALKS), help="who wrote the log")
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="JSON lines, trainer_state.json, event file, CSV export, printed log, or a folder with one run",
    )
    out_argument(parser, Path("results"), "results folder (default: results)", ["-o"])
    parser.add_argument("--name", type=_name, help="scenario to file it under; default: the trainer's name")
    parser.add_argument("--devices", metavar="N", type=from_1, help="devices of the run, if the log does not tell")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the run; default: 0")
    parser.add_argument(
        "--asynchronous", action="store_true", help="verl: timing_s/gen is the trainer's wait for its next batch"
    )
    parser.add_argument("--validation", metavar="NAME", help="the name in the log that is the validation reward")
    parser.add_argument("--run", metavar="NAME", help="the run to take of a CSV export with the columns of several")


def run(options: argparse.Namespace) -> int:
    """Import the log and print what came of it.

    Raises:
        UserError: see ``import_run``.
    """
    done = import_run(
        options.trainer,
        options.path,
        options.out,
        name=options.name,
        devices=options.devices,
        seed=options.seed,
        asynchronous=options.asynchronous,
        validation=options.validation,
        run=options.run,
    )
    rows = done.rows
    lines = [f"imported {rows.steps} training rows and {rows.evaluations} evaluations of a {options.trainer} run"]
    lines += [f"  {sentence}" for sentence in sentences(done.log, done.points, rows)]
    if options.trainer == "verl":
        meaning = "waiting for the next batch (asynchronous)" if done.asynchronous else "generation (synchronous)"
        lines.append(f"  timing_s/gen was read as {meaning}")
    if done.devices is not None:
        lines.append(f"  devices: {done.devices}")
    print("\n".join(plain(line) for line in [*lines, f"run folder: {done.folder}"]))
    return 0


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a name must not be empty")
    return text


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
    run: str | None = None,
) -> Imported:
    """Read the log of another trainer into a new run folder below ``out``.

    Args:
        trainer: ``verl``, ``trl`` or ``open-instruct``.
        path: a file, or a folder with event files, a ``trainer_state.json`` or exported tables.
        name: of the scenario that the run is filed under; default: the trainer's.
        devices: on which the run ran, where the log cannot tell.
        asynchronous: verl only: its generation time is the trainer's wait for the next batch.
        validation: the name in the log that is the validation reward.
        run: which one, where an exported table has the columns of several.

    Raises:
        UserError: the log cannot be read, is of another trainer, or the folder cannot be written. Nothing is written.
    """
    log = read_log(path, run)
    crosswalk = CROSSWALKS[trainer]
    points = collect(log, crosswalk, str(path))
    asynchronous = asynchronous or (trainer == "verl" and any(n.startswith(ASYNCHRONOUS_SIGNS) for n in points.names))
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
    if rows.kept:
        said[0] += f" ({_first(sorted(rows.kept))})"
    if rows.missing:
        looked = "; ".join(
            f"{name} ({_first(theirs) or 'no name of the trainer'})" for name, theirs in rows.missing.items()
        )
        said.append(f"not in the log, with the names that were looked for: {looked}")
    if rows.validations:
        count, shown = len(rows.validations), _first(rows.validations, 5)
        said.append(f"{count} validation figures, none taken as validation/reward: {shown}; --validation NAME chooses")
    said += sorted(rows.cautions)
    if points.steps_from:
        said.append(STEPS_FROM[points.steps_from])
    if rows.steps_per_row and rows.steps_per_row > 1:
        said.append(f"each row is the mean over {rows.steps_per_row} training steps, as the log has it")
    if not rows.seconds_known:
        said.append("the log does not tell how long a step took: its seconds are 0 here, which means unknown")
    if points.non_finite:
        said.append(_counted(points.non_finite, "number", "NaN, infinite or null") + "; kept as NaN")
    if points.not_numbers:
        said.append("left out: " + _counted(points.not_numbers, "value", "no number"))
    if points.without_step:
        said.append("left out: " + _counted(points.without_step, "record", "without a step"))
    counts = (
        (log.others, "left out: {} values of TensorBoard that are no scalars"),
        (points.foreign, "left out: {} records with no name that the trainer writes"),
        (rows.bad_seconds, "{} times were negative or not finite, and count as unknown"),
        (points.replaced, "{} numbers were logged again and otherwise for the same step; the later ones count"),
        (points.backwards, "the log goes back to an earlier step {} times, as that of a resumed run does"),
    )
    said += [text.format(count) for count, text in counts if count]
    return said + [f"left out: {what}" for what in log.left_out]


STEPS_FROM = {
    "_step": "the steps are _step, with which Weights & Biases counts records; they may differ from training steps",
    "rows": "no record has a step: the rows are counted from 1, and each may stand for several training steps; the "
    "trainer_state.json or the tracker's files have the real ones",
}


def _first(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _counted(counter: Counter[str], noun: str, what: str) -> str:
    total = sum(counter.values())
    names = _first([name for name, _ in counter.most_common()])
    verb = f"{noun} was" if total == 1 else f"{noun}s were"
    return f"{total} {verb} {what} ({names})"


def _validation_names(points: Points, crosswalk: Crosswalk) -> str:
    names = sorted(name for name in points.names if crosswalk.is_validation(name))
    return f"one of {len(names)}: {_first(names, 5)}" if names else "leave it out: the log has no evaluations"


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
        temporary = Path(tempfile.mkdtemp(prefix=".import-", dir=out))
    except OSError as error:
        raise _cannot_write(out, error) from error
    try:
        folder = _write_folder(temporary, scenario, experiment, manifest, rows, said, now)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, target)
    except OSError as error:
        raise _cannot_write(out, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _write_folder(
    temporary: Path, scenario: str, experiment: str, manifest: Manifest, rows: Converted, said: list[str], now: datetime
) -> Path:
    at = timestamp(now)
    with RunFolder.create(temporary, scenario, experiment, None) as folder:
        for row in rows.rows:
            folder.append(row)
        for sentence in said:
            folder.log(sentence)
        folder.flush()
        folder.write_manifest(replace(manifest, experiment=experiment, started_at=at, finished_at=at))
        return folder.folder


def _cannot_write(out: Path, error: OSError) -> UserError:
    what = f"cannot write to the results folder {str(out)!r}: {error.strerror or error}"
    return UserError(what, where=str(out), fix="choose a folder you can write to with --out DIR")
