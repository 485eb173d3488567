"""``python -m harness import TRAINER PATH``. Exit codes: 0 fine; 2 bad input, nothing written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.core.arguments import from_1
from harness.core.errors import UserError
from harness.core.terminal_text import plain, plain_lines
from harness.results.importers.command import CROSSWALKS, Imported, import_run, sentences

EXAMPLE = """example:
  python -m harness.results.importers verl logs/gsm8k.jsonl -o results/ --name gsm8k_verl
  python -m harness.compare results/

docs/importing.md says what becomes of every name and unit.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Import one log; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        done = import_run(
            options.trainer,
            options.path,
            options.out,
            name=options.name,
            devices=options.devices,
            seed=options.seed,
            asynchronous=options.asynchronous,
            validation=options.validation,
        )
    except UserError as error:
        print(plain_lines(f"error: {error}"), file=sys.stderr)
        return 2
    print("\n".join(plain(line) for line in _report(options.trainer, done)))
    return 0


def _report(trainer: str, done: Imported) -> list[str]:
    rows = done.rows
    lines = [f"imported {rows.steps} training rows and {rows.evaluations} evaluations of a {trainer} run"]
    lines += [f"  {sentence}" for sentence in sentences(done.log, done.points, rows)]
    if trainer == "verl":
        meaning = "waiting for the next batch (asynchronous)" if done.asynchronous else "generation (synchronous)"
        lines.append(f"  timing_s/gen was read as {meaning}")
    if done.devices is not None:
        lines.append(f"  devices: {done.devices}")
    return [*lines, f"run folder: {done.folder}"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.results.importers",
        description="Read the metric log of another trainer into a run folder, for compare and report.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trainer", choices=sorted(CROSSWALKS), help="who wrote the log")
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="JSON lines, trainer_state.json, event file, or a folder with one run"
    )
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, default=Path("results"), help="default: results")
    parser.add_argument("--name", type=_name, help="scenario to file it under; default: the trainer's name")
    parser.add_argument("--devices", metavar="N", type=from_1, help="devices of the run, where the log cannot tell")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the run; default: 0")
    parser.add_argument(
        "--asynchronous", action="store_true", help="verl: timing_s/gen is the trainer's wait for its next batch"
    )
    parser.add_argument("--validation", metavar="NAME", help="the log's name that is the validation reward")
    return parser


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a name must not be empty")
    return text


if __name__ == "__main__":
    sys.exit(main())
