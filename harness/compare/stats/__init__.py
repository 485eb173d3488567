"""Statistics of repeated blocks: pure functions of numbers. Loads numpy, and scipy where a verdict is asked for.

A *block* is one occurrence in which every arm runs once under the same weather, and is the unit of replication: it
gives one log-ratio, the median over its steps. ``judge_step`` and ``judge_stages`` turn blocks into verdicts. How often
they are wrong on noise without any difference is measured: ``tests/compare/test_false_alarms.py`` on simulated noise,
``tests/benchmarks/false_alarm_rates.py`` on recorded runs.
"""

from harness.compare.stats.drift import Drift, speed_drift
from harness.compare.stats.intervals import (
    Interval,
    binomial_p,
    fewest_blocks,
    hodges_lehmann,
    holm,
    minimum_effect,
    sign_flip_p,
    t_interval,
    welch_interval,
    wilson_interval,
)
from harness.compare.stats.verdicts import (
    FEWEST_BLOCKS,
    STAGE_THRESHOLD,
    STEP,
    STEP_THRESHOLD,
    BlockSummary,
    Effect,
    PairedBlock,
    Verdict,
    enough,
    half_width,
    judge_apart,
    judge_stages,
    judge_step,
    log_ratio,
    log_ratios,
    summarise,
)

__all__ = [
    "FEWEST_BLOCKS",
    "STAGE_THRESHOLD",
    "STEP",
    "STEP_THRESHOLD",
    "BlockSummary",
    "Drift",
    "Effect",
    "Interval",
    "PairedBlock",
    "Verdict",
    "binomial_p",
    "enough",
    "fewest_blocks",
    "half_width",
    "hodges_lehmann",
    "holm",
    "judge_apart",
    "judge_stages",
    "judge_step",
    "log_ratio",
    "log_ratios",
    "minimum_effect",
    "sign_flip_p",
    "speed_drift",
    "summarise",
    "t_interval",
    "welch_interval",
    "wilson_interval",
]
