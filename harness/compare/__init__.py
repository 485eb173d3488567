"""Compare runs: pure functions of their files. Imports neither torch nor Ray and starts at once.

``python -m harness.compare results/`` is the command; see ``harness.compare.__main__``.
"""

from harness.compare.attribution import LaneAccount, account_spans, lane_account
from harness.compare.experiments import Experiment, Variant, gather
from harness.compare.figures import RunFigures, run_figures, stage_totals
from harness.compare.learning import seconds_to_reward
from harness.compare.numbers import Spread

__all__ = [
    "Experiment",
    "LaneAccount",
    "RunFigures",
    "Spread",
    "Variant",
    "account_spans",
    "gather",
    "lane_account",
    "run_figures",
    "seconds_to_reward",
    "stage_totals",
]
