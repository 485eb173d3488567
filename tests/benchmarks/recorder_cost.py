"""What ``record`` costs a real run: TRL's ``GRPOTrainer`` recorded and not recorded, in turns, each launch a process.

A block is one launch of each, the next block's in the other order: on, off, off, on. Seconds are those that the
training script itself reads at the end of each step, CPU seconds those of its process; the samplers' work beside it is
in the seconds alone. The ratio of a block is of the mean steps; its interval is that of ``compare`` over the blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import exp, log
from pathlib import Path
from statistics import fmean

from harness.compare.stats.estimates import of_blocks
from harness.report.document import Table
from tests.benchmarks.runner import ROOT, counted, parser, publish

EXAMPLE = "OMP_NUM_THREADS=1 python -m tests.benchmarks.recorder_cost --blocks 12 --steps 45"
PROGRAM = ROOT / "tests/record/train_with_trl.py"
WARM_UP = 5


def launch(command: list[str], recorded: bool) -> tuple[float, float]:
    """Run the training script once; return the mean seconds and CPU seconds of its steps after the warm-up.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        front = [sys.executable, "-m", "harness", "record", "--trainer", "trl", "--out", folder, "--"]
        done = subprocess.run([*(front if recorded else []), *command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("[["))
    steps = json.loads(line)[WARM_UP:]
    return fmean(wall_s for wall_s, _ in steps), fmean(cpu_s for _, cpu_s in steps)


def row(name: str, on: list[float], off: list[float]) -> tuple[str, str, str, str, str]:
    """Return a row of the table: means, and the ratio of on to off with its interval over the blocks."""
    estimate = of_blocks([log(one / other) for one, other in zip(on, off, strict=True)])
    assert estimate is not None
    interval = estimate.interval()
    ends = "" if interval is None else f"{exp(interval.low):.4f} to {exp(interval.high):.4f}"
    return name, f"{fmean(on):.4f}", f"{fmean(off):.4f}", f"{exp(estimate.point):.4f}", ends


def main() -> None:
    """Run the blocks and print the table."""
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--blocks", type=int, default=12)
    made.add_argument("--steps", type=int, default=45, help=f"of a launch; the first {WARM_UP} do not count")
    made.add_argument("--model", type=Path, help="Hugging Face folder; default: the warm-started `tiny` preset")
    options = made.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), str(options.model or policy(Path(folder))), str(options.steps)]
        blocks = run(options, command)
    on, off = ([block[recorded] for block in blocks] for recorded in (True, False))
    rows = [row(name, [each[place] for each in on], [each[place] for each in off]) for place, name in NAMES]
    heads = ("of a step", "recorded", "not recorded", "ratio", "95% interval")
    title = f"TRL recorded and not recorded, {len(blocks)} blocks of {options.steps - WARM_UP} steps"
    publish("The recorder's cost", [Table(title, heads, tuple(rows))], options, on=on, off=off)


NAMES = ((0, "seconds"), (1, "CPU seconds of the training process"))


def run(options: argparse.Namespace, command: list[str]) -> list[dict[bool, tuple[float, float]]]:
    """Return of each block the figures of both launches, by whether it was recorded."""
    blocks = list[dict[bool, tuple[float, float]]]()
    for number in counted(range(options.blocks), options.blocks, "blocks"):
        order = (True, False) if number % 2 == 0 else (False, True)
        blocks.append({recorded: launch(command, recorded) for recorded in order})
    return blocks


def policy(folder: Path) -> Path:
    """Make the small policy that is trained."""
    from harness.learner.warm_start import warm_start_policy
    from harness.models.storage import save_policy

    model, tokenizer, _ = warm_start_policy("tiny", 0)
    save_policy(model, tokenizer, folder / "policy")
    return folder / "policy"


if __name__ == "__main__":
    main()
