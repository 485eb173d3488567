"""Statistics of repeated blocks: pure functions of numbers. Loads numpy, and scipy where a verdict is asked for.

A *block* is one occurrence in which every arm runs once under the same weather, and is the unit of replication.
``estimates`` turns blocks, or the occasions of a baseline, into an estimate with its error; ``judge`` turns all of an
experiment into verdicts. How often they are wrong is measured by ``tests/benchmarks/verdict_rates.py`` on noise whose
truth is known, and by ``tests/benchmarks/false_alarm_rates.py`` on recorded runs.
"""

from harness.compare.stats.drift import Drift, speed_drift
from harness.compare.stats.estimates import FEWEST_BLOCKS, Estimate, of_blocks, of_occasions
from harness.compare.stats.intervals import Interval, holm, t_interval, wilson_interval
from harness.compare.stats.verdicts import (
    STAGE_THRESHOLD,
    STEP,
    STEP_THRESHOLD,
    Comparison,
    Effect,
    Verdict,
    enough,
    half_width,
    judge,
    side_of_limit,
)

__all__ = [
    "FEWEST_BLOCKS",
    "STAGE_THRESHOLD",
    "STEP",
    "STEP_THRESHOLD",
    "Comparison",
    "Drift",
    "Effect",
    "Estimate",
    "Interval",
    "Verdict",
    "enough",
    "half_width",
    "holm",
    "judge",
    "of_blocks",
    "of_occasions",
    "side_of_limit",
    "speed_drift",
    "t_interval",
    "wilson_interval",
]
