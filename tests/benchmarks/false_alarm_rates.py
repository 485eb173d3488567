"""How often the comparison calls like arms different, on a recording: the noise is the machine's, not a model's.

Give it an experiment of two arms with the same settings (``python -m harness run noise --set blocks=200``), or a file
of such an experiment's step seconds. Ten blocks in a row make an experiment; each gets an interval and a verdict, and
every alarm is a false one. Beside it the naive recipe on the same steps: fifty in a row against the next fifty,
Mann-Whitney. On simulated noise: ``tests/benchmarks/verdict_rates.py``.

Disjoint experiments share no block: exact intervals. All windows use every block ten times: a moving-block bootstrap
over time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare import Experiment, Member, gather
from harness.compare.judging import is_same, paired_runs
from harness.compare.stats.estimates import Estimate, of_blocks
from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from tests.stand_ins.false_alarms import Rate, judged, naive_hits, rate, rate_in_time, windows
from tests.stand_ins.simulated_verdicts import log_ratio

NAIVE_STEPS = 50
NOTHING = "-"
EXAMPLE = "example:\n  python -m tests.benchmarks.false_alarm_rates docs/measured/noise_step_seconds.json"


@dataclass(frozen=True)
class Recording:
    """Blocks of two like arms that took turns, in time order.

    Attributes:
        log_ratios: one for each block.
        seconds: step times of the first arm in time order, for the naive recipe.
    """

    name: str
    log_ratios: list[float]
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
        description="Measure how often the comparison calls like arms different, on a recording.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recording", type=Path, help="folder of an experiment of two like arms, or .json of its steps")
    parser.add_argument("--blocks", type=int, default=10, help="blocks of one experiment (default 10)")
    parser.add_argument("--threshold", type=float, default=0.03, help="relative change that counts (0.03)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    parser.add_argument("--json", type=Path, help="also write every log-ratio and rate to this file")
    arguments = parser.parse_args()
    if arguments.blocks < 1:
        parser.error("--blocks must be at least 1")
    return arguments


def recording_of(path: Path) -> Recording:
    """Read a recording.

    Raises:
        UserError: no runs, a damaged one, or arms that are not alike.
    """
    if path.suffix == ".json":
        blocks = [(dict(enumerate(block["one"])), dict(enumerate(block["again"]))) for block in _steps_in(path)]
        return _recording(path.stem, blocks, alternated=True)
    (experiment, *_), damaged = gather([path])
    for run in damaged:
        raise run.error
    return _like_arms(experiment)


def _steps_in(path: Path) -> list[dict[str, list[float]]]:
    try:
        found: list[dict[str, list[float]]] = json.loads(path.read_text())["blocks"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read {str(path)!r}: {error}", str(path), "name a file of step seconds") from error
    return found


def _like_arms(experiment: Experiment) -> Recording:
    arms = list(experiment.arms.values())
    if len(arms) != 2 or not is_same(*arms):
        raise UserError(
            "these are not two arms with the same settings",
            where=str(experiment.folder),
            fix="give it an experiment of a scenario against itself",
        )
    pairs = paired_runs(arms[0], arms[1], with_unfinished=False)
    blocks = [(_measured_seconds(mine), _measured_seconds(theirs)) for mine, theirs in pairs]
    return _recording(experiment.scenario, blocks, arms[0][0].manifest.interleaving == "step")


def _measured_seconds(member: Member) -> dict[int, float]:
    table = member.table
    steps = table.steps["step"][table.is_measured].astype(int).tolist()
    return dict(zip(steps, table.wall_s[table.is_measured].tolist(), strict=True))


def _recording(name: str, blocks: Sequence[tuple[dict[int, float], dict[int, float]]], alternated: bool) -> Recording:
    ratios = [log_ratio(mine, theirs, alternated) for mine, theirs in blocks]
    seconds = [second for mine, _ in blocks for second in mine.values()]
    return Recording(name, [ratio for ratio in ratios if ratio is not None], seconds)


def lines_of(source: Recording, arguments: argparse.Namespace, generator: np.random.Generator) -> Iterator[Line]:
    """Judge the experiments in a recording, disjoint ones and all windows."""
    size = arguments.blocks
    disjoint = judged(windows(source.log_ratios, size, size), arguments.threshold)
    yield Line(source.name, f"{size} blocks, disjoint", rate(disjoint[0]), rate(disjoint[1]))
    overlapping = judged(windows(source.log_ratios, size, 1), arguments.threshold)
    in_time = [rate_in_time(hits, 2 * size, generator) for hits in overlapping]
    yield Line(source.name, f"{size} blocks, all windows", in_time[0], in_time[1])
    if len(source.seconds) >= 2 * NAIVE_STEPS:
        label = f"naive, {NAIVE_STEPS} + {NAIVE_STEPS} steps"
        apart = naive_hits(source.seconds, NAIVE_STEPS, 2 * NAIVE_STEPS)
        yield Line(source.name, f"{label}, disjoint", rate(apart), None)
        every = naive_hits(source.seconds, NAIVE_STEPS, 1)
        yield Line(source.name, f"{label}, all windows", rate_in_time(every, 4 * NAIVE_STEPS, generator), None)


def show(lines: Sequence[Line], source: Recording, whole: Estimate | None) -> None:
    """Print the rates, and what the recording's blocks are like; names come from files and are untrusted."""
    table = Table(title="Like arms told apart, with the 95% interval of the rate. The interval's promise is 5%.")
    for column in ("recording", "experiments of", "number", "interval excludes no change", "verdict: different"):
        table.add_column(column, justify="right" if column == "number" else "left")
    for line in lines:
        rates = (_text(line.excludes), _text(line.different))
        table.add_row(Text(plain(line.source)), line.experiments, str(line.excludes.trials), *rates)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    interval = None if whole is None else whole.interval()
    if whole is not None and interval is not None and whole.correlation is not None:
        spread = float(np.std(source.log_ratios, ddof=1))
        low, high = math.expm1(interval.low), math.expm1(interval.high)
        said = (
            f"{plain(source.name)}: {whole.blocks} blocks, whose log-ratios spread by {spread:.1%}; neighbours "
            f"correlate by {whole.correlation:+.2f}. The arms are {math.expm1(whole.point):+.1%} apart ({low:+.1%} to "
            f"{high:+.1%})."
        )
        console.print(Text(said))


def _text(found: Rate | None) -> str:
    if found is None or not found.trials:
        return NOTHING
    return f"{found.share:.1%} ({found.low:.1%} to {found.high:.1%})"


def main() -> int:
    arguments = parse_arguments()
    try:
        source = recording_of(arguments.recording)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    lines = list(lines_of(source, arguments, np.random.default_rng(arguments.seed)))
    show(lines, source, of_blocks(source.log_ratios))
    if arguments.json:
        settings = {name: getattr(arguments, name) for name in ("blocks", "threshold", "seed")}
        rates = [asdict(line) for line in lines]
        data = {"settings": settings, "rates": rates, "log_ratios": {source.name: source.log_ratios}}
        with whole_file(arguments.json) as stream:
            stream.write((json.dumps(data, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
