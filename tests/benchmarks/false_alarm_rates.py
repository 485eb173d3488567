"""How often the comparison calls like arms different, on recorded runs: the noise is the machine's, not a model's.

Give it an experiment of two arms with the same settings (``python -m harness bench A A --blocks 200``), or one long
run, whose consecutive steps are cut into blocks in time order as if two arms had run in turns (A B, B A, A B, ...). Ten
blocks in a row make an experiment; each gets an interval and a verdict, and every alarm is a false one. Beside it the
naive recipe on the same steps: fifty in a row against the next fifty, Mann-Whitney.

    python -m tests.benchmarks.false_alarm_rates results/aa/20261121-150000 --json false_alarms.json
    python -m tests.benchmarks.false_alarm_rates --simulated 4000

Disjoint experiments share no block: Wilson's interval. All windows use every block ten times: a moving-block bootstrap
over time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare import Experiment, gather
from harness.compare.stats import STEP, PairedBlock, log_ratios
from harness.compare.stats.intervals import Numbers, effect_shown
from harness.compare.verdicts import is_same, paired_blocks
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from tests.stand_ins.false_alarms import (
    Hits,
    Rate,
    abba_blocks,
    alternated_blocks,
    judged,
    naive_hits,
    naive_p,
    rate,
    rate_in_time,
    windows,
)
from tests.stand_ins.noise import NoiseModel

NAIVE_STEPS = 50
NOTHING = "-"


@dataclass(frozen=True)
class Source:
    """One recording: its blocks in time order, and step times in time order for the naive recipe."""

    name: str
    blocks: list[PairedBlock]
    seconds: list[float]


@dataclass(frozen=True)
class Line:
    """One row of the table; ``different`` is None for the naive recipe, which knows no threshold."""

    source: str
    experiments: str
    excludes: Rate
    different: Rate | None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure how often the comparison calls like arms different, on recorded runs.",
        epilog="example:\n  python -m tests.benchmarks.false_alarm_rates results/aa/20261121-150000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, nargs="*", help="experiment folders of two like arms, or single runs")
    parser.add_argument("--blocks", type=int, default=10, help="blocks of one experiment (default 10)")
    parser.add_argument("--steps", type=int, default=10, help="steps of one arm in a block cut from a single run (10)")
    parser.add_argument("--threshold", type=float, default=0.03, help="relative change that counts (0.03)")
    parser.add_argument("--simulated", type=int, default=0, metavar="TRIALS", help="also the simulated noise model")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap and the simulated noise")
    parser.add_argument("--json", type=Path, help="also write every log-ratio and rate to this file")
    arguments = parser.parse_args()
    if not arguments.results and not arguments.simulated:
        parser.error("name recorded results, or give --simulated TRIALS")
    if min(arguments.blocks, arguments.steps) < 1:
        parser.error("--blocks and --steps must be at least 1")
    return arguments


def sources(paths: Sequence[Path], steps: int) -> Iterator[Source]:
    """Read the recordings.

    Raises:
        UserError: no runs, a damaged one, or arms that are not alike.
    """
    experiments, damaged = gather(paths)
    for run in damaged:
        raise run.error
    for experiment in experiments:
        yield from _one_run(experiment, steps) if len(experiment.variants) == 1 else _like_arms(experiment)


def _like_arms(experiment: Experiment) -> Iterator[Source]:
    base, *others = experiment.variants
    for other in others:
        if not is_same(base, other):
            raise UserError(
                f"the arms {base.name!r} and {other.name!r} have different settings",
                where=str(experiment.folder),
                fix="give it an experiment of a scenario against itself",
            )
        alternated = base.runs[0].manifest.interleaving == "step"
        blocks = paired_blocks(base, other, alternated)[STEP]
        seconds = [second for block in blocks for second in block.before]
        yield Source(f"{experiment.scenario}: {'live' if alternated else 'launched'} arms", blocks, seconds)


def _one_run(experiment: Experiment, steps: int) -> Iterator[Source]:
    for run in experiment.runs:
        if run.series is None:
            raise UserError("a run made no steps", where=str(experiment.folder), fix="leave it out")
        seconds = list(run.series.measured().wall_s)
        name = f"{experiment.scenario}, seed {run.manifest.seed}"
        yield Source(f"{name}: ABBA windows", abba_blocks(seconds, steps), seconds)
        yield Source(f"{name}: alternate steps", alternated_blocks(seconds, steps), [])


def recorded_lines(source: Source, arguments: argparse.Namespace, generator: np.random.Generator) -> Iterator[Line]:
    """Judge the experiments in a recording, disjoint ones and all windows."""
    size = arguments.blocks
    disjoint = judged(windows(source.blocks, size, size), arguments.threshold)
    yield Line(source.name, f"{size} blocks, disjoint", rate(disjoint[0]), rate(disjoint[1]))
    overlapping = judged(windows(source.blocks, size, 1), arguments.threshold)
    in_time = [rate_in_time(hits, 2 * size, generator) for hits in overlapping]
    yield Line(source.name, f"{size} blocks, all windows", in_time[0], in_time[1])
    if len(source.seconds) >= 2 * NAIVE_STEPS:
        yield from _naive_lines(source, generator)


def _naive_lines(source: Source, generator: np.random.Generator) -> Iterator[Line]:
    label = f"naive, {NAIVE_STEPS} + {NAIVE_STEPS} steps"
    disjoint = naive_hits(source.seconds, NAIVE_STEPS, 2 * NAIVE_STEPS)
    yield Line(source.name, f"{label}, disjoint", rate(disjoint), None)
    overlapping = naive_hits(source.seconds, NAIVE_STEPS, 1)
    yield Line(source.name, f"{label}, all windows", rate_in_time(overlapping, 4 * NAIVE_STEPS, generator), None)


def simulated_lines(arguments: argparse.Namespace, generator: np.random.Generator) -> Iterator[Line]:
    """Judge like arms under ``NoiseModel``."""
    noise, trials = NoiseModel(), arguments.simulated
    for name, experiment, alternated in (("live", noise.alternated, True), ("launched", noise.launched, False)):
        weather = experiment(generator, trials, arguments.blocks, arguments.steps)
        times = np.exp(noise.with_own_noise(generator, weather)).tolist()
        made = [[PairedBlock(tuple(a), tuple(b), alternated) for a, b in trial] for trial in times]
        excludes, different = judged(made, arguments.threshold)
        yield Line(f"simulated noise: {name} arms", f"{arguments.blocks} blocks", rate(excludes), rate(different))
    runs = noise.with_own_noise(generator, noise.sequential(generator, trials, NAIVE_STEPS))
    alarms: Hits = np.array([naive_p(before, after) < 0.05 for before, after in runs])
    yield Line("simulated noise", f"naive, {NAIVE_STEPS} + {NAIVE_STEPS} steps", rate(alarms), None)


def show(lines: Sequence[Line], found: Sequence[Source], blocks: int) -> None:
    """Print the rates, and what the recordings' blocks are like; names come from files and are untrusted."""
    table = Table(title="Like arms told apart, with the 95% interval of the rate. The interval's promise is 5%.")
    for column in ("recording", "experiments of", "number", "interval excludes no change", "verdict: different"):
        table.add_column(column, justify="right" if column == "number" else "left")
    for line in lines:
        rates = (_text(line.excludes), _text(line.different))
        table.add_row(Text(plain(line.source)), line.experiments, str(line.excludes.trials), *rates)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for source in found:
        values = log_ratios(source.blocks)
        if len(values) >= 2 and blocks >= 2:
            console.print(Text(_spread(plain(source.name), values, blocks)))


def _spread(name: str, values: Numbers, blocks: int) -> str:
    spread = float(np.std(values, ddof=1))
    shown = effect_shown(spread / math.sqrt(blocks), blocks - 1)
    return (
        f"{name}: {len(values)} blocks, whose log-ratios spread by {spread:.1%}; neighbours correlate by "
        f"{_neighbours(values):+.2f}. {blocks} such blocks show a change of {shown:.1%} in 80% of experiments."
    )


def _neighbours(values: Numbers) -> float:
    """Correlation of each log-ratio with the next: 0 where blocks are independent, as the interval assumes."""
    centred = values - values.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total else 0.0


def _text(found: Rate | None) -> str:
    if found is None or not found.trials:
        return NOTHING
    return f"{found.share:.1%} ({found.low:.1%} to {found.high:.1%})"


def save(path: Path, lines: Sequence[Line], found: Sequence[Source], arguments: argparse.Namespace) -> None:
    """Write the rates and what they rest on; a draft first, so that the file is whole or not there."""
    data = {
        "settings": {name: getattr(arguments, name) for name in ("blocks", "steps", "threshold", "simulated", "seed")},
        "rates": [asdict(line) for line in lines],
        "log_ratios": {source.name: log_ratios(source.blocks).tolist() for source in found},
    }
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(draft, path)


def main() -> int:
    arguments = parse_arguments()
    generator = np.random.default_rng(arguments.seed)
    try:
        found = list(sources(arguments.results, arguments.steps)) if arguments.results else []
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    lines = [line for source in found for line in recorded_lines(source, arguments, generator)]
    if arguments.simulated:
        lines += simulated_lines(arguments, generator)
    show(lines, found, arguments.blocks)
    if arguments.json:
        save(arguments.json, lines, found, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
