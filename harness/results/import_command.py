"""``python -m harness import TRAINER [NAME=]LOG...``: logs of verl, TRL or open-instruct, and traces, become runs.

Several logs are the arms of one experiment. All of it, or nothing is written. Exit codes: 0 fine; 2 bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import harness
from harness.core.arguments import out_argument
from harness.core.errors import UserError
from harness.core.extras import as_typed
from harness.core.terminal_text import plain
from harness.results import EvaluationRow, Manifest, RunFolder, StepRow, experiment_name, load_run
from harness.results.anonymous import safe_name
from harness.results.importers.trainers import CROSSWALKS, VERL_ASYNC
from harness.results.writer import cannot_write, timestamp, utc_now

if TYPE_CHECKING:
    from harness.results.importers.convert import Converted

TRACE = "trace"
"""In the place of a trainer: the logs are Chrome's trace events."""
MOST_OTHERS = 8
DESCRIPTION = "Read metric logs of another trainer into run folders, for compare and report."
EXAMPLES = """examples:
  python -m harness import verl colocated=a.jsonl split=b.jsonl --machine our-8xH100
  python -m harness compare results/
  python -m harness import trace kineto.json.gz
  python -m harness import trace timeline.json --names ray
  python -m harness import trl checkpoints/trainer_state.json --name gsm8k

docs/importing.md has every name and unit.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "trainer", choices=[*sorted(CROSSWALKS), TRACE], help="who wrote the logs; or that they are traces"
    )
    parser.add_argument(
        "logs",
        metavar="[NAME=]LOG",
        nargs="+",
        help="JSON lines, trainer_state.json, event file, CSV export, printed log, or a folder with one run; several "
        "are the arms of one experiment, each called NAME (default: as its file)",
    )
    out_argument(parser, Path("results"), "results folder (default: results)")
    parser.add_argument("--name", type=_name, help="scenario to file it under; default: the trainer's name")
    parser.add_argument(
        "--machine", metavar="NAME", type=_name, help="where it ran; runs of one NAME count as of one machine"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the runs; default: 0")
    parser.add_argument(
        "--asynchronous", action="store_true", help="verl: timing_s/gen is the trainer's wait for its next batch"
    )
    parser.add_argument("--validation", metavar="NAME", help="the name in the log that is the validation reward")
    parser.add_argument(
        "--names", metavar="FILE", default="torch", help="trace: what its names become: torch (default), ray, or a file"
    )
    parser.add_argument("--run", metavar="NAME", help="the run to take of a CSV export with the columns of several")


def run(options: argparse.Namespace) -> int:
    """Import the logs and print what came of them.

    Raises:
        UserError: an arm has no name or that of another, a log cannot be read or is of another trainer, or the folder
            cannot be written; nothing is written then.
    """
    if options.trainer == TRACE:
        return _import_traces(options)
    from harness.results.importers.convert import convert  # and with it pandas
    from harness.results.importers.logs import read_log

    how = {"asynchronous": options.asynchronous, "validation": options.validation}
    logs = arms_of(options.logs)
    arms = {name: convert(read_log(log, options.run), options.trainer, str(log), **how) for name, log in logs.items()}
    folder = write_experiment(arms, options.out, options.name or options.trainer, options.machine, options.seed)
    lines = []
    for arm, done in arms.items():
        kinds = Counter(type(row) for row in done.rows)
        counts = f"{kinds[StepRow]} training rows and {kinds[EvaluationRow]} evaluations from {options.trainer}"
        lines += [f"imported {counts}{'' if arm is None else f' as {arm}'}", *(f"  {note}" for note in done.notes)]
    if len(arms) > 1:
        lines += ["one run each, not repeated; they count as run on one machine", f"experiment: {folder}"]
        lines.append(as_typed(f"compare them: python -m harness compare {folder}"))
    else:
        (arm,) = arms
        lines.append(f"run folder: {folder if arm is None else folder / safe_name(arm)}")
    print("\n".join(map(plain, lines)))
    return 0


def _import_traces(options: argparse.Namespace) -> int:
    """Make a recording of each trace, and of that a run."""
    from harness.results.importers.trace_events import import_trace, read_names

    names, logs, scenario = read_names(options.names), arms_of(options.logs), options.name or TRACE
    experiment = experiment_name(options.out, scenario, utc_now())
    home = options.out / safe_name(scenario) / experiment
    for position, (arm, trace) in enumerate(logs.items()):
        folder = home if arm is None else home / safe_name(arm)
        facts = {"arm": arm, "position": None if arm is None else position, "seed": options.seed}
        machine = {"fingerprint": f"{'named' if options.machine else 'unknown'}-{_mark(options.machine or str(trace))}"}
        try:
            done = import_trace(
                trace, names, folder, scenario=scenario, experiment=experiment, machine=machine, **facts
            )
            load_run(folder)
        except UserError:
            shutil.rmtree(home, ignore_errors=True)
            raise
        print(
            plain(f"imported {done.steps} training steps and {done.spans} spans{'' if arm is None else f' as {arm}'}")
        )
        if done.others:
            what = "kept under their own names" if names.others == "keep" else "left out"
            print(plain(f"  {len(done.others)} names {what}: {', '.join(done.others[:MOST_OTHERS])}"))
    print(as_typed(f"look at it: python -m harness compare {home}"))
    return 0


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]


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


def _outcome(done: Converted) -> dict[str, Any]:
    trainer, steps = done.crosswalk.trainer, [row.version for row in done.rows if isinstance(row, StepRow)]
    facts: dict[str, Any] = {"trainer": trainer, "format": done.log.form, "sha256": done.log.digest}
    if trainer == "verl":
        facts["asynchronous"] = done.crosswalk is VERL_ASYNC
    facts |= {"steps_per_row": done.steps_per_row, "seconds_known": done.seconds_known, "run_totals": done.run_totals}
    facts |= {"translated": sorted(done.translated), "kept": sorted(done.kept)}
    elapsed_s = done.rows[-1].elapsed_s if done.rows else 0.0
    return {"steps_done": max(steps, default=0), "elapsed_s": elapsed_s, "imported": facts}


def write_experiment(
    arms: Mapping[str | None, Converted], out: Path, scenario: str, machine: str | None = None, seed: int = 0
) -> Path:
    """Write a new experiment below ``out`` and return its folder.

    It is made beside its place and moved there in one step. It names neither logs nor machine, whose names may hold a
    host's or a person's.

    Args:
        arms: what was read, by the arm's name; None for a single run without one, whose folder is the experiment's.
        scenario: name that the runs are filed under.
        machine: where they ran: runs of the same name count as of one machine. None: no other runs do.

    Raises:
        UserError: it cannot be written. Nothing is left then.
    """
    logs = "".join(done.log.digest for done in arms.values())
    mark = _mark(machine or logs)
    missing = dict.fromkeys(
        ("cpu", "cores", "memory_gib", "gpus"), "another trainer's log does not tell of its machine"
    )
    facts = dict.fromkeys(missing) | {"missing": missing}
    now = utc_now()
    experiment, at = experiment_name(out, scenario, now), timestamp(now)
    target = out / safe_name(scenario) / experiment
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".import-", dir=out, ignore_cleanup_errors=True) as beside:
            for position, (arm, done) in enumerate(arms.items()):
                manifest = Manifest(
                    scenario=scenario,
                    experiment=experiment,
                    started_at=at,
                    finished_at=at,
                    arm=arm,
                    position=None if arm is None else position,
                    status="completed",
                    seed=seed,
                    versions={"harness": harness.__version__},
                    machine=facts | {"fingerprint": f"{'named' if machine else 'unknown'}-{mark}"},
                    outcome=_outcome(done),
                )
                with RunFolder.create(Path(beside), scenario, experiment, arm) as folder:
                    folder.append(*done.rows)
                    for note in done.notes:
                        folder.log(note)
                    folder.flush()
                    folder.write_manifest(manifest)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(Path(beside) / safe_name(scenario) / experiment, target)
    except OSError as error:
        raise cannot_write(out, error) from error
    return target
