"""How often an onset of faster growth of KL is found where there is none, and where one is planted.

    python -m tests.benchmarks.kl_onset_rates --series 400

Series of 40, 60 and 100 steps with multiplicative AR(1) noise of 17%, the scatter of the committed ``kl_monitoring``
runs around smooth curves; their memory from one step to the next is -0.2 to +0.1. Rates with exact 95% intervals
(Clopper and Pearson, Biometrika 26, 1934). A planted onset counts as found within a tenth of the steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from harness.compare.stats.onset import growth_onset

SCATTER = 0.17
Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
SMOOTH: dict[str, Curve] = {
    "a line": lambda t: t,
    "a line from above 0": lambda t: 0.2 + t,
    "a parabola": lambda t: t**2,
    "levels off": lambda t: 1 - np.exp(-3 * t),
}
PLANTED: dict[str, Curve] = {
    "4 times the slope at half": lambda t: np.where(t <= 0.5, t, 0.5 + 4 * (t - 0.5)),
    "10 times the slope at half": lambda t: np.where(t <= 0.5, t, 0.5 + 10 * (t - 0.5)),
}


def noisy(curve: NDArray[np.float64], count: int, memory: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return so many rows of a curve [n] with noise, shape [count, n]."""
    noise = generator.standard_normal((count, len(curve)))
    for place in range(1, len(curve)):
        noise[:, place] = memory * noise[:, place - 1] + np.sqrt(1 - memory**2) * noise[:, place]
    return curve * np.exp(SCATTER * noise)


def rate(hits: int, trials: int) -> str:
    """Return the rate with its exact 95% interval, in percent."""
    low = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, 0.025))
    high = 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, 0.975))
    return f"{100 * hits / trials:.1f} ({100 * low:.1f}-{100 * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=400, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    print("| steps, memory | " + " | ".join((*SMOOTH, *PLANTED)) + " |")
    print("|---" * (1 + len(SMOOTH) + len(PLANTED)) + "|")
    for steps, memory in ((40, 0.0), (60, 0.0), (60, 0.3), (100, 0.3)):
        cells = []
        for name, curve in (SMOOTH | PLANTED).items():
            rows = noisy(curve(np.arange(steps) / steps), options.series, memory, generator)
            onsets = [growth_onset(range(steps), row.tolist()) for row in rows]
            near = [
                onset for onset in onsets if onset and (name in SMOOTH or abs(onset.step - steps / 2) <= steps / 10)
            ]
            cells.append(rate(len(near), options.series))
        print(f"| {steps}, {memory:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
