"""How often verdicts and the gate are wrong, and what they can see, on simulated noise whose truth is known.

4,000 experiments for each rate (a quarter of them for the last column of the first table); in brackets stand exact 95%
intervals (Clopper and Pearson). About three minutes of one core. Noise: ``tests/stand_ins/noise.py``; its judging:
``tests/stand_ins/simulated_verdicts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

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
from harness.report.document import Table
from tests.benchmarks.false_alarm_rates import text_of
from tests.benchmarks.runner import counted, parser, publish
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

EXAMPLE = "python -m tests.benchmarks.verdict_rates --experiments 500 --markdown rates.md"
BLOCKS = (6, 8, 10, 14, 20)
FAMILY_NOISE = (
    "launches, sd 3%",
    "AR(1) 0.95 from step to step",
    "AR(1) 0.25 from block to block",
    "AR(1) 0.5 from block to block",
)
LIMIT = 0.05
TRUTHS = (-0.05, 0.0, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15)
DIFFERENT = Verdict.DIFFERENT
Generator = np.random.Generator
Cell = str | Rate
Rows = Iterator[tuple[Cell, ...]]


@dataclass(frozen=True)
class Question:
    """One table to be: ``rows`` makes them of a generator and a number of experiments."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: Callable[[Generator, int], Rows]


def share(hits: Sequence[bool]) -> Rate:
    return rate(np.array(hits, dtype=bool))


def family(generator: Generator, experiments: int) -> Rows:
    pieces = [min(500, experiments - done) for done in range(0, experiments, 500)]  # whose step times fit in memory
    for arms in (2, 4, 8):
        for name in FAMILY_NOISE:
            rejected, called, seen = [], [], []
            for piece in pieces:
                for trial, log_ratios in enumerate(staged_log_ratios(KINDS[name], generator, piece, 10, arms)):
                    effects = [effect for side in judge_experiment(log_ratios) for effect in side]
                    rejected.append(any((effect.p_adjusted or 1.0) <= LEVEL for effect in effects))
                    called.append(any(effect.verdict is DIFFERENT for effect in effects))
                    if trial % 4 == 0:
                        log_ratios[0] = shifted(log_ratios[0], 0.1)
                        seen.append(judge_experiment(log_ratios)[0][0].verdict is DIFFERENT)
            yield str(arms), name, share(rejected), share(called), share(seen)


def gate(generator: Generator, experiments: int) -> Rows:
    settings = [(FAMILY_NOISE[0], blocks) for blocks in (6, 10, 20)]
    for name, blocks in (*settings, *((name, 10) for name in FAMILY_NOISE[1:])):
        values = step_log_ratios(KINDS[name], generator, experiments, blocks)
        for truth in TRUTHS:
            sides = [side_of_limit(judge_step(shifted(each, truth)), LIMIT) for each in values]
            codes = [share([side == code for side in sides]) for code in ("above", "below", "neither")]
            yield name, str(blocks), f"{truth:+.0%}", *codes


def occasions(generator: Generator, experiments: int) -> Rows:
    for number in (1, 3, 5):
        for spread in (0.01, 0.02, 0.05):
            rates = []
            for change in (0.0, 0.06, 0.1, 0.15):
                effects = judge_occasions(generator, experiments, number, spread, change)
                rates.append(share([effect.verdict is DIFFERENT for effect in effects]))
            yield str(number), f"{spread:.0%}", *rates


def for_each_noise(change: float, cell: Callable[[np.ndarray], Cell]) -> Callable[[Generator, int], Rows]:
    """Return a row for each kind of noise with a cell for each number of blocks; the arm is slower by ``change``."""

    def rows(generator: Generator, experiments: int) -> Rows:
        for name, kind in KINDS.items():
            yield (
                name,
                *(cell(shifted(step_log_ratios(kind, generator, experiments, blocks), change)) for blocks in BLOCKS),
            )

    return rows


def widening(values: np.ndarray) -> Cell:
    plain = [interval is not None and not interval.excludes(0) for interval in map(t_interval, values)]
    wider = median(estimate.widening for each in values if (estimate := of_blocks(each)) is not None)
    return f"{np.mean(plain):.1%}, {wider:.2f} times"


def smallest_seen(generator: Generator, experiments: int) -> Rows:
    estimates = {
        blocks: [found for each in generator.normal(0, 1, (experiments, blocks)) if (found := of_blocks(each))]
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


def others(generator: Generator, experiments: int) -> Rows:
    noise, most = NoiseModel(), 40
    times = noise.with_own_noise(generator, noise.alternated(generator, experiments, most, 10))
    means = np.log(np.exp(times).mean(axis=-1))
    wrong = []
    for values in means[:, :, 1] - means[:, :, 0]:
        judged = ((blocks, judge_step(values[:blocks])) for blocks in range(10, most + 1))
        wrong.append(next(effect for blocks, effect in judged if enough([effect], blocks, 0.0225, most)).shows)
    yield "blocks until the 95% interval is within 2.25%, from 10 to 40", share(wrong)
    runs = noise.with_own_noise(generator, noise.sequential(generator, experiments, 50))
    yield (
        "50 steps of one arm, then 50 of the other, Mann-Whitney",
        share([naive_p(before, after) < LEVEL for before, after in runs]),
    )


OF_BLOCKS = ("noise", *(f"{blocks} blocks" for blocks in BLOCKS))
QUESTIONS = (
    Question(
        "family",
        "Nothing differs, 10 blocks, six stages: is anything called different? And an arm that is 10% slower?",
        ("arms", "noise", "any corrected p at most 5%", "any is different", "the slower arm is different"),
        family,
    ),
    Question(
        "gate",
        f"Exit codes of `--fail-on {LIMIT:.0%}` by the true change of one arm",
        ("noise", "blocks", "true change", "1: worse", "0: fine", "4: inconclusive"),
        gate,
    ),
    Question(
        "occasions",
        "A new occasion against those of a baseline, 10 blocks each: `different` by the true change",
        ("occasions", "spread between them", "no change", "+6%", "+10%", "+15%"),
        occasions,
    ),
    Question(
        "coverage",
        "Share of 95% intervals that hold the truth",
        OF_BLOCKS,
        for_each_noise(0.0, lambda values: share([not judge_step(each).shows for each in values])),
    ),
    Question(
        "widening",
        "The same for plain t-intervals, and how much wider the widened one is (median)",
        OF_BLOCKS,
        for_each_noise(0.0, widening),
    ),
    Question(
        "power",
        "One arm that is 10% slower is called `different`",
        OF_BLOCKS,
        for_each_noise(0.1, lambda values: share([judge_step(each).verdict is DIFFERENT for each in values])),
    ),
    Question(
        "seen",
        "Smallest true change that is called `different` in 80% of experiments, by the blocks' spread",
        ("what", "spread", *OF_BLOCKS[1:], "40 blocks"),
        smallest_seen,
    ),
    Question(
        "others",
        "Stopping on the width, and what is commonly done instead of all this; nothing differs",
        ("recipe", "told apart"),
        others,
    ),
)
ROWS = 3 * len(FAMILY_NOISE) + 6 * len(TRUTHS) + 9 + 3 * len(KINDS) + 15 + 2


def simulate(experiments: int, seed: int) -> list[list[tuple[Cell, ...]]]:
    """Return the rows of every table, each from a generator of its own, so that one does not depend on another."""
    made: list[list[tuple[Cell, ...]]] = [[] for _ in QUESTIONS]
    rows = (
        (place, row)
        for place, question in enumerate(QUESTIONS)
        for row in question.rows(np.random.default_rng([seed, place]), experiments)
    )
    for place, row in counted(rows, ROWS, "rows of the tables"):
        made[place].append(row)
    return made


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--experiments", type=int, default=4000, help="for each rate, at least 4 (4000)")
    made.add_argument("--seed", type=int, default=0, help="of the noise")
    options = made.parse_args()
    if options.experiments < 4:
        made.error("--experiments must be at least 4")
    rows = simulate(options.experiments, options.seed)
    tables, figures = [], []
    for question, of in zip(QUESTIONS, rows, strict=True):
        cells = [tuple(cell if isinstance(cell, str) else text_of(cell) for cell in row) for row in of]
        tables.append(Table(question.title, question.header, tuple(cells), words=len(question.header)))
        figures.append({"name": question.name, "title": question.title, "header": question.header, "rows": of})
    publish("Rates of verdicts on simulated noise", tables, options, experiments=options.experiments, tables=figures)


if __name__ == "__main__":
    main()
