"""What ten pairs of known truth are told, and how often equal arms are called faster or slower.

The pairs are those of ``tests/stand_ins/fair_pairs.py``. The rates are over so many pairs each whose steps and lengths
are AR(1) with 0.8 from step to step and spread by 4% and 5%; ten minutes of one core for 1,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from harness.compare.experiment import Experiment
from harness.compare.judging import Judgement, direction, fair_direction, judgements
from harness.compare.numbers import change
from harness.compare.remarks import remarks_of
from harness.report.document import Table
from tests.benchmarks.false_alarm_rates import text_of
from tests.benchmarks.runner import counted, parser, publish
from tests.stand_ins.fair_pairs import PAIRS, Arm, pair_of
from tests.stand_ins.false_alarms import rate

EXAMPLE = "python -m tests.benchmarks.fairness --pairs 100"
NOISY = Arm(noise=0.04, memory=0.8, own=0.05)
CASES: dict[str, tuple[Arm, int]] = {
    "equal, 4 blocks": (NOISY, 4),
    "equal, 10 blocks": (NOISY, 10),
    "responses 15% shorter, 4 blocks": (replace(NOISY, longer=0.85), 4),
    "responses 15% shorter, 10 blocks": (replace(NOISY, longer=0.85), 10),
    "half of the steps evaluated, 10 blocks": (replace(NOISY, evaluated=2), 10),
    "10% slower, responses 15% shorter, 10 blocks": (replace(NOISY, longer=0.85, pace=1.1), 10),
}
SPEED = ("faster", "slower")


def told(case: str, pairs: int) -> tuple[str, ...]:
    """Return a row of rates: what the seconds per step alone would say, what is said, and what at equal work."""
    arm, blocks = CASES[case]
    judged = [only(pair_of(arm, blocks, seed=1000 + number, base=NOISY)) for number in range(pairs)]
    work = [item.fairness.equal_work for item in judged if item.fairness.equal_work is not None]
    ends = [(effect.low, effect.high) for effect in work if effect.low is not None and effect.high is not None]
    shares = [item.fairness.share for item in judged if item.fairness.share is not None]
    cells = [rate_of([direction(item.step) in SPEED for item in judged])]
    cells += [rate_of([fair_direction(item) == word for item in judged]) for word in SPEED]
    cells.append(rate_of([direction(effect) in SPEED for effect in work]))
    cells.append(rate_of([low <= arm.pace <= high for low, high in ends]))
    cells.append(rate_of([each.low <= 1 <= each.high for each in shares]) if arm.pace == 1 else "-")
    return case, *cells


def only(experiment: Experiment) -> Judgement:
    (judged,) = judgements(experiment)
    return judged


def rate_of(hits: list[bool]) -> str:
    """Write a rate with its exact 95% interval and what it is of."""
    found = rate(np.array(hits, dtype=bool))
    return f"{text_of(found)} of {found.trials}" if found.trials else "-"


def sentences() -> Iterator[tuple[str, ...]]:
    """Yield each pair's answer, a row for each sentence."""
    for name, make in PAIRS.items():
        experiment = make()
        judged = judgements(experiment)
        answer = [each.text for each in remarks_of(experiment, judged) if each.kind == "answer"]
        for place, text in enumerate(answer):
            yield "" if place else name, "" if place else change(judged[0].step.ratio), text


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--pairs", type=int, default=1000, help="of each case (1000)")
    options = made.parse_args()
    rows = [told(case, options.pairs) for case in counted(CASES, len(CASES), "rates")]
    header = ("b against a", "per step alone: faster or slower", *(f"said: {word}" for word in SPEED))
    header = (*header, "at equal work: faster or slower", "its interval holds the truth", "share: holds 100%")
    tables = [
        Table("Ten pairs and what each is told", ("b against a", "per step", "answer"), tuple(sentences()), words=3),
        Table(f"How often, over {options.pairs:,} pairs each", header, tuple(rows)),
    ]
    publish("What was unequal comes first", tables, options)


if __name__ == "__main__":
    main()
