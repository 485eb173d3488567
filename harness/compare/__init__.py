"""Compare runs: from their files to what can be said. Imports neither torch nor Ray and starts at once.

Start at ``figures`` (one run), ``experiments`` (runs in groups) and ``findings`` (sentences). ``attribution`` says
where time went, ``verdicts`` what is different, ``stats`` how that is tested, ``gates`` which exit code follows:
with ``completeness`` (is everything there), ``comparability`` (is it alike) and ``occasions`` (a baseline of other
days). May import probes, results and what stands below them. ``python -m harness.compare results/`` is the command.
"""

from harness.compare.attribution import LaneAccount, account_spans, lane_account
from harness.compare.experiments import Experiment, Variant, gather
from harness.compare.figures import RunFigures, run_figures
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
]
