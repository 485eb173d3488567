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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness.core.arguments import from_1, out_argument
from harness.core.errors import UserError
from harness.core.installation import as_typed
from harness.core.terminal_text import plain
from harness.results import EvaluationRow, Manifest, RunFolder, StepRow, experiment_name
from harness.results.anonymous import safe_name
from harness.results.importers.trainers import ASYNCHRONOUS_SIGNS, CROSSWALKS, VERL_ASYNCHRONOUS, Crosswalk
from harness.results.writer import cannot_write, timestamp, utc_now

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
        UserError: an arm has no name or that of another, a log cannot be read or is of another trainer, or the folder
            cannot be written; nothing is written then.
    """
    reading = {key: getattr(options, key) for key in ("devices", "asynchronous", "validation", "run")}
    arms = [read_arm(path, options.trainer, name, **reading) for name, path in arms_of(options.logs).items()]
    folder = write_experiment(arms, options.out, options.name or options.trainer, options.machine, options.seed)
    lines = []
    for arm in arms:
        kinds = Counter(type(row) for row in arm.rows.rows)
        counts = f"{kinds[StepRow]} training rows and {kinds[EvaluationRow]} evaluations of a {options.trainer} run"
        lines.append(f"imported {counts}{'' if arm.name is None else f' as {arm.name}'}")
        lines += [f"  {note}" for note in arm.notes]
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

    @property
    def notes(self) -> list[str]:
        """What came of the names and what was left out, one sentence each."""
        notes = [*self.rows.notes, *self.points.notes, *(f"left out: {what}" for what in self.log.left_out)]
        if self.crosswalk.trainer == "verl":
            read_as = (
                "waiting for the next batch (asynchronous)" if self.is_asynchronous else "generation (synchronous)"
            )
            notes.append(f"timing_s/gen was read as {read_as}")
        return notes if self.devices is None else [*notes, f"devices: {self.devices}"]

    def manifest(self, scenario: str, seed: int, fingerprint: str) -> Manifest:
        """Return the manifest of the run. It names neither log nor machine, whose names may hold a host's or person's.

        Args:
            fingerprint: of the machine.
        """
        facts: dict[str, Any] = {"trainer": self.crosswalk.trainer, "format": self.log.form, "sha256": self.log.digest}
        facts |= {"devices": self.devices}
        if self.crosswalk.trainer == "verl":
            facts["asynchronous"] = self.is_asynchronous
        facts |= {"steps_per_row": self.rows.steps_per_row, "seconds_known": self.rows.seconds_known}
        facts |= {"translated": sorted(self.rows.translated), "kept": sorted(self.rows.kept)}
        facts |= {"run_totals": self.points.run_totals}
        machine: dict[str, Any] = {"cpu": None, "cores": None, "memory_gib": None, "gpus": None}
        missing = dict.fromkeys(machine, f"imported from a log of {self.crosswalk.trainer}")
        rows = self.rows.rows
        steps_done = max((row.version for row in rows if isinstance(row, StepRow)), default=0)
        return Manifest(
            scenario=scenario,
            experiment="",
            started_at="",
            arm=self.name,
            status="completed",
            seed=seed,
            versions={"harness": harness.__version__},
            machine=machine | {"fingerprint": fingerprint, "missing": missing},
            outcome={"steps_done": steps_done, "elapsed_s": rows[-1].elapsed_s if rows else 0.0, "imported": facts},
        )


def read_arm(
    path: Path,
    trainer: str,
    name: str | None = None,
    *,
    devices: int | None = None,
    asynchronous: bool = False,
    validation: str | None = None,
    run: str | None = None,
) -> Imported:
    """Read a log of another trainer.

    Args:
        path: a file, or a folder with event files, a ``trainer_state.json`` or exported tables.
        trainer: ``verl``, ``trl`` or ``open-instruct``.
        name: of the arm; None for a run without arms.
        devices: on which it ran, where the log cannot tell.
        asynchronous: verl only: its generation time is the trainer's wait for the next batch.
        validation: the name in the log that is the validation reward.
        run: which one, where an exported table has the columns of several.

    Raises:
        UserError: it cannot be read, or is of another trainer.
    """
    from harness.results.importers.convert import collect, convert, devices_of  # and with them pandas
    from harness.results.importers.logs import read_log

    log, crosswalk = read_log(path, run), CROSSWALKS[trainer]
    points = collect(log, crosswalk, str(path))
    if trainer == "verl" and (asynchronous or any(each.startswith(ASYNCHRONOUS_SIGNS) for each in points.names)):
        crosswalk = VERL_ASYNCHRONOUS
    devices = devices_of(points, crosswalk, devices)
    return Imported(name, log, crosswalk, points, convert(points, crosswalk, str(path), devices, validation), devices)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]


def write_experiment(
    arms: Sequence[Imported], out: Path, scenario: str, machine: str | None = None, seed: int = 0
) -> Path:
    """Write a new experiment below ``out`` and return its folder, which of a single run without an arm is the run's.

    It is made beside its place and moved there in one step.

    Args:
        scenario: name that the runs are filed under.
        machine: where they ran: runs of the same name count as of one machine. None: no other runs do.

    Raises:
        UserError: it cannot be written. Nothing is left then.
    """
    logs = "".join(arm.log.digest for arm in arms)
    fingerprint = f"named-{_digest(machine)}" if machine else f"unknown-{_digest(logs) if len(arms) > 1 else logs[:8]}"
    now = utc_now()
    experiment, at = experiment_name(out, scenario, now), timestamp(now)
    target = out / safe_name(scenario) / experiment
    temporary = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".import-", dir=out))
        for position, arm in enumerate(arms):
            manifest = replace(
                arm.manifest(scenario, seed, fingerprint),
                experiment=experiment,
                started_at=at,
                finished_at=at,
                position=None if arm.name is None else position,
            )
            with RunFolder.create(temporary, scenario, experiment, arm.name) as folder:
                folder.append(*arm.rows.rows)
                for note in arm.notes:
                    folder.log(note)
                folder.flush()
                folder.write_manifest(manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(temporary / safe_name(scenario) / experiment, target)
    except OSError as error:
        raise cannot_write(out, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target
