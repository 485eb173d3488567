"""How often verdicts and the gate are wrong, and what they can see, on simulated noise whose truth is known.

    python -m tests.benchmarks.verdict_rates --json verdict_rates.json --markdown verdict_rates.md

makes 4,000 experiments for each rate; in brackets stand exact 95% intervals (Clopper and Pearson). It takes about three
minutes on one core. Noise: ``tests/stand_ins/noise.py``; its judging: ``tests/stand_ins/simulated_verdicts.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from harness.compare.stats.estimates import of_blocks
from harness.compare.stats.intervals import LEVEL, t_interval
from harness.compare.stats.verdicts import (
    PRIMARY_WEIGHT,
    SECONDARY_WEIGHT,
    STAGE_THRESHOLD,
    STEP_THRESHOLD,
    Verdict,
    enough,
    side_of_limit,
)
from harness.core.atomic_files import whole_file
from harness.core.progress import progress_bars
from tests.stand_ins.false_alarms import Rate, naive_p, rate
from tests.stand_ins.noise import NoiseModel
from tests.stand_ins.simulated_verdicts import (
    KINDS,
    SHARES,
    effect_seen,
    judge_experiment,
    judge_occasions,
    judge_step,
    shifted,
    staged_log_ratios,
    step_log_ratios,
)

BLOCKS = (6, 8, 10, 14, 20)
FAMILY_NOISE = (
    "launches, sd 3%",
    "AR(1) 0.95 from step to step",
    "AR(1) 0.25 from block to block",
    "AR(1) 0.5 from block to block",
)
LIMIT = 0.05
TRUTHS = (-0.05, 0.0, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15)
EXAMPLE = "example:\n  python -m tests.benchmarks.verdict_rates --experiments 500 --markdown rates.md"
Cell = str | Rate


@dataclass(frozen=True)
class Table:
    """One table: its cells are text or rates."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


Rows = Iterator[tuple[Cell, ...]]


class Simulation:
    """Makes the tables, each from a generator of its own, so that one does not depend on another.

    Args:
        experiments: for each rate.
        seed: of all of them.
        advance: called after each row.
    """

    def __init__(self, experiments: int, seed: int, advance: Callable[[], None]) -> None:
        self.experiments, self.seed, self._advance = experiments, seed, advance

    def tables(self) -> list[Table]:
        """Return every table."""
        made: list[tuple[str, str, tuple[str, ...], Callable[[np.random.Generator], Rows]]] = [
            (
                "family",
                "Nothing differs, 10 blocks, six stages: is anything called different? And an arm that is 10% slower?",
                ("arms", "noise", "any corrected p at most 5%", "any `different`", "the slower arm is `different`"),
                self._family,
            ),
            (
                "gate",
                f"Exit codes of `--fail-on {LIMIT:.0%}` by the true change of one arm",
                ("noise", "blocks", "true change", "1: worse", "0: fine", "4: inconclusive"),
                self._gate,
            ),
            (
                "occasions",
                "A new occasion against those of a baseline, 10 blocks each: `different` by the true change",
                ("occasions", "spread between them", "no change", "+6%", "+10%", "+15%"),
                self._occasions,
            ),
            (
                "coverage",
                "Share of 95% intervals that hold the truth",
                ("noise", *(f"{blocks} blocks" for blocks in BLOCKS)),
                self._coverage,
            ),
            (
                "widening",
                "The same for plain t-intervals, and how much wider the widened one is (median)",
                ("noise", *(f"{blocks} blocks" for blocks in BLOCKS)),
                self._widening,
            ),
            (
                "power",
                "One arm that is 10% slower is called `different`",
                ("noise", *(f"{blocks} blocks" for blocks in BLOCKS)),
                self._power,
            ),
            (
                "seen",
                "Smallest true change that is called `different` in 80% of experiments, by the blocks' spread",
                ("what", "spread", *(f"{blocks} blocks" for blocks in (*BLOCKS, 40))),
                self._seen,
            ),
            (
                "others",
                "Stopping on the width, and what is commonly done instead of all this; nothing differs",
                ("recipe", "told apart"),
                self._others,
            ),
        ]
        return [
            Table(name, title, header, tuple(self._counted(rows(np.random.default_rng([self.seed, place])))))
            for place, (name, title, header, rows) in enumerate(made)
        ]

    def _counted(self, rows: Rows) -> Rows:
        for row in rows:
            self._advance()
            yield row

    def _family(self, generator: np.random.Generator) -> Rows:
        for arms in (2, 4, 8):
            for name in FAMILY_NOISE:
                rejected, called, seen = [], [], []
                for piece in _pieces(self.experiments):
                    for trial, log_ratios in enumerate(staged_log_ratios(KINDS[name], generator, piece, 10, arms)):
                        effects = [effect for side in judge_experiment(log_ratios) for effect in side]
                        rejected.append(any((effect.p_adjusted or 1.0) <= LEVEL for effect in effects))
                        called.append(any(effect.verdict is Verdict.DIFFERENT for effect in effects))
                        if trial % 4 == 0:
                            log_ratios[0] = shifted(log_ratios[0], 0.1)
                            seen.append(judge_experiment(log_ratios)[0][0].verdict is Verdict.DIFFERENT)
                yield str(arms), name, _rate(rejected), _rate(called), _rate(seen)

    def _gate(self, generator: np.random.Generator) -> Rows:
        settings = [("launches, sd 3%", blocks) for blocks in (6, 10, 20)]
        for name, blocks in (*settings, *((name, 10) for name in FAMILY_NOISE[1:])):
            values = step_log_ratios(KINDS[name], generator, self.experiments, blocks)
            for truth in TRUTHS:
                sides = [side_of_limit(judge_step(shifted(each, truth)), LIMIT) for each in values]
                codes = [_rate([side == code for side in sides]) for code in ("above", "below", "neither")]
                yield name, str(blocks), f"{truth:+.0%}", *codes

    def _occasions(self, generator: np.random.Generator) -> Rows:
        for occasions in (1, 3, 5):
            for spread in (0.01, 0.02, 0.05):
                rates = []
                for change in (0.0, 0.06, 0.1, 0.15):
                    effects = judge_occasions(generator, self.experiments, occasions, spread, change)
                    rates.append(_rate([effect.verdict is Verdict.DIFFERENT for effect in effects]))
                yield str(occasions), f"{spread:.0%}", *rates

    def _coverage(self, generator: np.random.Generator) -> Rows:
        for name, kind in KINDS.items():
            cells = []
            for blocks in BLOCKS:
                values = step_log_ratios(kind, generator, self.experiments, blocks)
                cells.append(_rate([not judge_step(each).shows for each in values]))
            yield name, *cells

    def _widening(self, generator: np.random.Generator) -> Rows:
        for name, kind in KINDS.items():
            cells = []
            for blocks in BLOCKS:
                values = step_log_ratios(kind, generator, self.experiments, blocks)
                plain = [interval is not None and not interval.excludes(0) for interval in map(t_interval, values)]
                wider = median(estimate.widening for each in values if (estimate := of_blocks(each)) is not None)
                cells.append(f"{np.mean(plain):.1%}, {wider:.2f} times")
            yield name, *cells

    def _power(self, generator: np.random.Generator) -> Rows:
        for name, kind in KINDS.items():
            cells = []
            for blocks in BLOCKS:
                values = shifted(step_log_ratios(kind, generator, self.experiments, blocks), 0.1)
                cells.append(_rate([judge_step(each).verdict is Verdict.DIFFERENT for each in values]))
            yield name, *cells

    def _seen(self, generator: np.random.Generator) -> Rows:
        estimates = {
            blocks: [found for each in generator.normal(0, 1, (self.experiments, blocks)) if (found := of_blocks(each))]
            for blocks in (*BLOCKS, 40)
        }
        kinds = {
            "the step of one arm": (STEP_THRESHOLD, LEVEL),
            "the step of one arm with six stages": (STEP_THRESHOLD, LEVEL * PRIMARY_WEIGHT),
            "the steps of seven arms with six stages": (STEP_THRESHOLD, LEVEL * PRIMARY_WEIGHT / 7),
            "one of six stages, the step is different": (STAGE_THRESHOLD, LEVEL / len(SHARES)),
            "one of six stages, the step is not": (STAGE_THRESHOLD, LEVEL * SECONDARY_WEIGHT / len(SHARES)),
        }
        for name, (threshold, level) in kinds.items():
            for spread in (0.01, 0.03, 0.05):
                seen = [effect_seen(found, spread, threshold, level) for found in estimates.values()]
                yield name, f"{spread:.0%}", *(f"{change:.1%}" for change in seen)

    def _others(self, generator: np.random.Generator) -> Rows:
        noise, most = NoiseModel(), 40
        times = noise.with_own_noise(generator, noise.alternated(generator, self.experiments, most, 10))
        means = np.log(np.exp(times).mean(axis=-1))
        wrong = []
        for values in means[:, :, 1] - means[:, :, 0]:
            judged = ((blocks, judge_step(values[:blocks])) for blocks in range(10, most + 1))
            wrong.append(next(effect for blocks, effect in judged if enough([effect], blocks, 0.0225, most)).shows)
        yield "blocks until the 95% interval is within 2.25%, from 10 to 40", _rate(wrong)
        runs = noise.with_own_noise(generator, noise.sequential(generator, self.experiments, 50))
        naive = [naive_p(before, after) < LEVEL for before, after in runs]
        yield "50 steps of one arm, then 50 of the other, Mann-Whitney", _rate(naive)


ROWS = 3 * len(FAMILY_NOISE) + 6 * len(TRUTHS) + 9 + 3 * len(KINDS) + 15 + 2


def _pieces(experiments: int, most: int = 500) -> Iterable[int]:
    """Split experiments into pieces whose step times fit in memory."""
    return [min(most, experiments - done) for done in range(0, experiments, most)]


def _rate(hits: Sequence[bool]) -> Rate:
    return rate(np.array(hits, dtype=bool))


def text_of(cell: Cell) -> str:
    """Write a cell: a rate with its exact interval."""
    if isinstance(cell, str):
        return cell
    return f"{cell.share:.1%} ({100 * cell.low:.1f} to {100 * cell.high:.1f})"


def markdown(tables: Sequence[Table], experiments: int) -> str:
    """Return all tables as a Markdown page."""
    parts = [
        "# Rates of verdicts on simulated noise",
        f"{experiments:,} experiments for each rate (a quarter of them for the last column of the first table), with "
        "exact 95% intervals. Made by `python -m tests.benchmarks.verdict_rates`.",
    ]
    for table in tables:
        rows = [" | ".join(map(text_of, row)) for row in (table.header, ("---",) * len(table.header), *table.rows)]
        parts += [f"## {table.title}", "\n".join(f"| {row} |" for row in rows)]
    return "\n\n".join(parts) + "\n"


def show(tables: Sequence[Table], console: Console) -> None:
    """Print all tables."""
    for table in tables:
        drawn = RichTable(*table.header, title=table.title)
        for row in table.rows:
            drawn.add_row(*map(text_of, row))
        console.print(drawn)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=4000, help="for each rate (default 4000)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("--json", type=Path, help="also write every rate to this file")
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    if arguments.experiments < 4:
        parser.error("--experiments must be at least 4")
    return arguments


def simulate(experiments: int, seed: int, progress: Progress) -> list[Table]:
    """Return every table, with a bar that counts their rows."""
    with progress:
        task = progress.add_task("rows of the tables", total=ROWS)
        return Simulation(experiments, seed, lambda: progress.advance(task)).tables()


def main() -> int:
    arguments = parse_arguments()
    tables = simulate(arguments.experiments, arguments.seed, progress_bars(Console(stderr=True)))
    show(tables, Console(width=None if sys.stdout.isatty() else 180))
    if arguments.json:
        data = {
            "experiments": arguments.experiments,
            "seed": arguments.seed,
            "tables": [asdict(item) for item in tables],
        }
        with whole_file(arguments.json) as stream:
            stream.write((json.dumps(data, indent=1) + "\n").encode())
    if arguments.markdown:
        with whole_file(arguments.markdown) as stream:
            stream.write(markdown(tables, arguments.experiments).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
