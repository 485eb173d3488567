"""Occasions: a forecast as a user gets it. The machine is calibrated, and what is predicted runs much later.

    python -m tests.holdout.occasions record --out results/occasions
    python -m tests.holdout.occasions judge --out results/occasions --docs docs/measured

An occasion is a folder, numbered: ``profile.yaml`` with the ``calibration`` behind it; after the pause ``anchor``, the
run that today's speed is taken from; ``pilot``, the first steps of each held-out arm; and ``held``, the runs that are
predicted, each command a process of its own. Occasions are made an hour apart or more, and none is thrown away.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.spawn_pool import spawn_pool
from tests.holdout.occasion_scores import as_markdown, judge, load_rows, save_rows

HERE = Path(__file__).parent
ROWS = "occasions.jsonl"
PILOT_STEPS = 5
LEAST_MINUTES = 30.0
"""Between the end of the calibration and the first run that is predicted."""


def record(out: Path, minutes: float = LEAST_MINUTES) -> Path:
    """Make one occasion; return its folder.

    Raises:
        UserError: a command of it failed; what it left stays, and the next occasion gets another number.
    """
    number = 1 + max((int(path.name) for path in out.glob("[0-9]*")), default=0)
    folder = out / f"{number:02d}"
    folder.mkdir(parents=True)
    _harness(
        "calibrate", "--name", f"occasion-{number}", "-o", folder / "profile.yaml", "--out", folder / "calibration"
    )
    until = time.monotonic() + 60 * minutes
    while (left := until - time.monotonic()) > 0:
        print(f"occasion {number}: runs begin in {left / 60:.0f} minutes", file=sys.stderr, flush=True)
        time.sleep(min(left, 300))
    _harness("run", HERE / "occasion_anchor.yaml", "--quiet", "--out", folder / "anchor")
    pilot = ("--set", f"steps={PILOT_STEPS}", "--set", "blocks=1", "--set", f"evaluation.every={PILOT_STEPS}")
    _harness("run", HERE / "occasions.yaml", "--quiet", *pilot, "--out", folder / "pilot")
    _harness("run", HERE / "occasions.yaml", "--quiet", "--out", folder / "held")
    return folder


def _harness(*words: str | Path) -> None:
    typed = [sys.executable, "-m", "harness", *map(str, words)]
    print(" ".join(typed[1:]), file=sys.stderr, flush=True)
    if code := subprocess.run(typed, check=False).returncode:
        raise UserError(
            f"{' '.join(typed[1:])} ended with exit code {code}", None, "see what it printed, and record again"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Carry out one command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.holdout.occasions", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="calibrate, wait, and make the runs that are predicted")
    recording.add_argument("--out", type=Path, default=Path("results/occasions"), metavar="DIR")
    recording.add_argument("--minutes", type=float, default=LEAST_MINUTES, help="of the pause (default: 30)")
    judging = commands.add_parser("judge", help="predict the runs of all occasions, and write what that gave")
    judging.add_argument(
        "--out", type=Path, default=Path("results/occasions"), metavar="DIR", help="with the occasions"
    )
    judging.add_argument(
        "--docs",
        type=Path,
        metavar="DIR",
        help="where occasions.md and .jsonl are, to which they are added (default: printed)",
    )
    options = parser.parse_args(arguments)
    if options.command == "record":
        print(record(options.out, options.minutes))
        return
    folders = sorted(options.out.glob("[0-9]*"), key=lambda folder: int(folder.name))
    with spawn_pool() as pool:
        found = pool.map(judge, folders, [HERE / "occasions.yaml"] * len(folders))
        rows = [row for each in found for row in each]
    judged = {row.occasion for row in rows}
    before = [] if options.docs is None else load_rows(options.docs / ROWS)
    rows = sorted([*(row for row in before if row.occasion not in judged), *rows], key=lambda row: row.occasion)
    page = as_markdown(rows, f"python -m tests.holdout.occasions judge --out {options.out} --docs docs/measured")
    if options.docs is None:
        print(page)
        return
    save_rows(rows, options.docs / ROWS)
    with whole_file(options.docs / "occasions.md") as stream:
        stream.write(page.encode())


if __name__ == "__main__":
    main()
