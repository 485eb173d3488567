"""How often noise without any warm-up is taken for a change of level, and how often a slow start is found.

    python -m tests.benchmarks.warmup_rates --series 4000

Log times have a standard deviation of 6%; ``memory`` is the correlation of neighbouring steps (AR(1)). The brackets are
exact 95% intervals (Clopper and Pearson).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import beta

from harness.compare.stats.intervals import Numbers
from harness.results import WarmUp
from harness.results.rows import WARMUP_FLOOR
from harness.results.warmup import steady_from

SD = 0.06
LENGTHS = (6, 8, 10, 12, 20, 40)
MEMORIES = (0.0, 0.8)
SLOW_STARTS = ((6, 3, 1.3), (12, 4, 1.3), (12, 6, 1.5), (20, 5, 1.5), (40, 6, 1.3))
"""(steps, how many of them are slow, how many times as long they take)."""
KINDS: tuple[tuple[str, Callable[[WarmUp], bool]], ...] = (
    ("cut beyond the floor", lambda found: found.steps > WARMUP_FLOOR),
    ("keeps no one level", lambda found: found.steady is False),
    ("slow start that is not cut", lambda found: found.slow_start),
)


def noise(generator: np.random.Generator, memory: float, series: int, steps: int) -> Numbers:
    """Return log times of AR(1) noise, shape [series, steps]."""
    shocks = generator.normal(0, 1, (series, steps))
    values = shocks.copy()
    for step in range(1, steps):
        values[:, step] = memory * values[:, step - 1] + (1 - memory**2) ** 0.5 * shocks[:, step]
    return SD * values


def found_in(log_times: Numbers) -> list[WarmUp]:
    """Return what is found in each series, shape [series, steps]."""
    return [steady_from(np.exp(values).tolist()) for values in log_times]


def interval(hits: int, of: int) -> tuple[float, float]:
    """Return the exact 95% interval of a rate."""
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, of - hits + 1))
    return low, 1.0 if hits == of else float(beta.ppf(0.975, hits + 1, of - hits))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=4000, help="of each kind; default: 4000")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    generator = np.random.default_rng(options.seed)
    table = Table("steps", "memory", "slow at first", *(name for name, _ in KINDS))
    for memory in MEMORIES:
        for steps in LENGTHS:
            _add(table, f"{steps}", f"{memory:g}", "none", noise(generator, memory, options.series, steps))
    for steps, slow, times in SLOW_STARTS:
        log_times = noise(generator, 0.0, options.series, steps)
        log_times[:, :slow] += np.log(times)
        _add(table, f"{steps}", "0", f"{slow}, {times:g} times", log_times)
    Console(width=120).print(table)
    return 0


def _add(table: Table, steps: str, memory: str, slow: str, log_times: Numbers) -> None:
    found = found_in(log_times)
    cells = []
    for _, is_so in KINDS:
        hits = sum(map(is_so, found))
        low, high = interval(hits, len(found))
        cells.append(f"{100 * hits / len(found):.1f}% ({100 * low:.1f} to {100 * high:.1f})")
    table.add_row(steps, memory, slow, *cells)


if __name__ == "__main__":
    sys.exit(main())
