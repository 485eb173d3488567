"""Run folders: what a run writes, and how it is read back. Plain files, no torch, no Ray, quick to import.

``RunFolder`` writes, ``load_run`` and ``find_runs`` read; ``results/README.md`` describes the files.
"""

from harness.results.anonymous import Scrubber
from harness.results.ledger import LedgerFigures, Rollouts
from harness.results.manifest import STATUSES, Manifest
from harness.results.reader import DamagedRun, Run, find_run_folders, find_runs, load_run, read_manifest
from harness.results.rows import (
    EvaluationRow,
    RolloutRow,
    StepRow,
    TailRow,
    VersionChange,
    evaluation_row,
    lane_kind,
    lane_seconds,
    step_row,
    tail_row,
)
from harness.results.writer import RunFolder, campaign_name

__all__ = [
    "STATUSES",
    "DamagedRun",
    "EvaluationRow",
    "LedgerFigures",
    "Manifest",
    "RolloutRow",
    "Rollouts",
    "Run",
    "RunFolder",
    "Scrubber",
    "StepRow",
    "TailRow",
    "VersionChange",
    "campaign_name",
    "evaluation_row",
    "find_run_folders",
    "find_runs",
    "lane_kind",
    "lane_seconds",
    "load_run",
    "read_manifest",
    "step_row",
    "tail_row",
]
