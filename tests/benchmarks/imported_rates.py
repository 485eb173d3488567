"""How often the interval over steps of two equal runs leaves out a ratio of 1: 5% is what it claims.

Two logs with the same mean step time and AR(1) noise of 10%: x[t] = rho x[t-1] + e[t].
"""

import numpy as np

from harness.compare.stats.bootstrap import ratio_over_steps
from harness.compare.stats.intervals import wilson_interval
from harness.report.document import Table
from tests.benchmarks.runner import counted, parser, publish

EXAMPLE = "python -m tests.benchmarks.imported_rates --pairs 500"
NOISE = 0.1
CASES = [(rho, count) for rho in (0.0, 0.5) for count in (30, 100)]


def steps(generator: np.random.Generator, count: int, rho: float) -> list[float]:
    """Return step seconds around 1 with a standard deviation of ``NOISE``, begun in their steady state."""
    shocks = generator.normal(0.0, NOISE * (1 - rho**2) ** 0.5, count)
    shocks[0] = generator.normal(0.0, NOISE)
    for place in range(1, count):
        shocks[place] += rho * shocks[place - 1]
    return (1.0 + shocks).tolist()


def rate(count: int, rho: float, pairs: int) -> float:
    """Return the share of pairs of equal runs whose interval leaves out 1."""
    generator = np.random.default_rng(count + round(100 * rho))
    found = (
        ratio_over_steps(steps(generator, count, rho), steps(generator, count, rho), seed) for seed in range(pairs)
    )
    return sum(interval is not None and interval.excludes(1.0) for interval in found) / pairs


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--pairs", type=int, default=2000, help="of each kind (2000)")
    options = made.parse_args()
    rows = []
    for rho, count in counted(CASES, len(CASES), "rates"):
        share = rate(count, rho, options.pairs)
        low, high = wilson_interval(round(share * options.pairs), options.pairs)
        rows.append((f"{rho:g}", str(count), f"{share:.1%} ({low:.1%} to {high:.1%})"))
    publish("Equal logs told apart", [Table("Rates", ("rho", "steps", "told apart"), tuple(rows))], options)


if __name__ == "__main__":
    main()
