"""What ``record`` costs a real run: TRL's ``GRPOTrainer`` recorded and not recorded, in turns, each launch a process.

A block is one launch of each, the next block's in the other order: on, off, off, on. Seconds are those that the
training script itself reads at the end of each step, CPU seconds those of its process; the samplers' work beside it is
in the seconds alone. The ratio of a block is of the mean steps; its interval is that of ``compare`` over the blocks.

What a busy machine hides in those seconds is counted too: every call into the recorder during one such run, by the CPU
seconds of its thread, the reading of that clock included.

A span alone is timed by the CPU seconds of its thread, in loops of a thousand; the kinds of spans take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness import record
from harness.compare.stats.estimates import of_blocks
from harness.record import recording, seams
from harness.report.document import Table
from tests.benchmarks.runner import ROOT, counted, parser, publish

EXAMPLE = "OMP_NUM_THREADS=1 python -m tests.benchmarks.recorder_cost --blocks 12 --steps 45"
PROGRAM = ROOT / "tests/record/train_with_trl.py"
WARM_UP, SPANS = 5, 1000


def time_spans(rounds: int = 200) -> Table:
    """Return the CPU microseconds of a span with and without attributes: the least of the loops, and their median."""
    kinds: dict[str, Callable[[int], dict[str, Any]]] = {
        "without attributes": lambda number: {},
        "two whole numbers": lambda number: {"tokens": 4096, "layer": number},
        "a fraction and a text": lambda number: {"share": 0.25 * number, "precision": "bf16"},
    }
    taken_us: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder, record.run(Path(folder) / "spans"):
        record.step(0)
        for kind in [*kinds] * rounds:
            attributes = [kinds[kind](number) for number in range(SPANS)]
            begin_s = time.thread_time()
            for each in attributes:
                with record.span("update", **each):
                    pass
            taken_us[kind].append((time.thread_time() - begin_s) / SPANS * 1e6)
    rows = [(kind, f"{min(taken):.2f}", f"{median(taken):.2f}") for kind, taken in taken_us.items()]
    return Table(f"A span, {rounds} loops of {SPANS}", ("span", "CPU us, least", "median"), tuple(rows))


def account(script: Path, arguments: list[str]) -> Table:
    """Run the training script in this process, recorded, and return what the calls into the recorder cost of a step."""
    spent: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        own = spent.setdefault(name, [])

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begin_s = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                own.append(time.thread_time() - begin_s)

        return wrapped

    places: list[tuple[Any, str]] = [(recording, name) for name in ("step", "count", "metrics")]
    places += [(recording.span, name) for name in ("__init__", "__enter__", "__exit__")]
    for holder, name in places:
        setattr(holder, name, timed(f"span.{name}" if holder is recording.span else name, getattr(holder, name)))
    seams.install("trl")  # imports the shim, which takes the functions of above
    sys.argv = [str(script), *arguments]
    with tempfile.TemporaryDirectory() as folder, record.run(Path(folder) / "run"), redirect_stdout(StringIO()) as said:
        runpy.run_path(str(script), run_name="__main__")
    steps = json.loads(next(line for line in said.getvalue().splitlines() if line.startswith("[[")))
    step_s = sum(cpu_s for _, cpu_s in steps)
    total = [each for calls in spent.values() for each in calls]
    rows = [
        (
            *(name, f"{len(calls) / len(steps):.1f}", f"{median(calls) * 1e6:.1f}", f"{max(calls) * 1e6:.0f}"),
            *(f"{sum(calls) / len(steps) * 1e6:.0f}", f"{sum(calls) / step_s:.3%}"),
        )
        for name, calls in {**spent, "all": total}.items()
    ]
    heads = ("calls", "a step", "CPU us each, median", "most", "CPU us a step", "of the step's CPU seconds")
    return Table(f"Calls into the recorder, {len(steps)} steps of {step_s / len(steps):.3f} CPU s", heads, tuple(rows))


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
    spans = time_spans()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), str(options.model or policy(Path(folder))), str(options.steps)]
        blocks = run(options, command)
        counted_calls = account(PROGRAM, command[2:])
    on, off = ([block[recorded] for block in blocks] for recorded in (True, False))
    rows = (
        []
        if not blocks
        else [row(name, [each[place] for each in on], [each[place] for each in off]) for place, name in NAMES]
    )
    heads = ("of a step", "recorded", "not recorded", "ratio", "95% interval")
    title = f"TRL recorded and not recorded, {len(blocks)} blocks of {options.steps - WARM_UP} steps"
    tables = [spans, counted_calls, *([Table(title, heads, tuple(rows))] if blocks else [])]
    publish("The recorder's cost", tables, options, on=on, off=off)


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
