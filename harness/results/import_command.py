"""``python -m harness import TRAINER [NAME=]LOG...``: metric logs of verl, TRL or open-instruct become run folders.

Several logs are the arms of one experiment. All of it, or nothing is written. Exit codes: 0 fine; 2 bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness.core.arguments import from_1, out_argument
from harness.core.errors import UserError
from harness.core.installation import as_typed
from harness.core.terminal_text import plain
from harness.results import Manifest, RunFolder, experiment_name
from harness.results.anonymous import safe_name
from harness.results.importers.trainers import ASYNCHRONOUS_SIGNS, CROSSWALKS, VERL_ASYNCHRONOUS, Crosswalk
from harness.results.writer import timestamp, utc_now

if TYPE_CHECKING:
    from harness.results.importers.convert import Converted, Points
    from harness.results.importers.logs import Log

DESCRIPTION = "Read metric logs of another trainer into run folders, for compare and report."
EXAMPLES = """examples:
  python -m harness import verl colocated=a.jsonl split=b.jsonl --machine our-8xH100
  python -m harness.compare results/
  python -m harness import trl checkpoints/trainer_state.json --name gsm8k

docs/importing.md has every name and unit.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("trainer", choices=sorted(CROSSWALKS), help="who wrote the logs")
    parser.add_argument(
        "logs",
        metavar="[NAME=]LOG",
        nargs="+",
        help="JSON lines, trainer_state.json, event file, CSV export, printed log, or a folder with one run; several "
        "are the arms of one experiment, each called NAME (default: as its file)",
    )
    out_argument(parser, Path("results"), "results folder (default: results)", ["-o"])
    parser.add_argument("--name", type=_name, help="scenario to file it under; default: the trainer's name")
    parser.add_argument(
        "--machine", metavar="NAME", type=_name, help="where it ran; runs of one NAME count as of one machine"
    )
    parser.add_argument("--devices", metavar="N", type=from_1, help="devices of each run, if its log does not tell")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the runs; default: 0")
    parser.add_argument(
        "--asynchronous", action="store_true", help="verl: timing_s/gen is the trainer's wait for its next batch"
    )
    parser.add_argument("--validation", metavar="NAME", help="the name in the log that is the validation reward")
    parser.add_argument("--run", metavar="NAME", help="the run to take of a CSV export with the columns of several")


def run(options: argparse.Namespace) -> int:
    """Import the logs and print what came of them.

    Raises:
        UserError: as ``import_logs``, or an arm has no name, or the name of another.
    """
    folder, arms = import_logs(
        options.trainer,
        arms_of(options.logs),
        options.out,
        name=options.name,
        machine=options.machine,
        devices=options.devices,
        seed=options.seed,
        asynchronous=options.asynchronous,
        validation=options.validation,
        run=options.run,
    )
    lines = []
    for arm in arms:
        counts = f"{arm.rows.steps} training rows and {arm.rows.evaluations} evaluations of a {options.trainer} run"
        lines.append(f"imported {counts}{'' if arm.name is None else f' as {arm.name}'}")
        lines += [f"  {sentence}" for sentence in arm.sentences()]
    if len(arms) > 1:
        lines += ["one run each, not repeated; they count as run on one machine", f"experiment: {folder}"]
        lines.append(as_typed(f"compare them: python -m harness compare {folder}"))
    else:
        lines.append(f"run folder: {folder if arms[0].name is None else folder / safe_name(arms[0].name)}")
    print("\n".join(map(plain, lines)))
    return 0


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a name must not be empty")
    return text


def arms_of(typed: Sequence[str]) -> dict[str | None, Path]:
    """Return the logs by the names of their arms: NAME=LOG, or of several the file's name; one alone needs none.

    Raises:
        UserError: two arms have one name, or one has none.
    """
    arms: dict[str | None, Path] = {}
    for text in typed:
        before, equals, after = text.partition("=")
        if not equals or os.path.exists(text):  # a path may have an = in it
            before, after = Path(text).stem if len(typed) > 1 else "", text
        elif not before.strip() or not after.strip():
            raise UserError(f"{text!r} is not NAME=LOG", where=text, fix="name the arm, as in colocated=a.jsonl")
        name = before.strip() or None
        if any(safe_name(name or "") == safe_name(other or "") for other in arms):
            raise UserError(f"two arms are called {name!r}", where=text, fix="name each: NAME=LOG NAME=LOG")
        arms[name] = Path(after)
    return arms


@dataclass(frozen=True)
class Imported:
    """A log that was read.

    Attributes:
        name: of the arm; None where it is the only run.
        crosswalk: by which it was read; verl's differ in what generation time means.
        devices: on which the run ran, or None.
    """

    name: str | None
    log: Log
    crosswalk: Crosswalk
    points: Points
    rows: Converted
    devices: int | None

    @property
    def is_asynchronous(self) -> bool:
        """Whether verl's generation time was read as waiting."""
        return self.crosswalk is VERL_ASYNCHRONOUS

    def sentences(self) -> list[str]:
        """Return what came of the names and what was left out, one sentence each."""
        log, points, rows = self.log, self.points, self.rows
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
            said.append(
                f"{count} validation figures, none taken as validation/reward: {shown}; --validation NAME chooses"
            )
        said += sorted(rows.cautions)
        if points.steps_from:
            said.append(STEPS_FROM[points.steps_from])
        if rows.steps_per_row and rows.steps_per_row > 1:
            said.append(f"each row is the mean over {rows.steps_per_row} training steps, as the log has it")
        if not rows.seconds_known:
            said.append("the log does not tell how long a step took: its seconds are 0 here, which means unknown")
        if self.crosswalk.no_timers and not rows.has_stages:
            said.append(self.crosswalk.no_timers)
        if points.non_finite:
            said.append(_counted(points.non_finite, "number", "NaN, infinite or null") + "; kept as NaN")
        if points.not_numbers:
            said.append("left out: " + _counted(points.not_numbers, "value", "no number"))
        if points.without_step:
            said.append("left out: " + _counted(points.without_step, "record", "without a step"))
        counts = (
            (points.foreign, "left out: {} records with no name that the trainer writes"),
            (rows.bad_seconds, "{} times were negative or not finite, and count as unknown"),
            (points.replaced, "{} numbers were logged again and otherwise for the same step; the later ones count"),
            (points.backwards, "the log goes back to an earlier step {} times, as that of a resumed run does"),
        )
        said += [text.format(count) for count, text in counts if count]
        said += [f"left out: {what}" for what in log.left_out]
        if self.crosswalk.trainer == "verl":
            meaning = (
                "waiting for the next batch (asynchronous)" if self.is_asynchronous else "generation (synchronous)"
            )
            said.append(f"timing_s/gen was read as {meaning}")
        return said if self.devices is None else [*said, f"devices: {self.devices}"]


def import_logs(
    trainer: str,
    arms: Mapping[str | None, Path],
    out: Path,
    *,
    name: str | None = None,
    machine: str | None = None,
    devices: int | None = None,
    seed: int = 0,
    asynchronous: bool = False,
    validation: str | None = None,
    run: str | None = None,
) -> tuple[Path, list[Imported]]:
    """Read logs of another trainer into a new experiment below ``out``, and return its folder and what was read.

    Args:
        trainer: ``verl``, ``trl`` or ``open-instruct``.
        arms: name -> a file, or a folder with event files, a ``trainer_state.json`` or exported tables. A single log
            without a name is a run without an arm, and its folder the run's.
        name: of the scenario that they are filed under; default: the trainer's.
        machine: where they ran: runs of the same name count as of one machine. None: no other runs do.
        devices: on which each ran, where the log cannot tell.
        asynchronous: verl only: its generation time is the trainer's wait for the next batch.
        validation: the name in the log that is the validation reward.
        run: which one, where an exported table has the columns of several.

    Raises:
        UserError: a log cannot be read, is of another trainer, or the folder cannot be written. Nothing is written.
    """
    read = [_read(arm, path, trainer, devices, asynchronous, validation, run) for arm, path in arms.items()]
    logs = "".join(arm.log.digest for arm in read)
    fingerprint = f"named-{_digest(machine)}" if machine else f"unknown-{_digest(logs) if len(read) > 1 else logs[:8]}"
    scenario = name or trainer
    manifests = [_manifest(arm, scenario, place, seed, fingerprint) for place, arm in enumerate(read)]
    return _write(out, scenario, read, manifests), read


def _read(
    arm: str | None,
    path: Path,
    trainer: str,
    devices: int | None,
    asynchronous: bool,
    validation: str | None,
    run: str | None,
) -> Imported:
    from harness.results.importers.convert import collect, convert, devices_of  # and with them pandas
    from harness.results.importers.logs import read_log

    log, crosswalk = read_log(path, run), CROSSWALKS[trainer]
    points = collect(log, crosswalk, str(path))
    if trainer == "verl" and (asynchronous or any(each.startswith(ASYNCHRONOUS_SIGNS) for each in points.names)):
        crosswalk = VERL_ASYNCHRONOUS
    devices = devices_of(points, crosswalk, devices)
    if validation is not None and validation not in points.names:
        names = sorted(each for each in points.names if each.startswith(crosswalk.validation))
        fix = f"one of {len(names)}: {_first(names, 5)}" if names else "leave it out: the log has no evaluations"
        raise UserError(f"the log has no {validation!r}", where="--validation", fix=fix)
    return Imported(arm, log, crosswalk, points, convert(points, crosswalk, str(path), devices, validation), devices)


STEPS_FROM = {
    "_step": "the steps are _step, with which Weights & Biases counts records; they may differ from training steps",
    "rows": "no record has a step: the rows are counted from 1, and each may stand for several training steps; the "
    "trainer_state.json or the tracker's files have the real ones",
}


def _first(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _counted(counter: Counter[str], noun: str, what: str) -> str:
    total = sum(counter.values())
    verb = f"{noun} was" if total == 1 else f"{noun}s were"
    return f"{total} {verb} {what} ({_first([name for name, _ in counter.most_common()])})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]


def _manifest(arm: Imported, scenario: str, position: int, seed: int, fingerprint: str) -> Manifest:
    """Return the manifest of a run. It names neither log nor machine: such names often hold a host's or a person's."""
    rows = arm.rows
    facts: dict[str, Any] = {
        "trainer": arm.crosswalk.trainer,
        "format": arm.log.form,
        "sha256": arm.log.digest,
        "devices": arm.devices,
    }
    if arm.crosswalk.trainer == "verl":
        facts["asynchronous"] = arm.is_asynchronous
    facts |= {"steps_per_row": rows.steps_per_row, "seconds_known": rows.seconds_known}
    facts |= {"translated": sorted(rows.translated), "kept": sorted(rows.kept), "run_totals": arm.points.run_totals}
    machine: dict[str, Any] = {"cpu": None, "cores": None, "memory_gib": None, "gpus": None}
    missing = dict.fromkeys(machine, f"imported from a log of {arm.crosswalk.trainer}")
    return Manifest(
        scenario=scenario,
        experiment="",
        started_at="",
        arm=arm.name,
        position=None if arm.name is None else position,
        status="completed",
        seed=seed,
        versions={"harness": harness.__version__},
        machine=machine | {"fingerprint": fingerprint, "missing": missing},
        outcome={"steps_done": rows.last_step, "elapsed_s": rows.elapsed_s, "imported": facts},
    )


def _write(out: Path, scenario: str, arms: Sequence[Imported], manifests: Sequence[Manifest]) -> Path:
    """Write the experiment beside its place and move it there in one step; return its folder."""
    now = utc_now()
    experiment, at = experiment_name(out, scenario, now), timestamp(now)
    target = out / safe_name(scenario) / experiment
    temporary = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".import-", dir=out))
        for arm, manifest in zip(arms, manifests, strict=True):
            with RunFolder.create(temporary, scenario, experiment, arm.name) as folder:
                for row in arm.rows.rows:
                    folder.append(row)
                for sentence in arm.sentences():
                    folder.log(sentence)
                folder.flush()
                folder.write_manifest(replace(manifest, experiment=experiment, started_at=at, finished_at=at))
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(temporary / safe_name(scenario) / experiment, target)
    except OSError as error:
        what = f"cannot write to the results folder {str(out)!r}: {error.strerror or error}"
        raise UserError(what, where=str(out), fix="choose a folder you can write to with --out DIR") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target
