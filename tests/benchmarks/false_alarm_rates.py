"""How often the comparison calls like arms different, on a recording: the noise is the machine's, not a model's.

Give it an experiment of two arms with the same settings (``python -m harness run noise --set blocks=200``), or a file
of such an experiment's step seconds. Ten blocks in a row make an experiment; each gets an interval and a verdict, and
every alarm is a false one. Beside it the naive recipe on the same steps: fifty in a row against the next fifty,
Mann-Whitney. On simulated noise: ``verdict_rates``.
Disjoint experiments share no block: exact intervals. All windows use every block ten times: a moving-block bootstrap.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.compare import Member, gather
from harness.compare.judging import is_same, paired_runs
from harness.compare.stats.estimates import of_blocks
from harness.report.document import Table
from tests.benchmarks.runner import parser, publish
from tests.stand_ins.false_alarms import Rate, judged, naive_hits, rate, rate_in_time, windows
from tests.stand_ins.simulated_verdicts import log_ratio

EXAMPLE = "python -m tests.benchmarks.false_alarm_rates docs/measured/noise_step_seconds.json"
NAIVE_STEPS = 50
Blocks = list[tuple[dict[int, float], dict[int, float]]]
Line = tuple[str, Rate, Rate | None]
"""A row of the table: experiments, how many intervals exclude no change, how many verdicts are different."""


def blocks_of(path: Path) -> tuple[Blocks, bool]:
    """Return the steps' seconds of the two arms of each block, in time order, and whether the arms took turns by step.

    Raises:
        UserError: a damaged run.
    """
    if path.suffix == ".json":
        blocks = json.loads(path.read_text())["blocks"]
        return [(dict(enumerate(block["one"])), dict(enumerate(block["again"]))) for block in blocks], True
    (experiment, *_), damaged = gather([path])
    for run in damaged:
        raise run.error
    one, *others = experiment.arms.values()
    if len(others) != 1 or not is_same(one, others[0]):
        raise SystemExit(f"{experiment.folder}: these are not two arms with the same settings")
    pairs = paired_runs(one, others[0], with_unfinished=False)
    return [(measured(mine), measured(theirs)) for mine, theirs in pairs], one[0].manifest.interleaving == "step"


def measured(member: Member) -> dict[int, float]:
    table = member.table
    steps = table.steps["step"][table.is_measured].astype(int).tolist()
    return dict(zip(steps, table.wall_s[table.is_measured].tolist(), strict=True))


def lines(log_ratios: list[float], seconds: list[float], options: argparse.Namespace) -> Iterator[Line]:
    """Judge the experiments in a recording, disjoint ones and all windows; the naive recipe knows no threshold."""
    size, generator = options.blocks, np.random.default_rng(options.seed)
    disjoint = judged(windows(log_ratios, size, size), options.threshold)
    yield f"{size} blocks, disjoint", rate(disjoint[0]), rate(disjoint[1])
    every_window = judged(windows(log_ratios, size, 1), options.threshold)
    in_time = [rate_in_time(hits, 2 * size, generator) for hits in every_window]
    yield f"{size} blocks, all windows", in_time[0], in_time[1]
    if len(seconds) >= 2 * NAIVE_STEPS:
        label = f"naive, {NAIVE_STEPS} + {NAIVE_STEPS} steps"
        yield f"{label}, disjoint", rate(naive_hits(seconds, NAIVE_STEPS, 2 * NAIVE_STEPS)), None
        yield (
            f"{label}, all windows",
            rate_in_time(naive_hits(seconds, NAIVE_STEPS, 1), 4 * NAIVE_STEPS, generator),
            None,
        )


def text_of(found: Rate | None) -> str:
    """Write a rate with its 95% interval."""
    if found is None or not found.trials:
        return "-"
    return f"{found.share:.1%} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def notes(log_ratios: list[float]) -> Iterator[str]:
    """Say what the recording's blocks are like."""
    whole = of_blocks(log_ratios)
    interval = None if whole is None else whole.interval()
    if whole is not None and interval is not None and whole.correlation is not None:
        low, high = math.expm1(interval.low), math.expm1(interval.high)
        spread, apart = np.std(log_ratios, ddof=1), math.expm1(whole.point)
        yield (
            f"{whole.blocks} blocks, whose log-ratios spread by {spread:.1%}; neighbours correlate by "
            f"{whole.correlation:+.2f}. The arms are {apart:+.1%} apart ({low:+.1%} to {high:+.1%})."
        )


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("recording", type=Path, help="folder of an experiment of two like arms, or .json of its steps")
    made.add_argument("--blocks", type=int, default=10, help="blocks of one experiment (10)")
    made.add_argument("--threshold", type=float, default=0.03, help="relative change that counts (0.03)")
    made.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    options = made.parse_args()
    blocks, alternated = blocks_of(options.recording)
    ratios = (log_ratio(mine, theirs, alternated) for mine, theirs in blocks)
    log_ratios = [each for each in ratios if each is not None]
    found = list(lines(log_ratios, [second for mine, _ in blocks for second in mine.values()], options))
    rows = [(name, str(excludes.trials), text_of(excludes), text_of(different)) for name, excludes, different in found]
    rates = [dict(zip(("experiments", "excludes", "different"), line, strict=True)) for line in found]
    header = ("experiments of", "number", "interval excludes no change", "verdict: different")
    title = "Like arms told apart, with the 95% interval of the rate. The interval's promise is 5%."
    table, of = Table(title, header, tuple(rows), tuple(notes(log_ratios))), {options.recording.stem: log_ratios}
    publish("False alarms on recorded noise", [table], options, rates=rates, log_ratios=of)


if __name__ == "__main__":
    main()
