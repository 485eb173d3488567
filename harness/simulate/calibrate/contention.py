"""How much parts that work at the same time slow each other down, from spans in which another part was at work."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from harness.simulate.calibrate.observations import Observation
from harness.simulate.calibrate.run_effects import LONG_S, cost_of, run_speeds
from harness.simulate.machine import Contention, StageCost
from harness.simulate.machines import rounded

LEAST_OVERLAP = 0.5
"""Share of a span in which another part must have worked: what is left of it would blur the estimate."""
MOST_Q = 0.9
ASSUMED, ASSUMED_SD = 0.2, 0.15
"""Slow-down taken where no run has two parts at work at the same time."""
LEAST_SD = 0.05
"""Of what one run says: two runs of the same kind are known to differ by about that much."""

Overlapped = tuple[float, float, float]
"""Seconds, share of them in which another part worked, share of them that alone it would not have taken."""


def fit_contention(
    observations: Sequence[Observation], stages: Sequence[StageCost], cores: int
) -> tuple[Contention, list[str]]:
    """Return the contention of a machine with so many cores, and in words how it was found.

    A part at 1 / (1 + s) of its speed during the share f of its span, and at full speed before and after, takes y
    seconds for work of p seconds: p / y = 1 - f q with q = s / (1 + s). p is what the fitted cost predicts, times how
    fast the run was where only one part worked. q is fitted by least squares to the overlapped spans of each run,
    weighted by their seconds, and averaged over the runs; s follows.
    """
    by_run = _overlapped(observations, stages, cores)
    if not by_run:
        said = f"contention: no run had two parts at work at once; a slow-down of {ASSUMED:g} was assumed"
        return Contention(cores=cores, slowdown=ASSUMED, slowdown_sd=ASSUMED_SD), [said]
    shares = [_slowed(rows) for rows in by_run.values()]
    q = min(MOST_Q, max(0.0, float(np.mean(shares))))
    spread = float(np.std(shares, ddof=1)) if len(shares) > 1 else 0.0
    q_sd = max(spread, LEAST_SD) / math.sqrt(len(shares))
    spans, runs = sum(map(len, by_run.values())), len(by_run)
    said = (
        f"contention: from {spans} spans of {runs} run{'s' if runs > 1 else ''} in which another part worked at the "
        "same time, against the cost of the same work alone at that run's speed"
    )
    slowdown, slowdown_sd = q / (1 - q), q_sd / (1 - q) ** 2
    return Contention(cores=cores, slowdown=rounded(slowdown), slowdown_sd=rounded(slowdown_sd)), [said]


def _overlapped(
    observations: Sequence[Observation], stages: Sequence[StageCost], cores: int
) -> dict[str, list[Overlapped]]:
    """Return by run its longer spans in which so many others worked that a core was left for each."""
    speeds = run_speeds(observations, stages)
    by_run: dict[str, list[Overlapped]] = defaultdict(list)
    for item in observations:
        cost = cost_of(item, stages)
        if cost is None or item.run not in speeds or not LEAST_OVERLAP <= item.others <= cores - 1:
            continue
        predicted = cost.seconds_of(item.units, item.model) * speeds[item.run]
        if predicted >= LONG_S:
            by_run[item.run].append((item.seconds, min(1.0, item.others), 1 - predicted / item.seconds))
    return by_run


def _slowed(rows: Sequence[Overlapped]) -> float:
    seconds, share, lost = (np.array(column) for column in zip(*rows, strict=True))
    return float((seconds * share * lost).sum() / (seconds * share * share).sum())
