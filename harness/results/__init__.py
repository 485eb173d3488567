"""Run folders: what a run writes, and how it is read back. Plain files, no torch, no Ray, quick to import.

``RunFolder`` writes, ``load_run`` and ``find_runs`` read; ``results/README.md`` describes the files.
"""

from harness.results.anonymous import Scrubber
from harness.results.manifest import Manifest
from harness.results.reader import (
    DamagedRun,
    Run,
    find_run_folders,
    find_runs,
    load_run,
    read_manifest,
    read_or_make_manifest,
)
from harness.results.rows import (
    BatchRow,
    DiscardedRow,
    EvaluationRow,
    RolloutRow,
    ShardRow,
    StepRow,
    TailRow,
    VersionChange,
    WarmUp,
    in_pipeline_order,
    lane_kind,
    natural_order,
    part_of,
    store_metrics,
)
from harness.results.writer import RunFolder, experiment_name

__all__ = [
    "BatchRow",
    "DamagedRun",
    "DiscardedRow",
    "EvaluationRow",
    "Manifest",
    "RolloutRow",
    "Run",
    "RunFolder",
    "Scrubber",
    "ShardRow",
    "StepRow",
    "TailRow",
    "VersionChange",
    "WarmUp",
    "experiment_name",
    "find_run_folders",
    "find_runs",
    "in_pipeline_order",
    "lane_kind",
    "load_run",
    "natural_order",
    "part_of",
    "read_manifest",
    "read_or_make_manifest",
    "store_metrics",
]
