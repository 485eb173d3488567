"""Sweeps that can be stopped at any moment and go on later: every arm, point and block of a scenario, each run once.

A sweep keeps no list of its own. ``identity`` finds the folder of the same scenario again, ``harness.run.points`` reads
from each run's manifest what became of it, and ``runner`` runs what is left.
"""

from harness.run.sweep.runner import SweepOptions, run_sweep

__all__ = ["SweepOptions", "run_sweep"]
