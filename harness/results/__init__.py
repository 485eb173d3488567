"""Run folders: what a run writes, and how it is read back. Plain files, no torch, no Ray, quick to import.

``RunFolder`` writes, ``load_run`` and ``find_runs`` read; ``results/README.md`` describes the files.
"""

from harness.results.anonymous import Scrubber
from harness.results.manifest import STATUSES, Manifest
from harness.results.reader import DamagedRun, Run, find_run_folders, find_runs, load_run
from harness.results.rows import (
    EvaluationRow,
    RolloutRow,
    StepRow,
    TailRow,
    evaluation_row,
    lane_seconds,
    step_row,
    tail_row,
)
from harness.results.writer import RunFolder, campaign_name

__all__ = [
    "STATUSES",
    "DamagedRun",
    "EvaluationRow",
    "Manifest",
    "RolloutRow",
    "Run",
    "RunFolder",
    "Scrubber",
    "StepRow",
    "TailRow",
    "campaign_name",
    "evaluation_row",
    "find_run_folders",
    "find_runs",
    "lane_seconds",
    "load_run",
    "step_row",
    "tail_row",
]
