"""The rows of a run's JSONL files: how they are made, and their typed form when read back.

Each file starts with a header row that names its schema and version. A row's ``kind`` says what it holds; a reader
skips kinds it does not know.

JSON has no NaN and no infinity. Such a number is written as ``null`` and the row's ``non_finite`` names its place (a
JSON pointer, RFC 6901) and what it was: ``{"metrics": {"loss": {"mean": null, "count": 64}}, "non_finite":
{"/metrics/loss/mean": "nan"}}``. Reading restores it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from harness.core.trace import Span
from harness.core.types import Metric, Metrics, RolloutGroup, ScoredBatch

SCHEMA_VERSIONS = {
    "harness.manifest": 1,
    "harness.spans": 1,
    "harness.steps": 1,
    "harness.rollouts": 1,
    "harness.counters": 1,
    "harness.groups": 1,
}
MOST_SECONDS = 1e9
"""Thirty years: more than any time in a run, and as nanoseconds within 64 bits."""
MOST_WHOLE = 2**63 - 1
_REDUCTIONS: tuple[Literal["mean", "sum", "max", "min"], ...] = ("mean", "sum", "max", "min")
_ESCAPES = str.maketrans({"~": "~0", "/": "~1"})

LaneSeconds = dict[str, dict[str, float]]  # lane -> stage -> seconds
StoredMetrics = Mapping[str, Mapping[str, float]]  # name -> {reduction: value, "count": n}


class VersionChange(NamedTuple):
    """A lane holds another policy version since ``elapsed_s``, in seconds of the loop; -1 where a new part has none."""

    elapsed_s: float
    lane: str
    version: int


@dataclass(frozen=True, slots=True)
class TailRow:
    """What ended after the last training step: kept, so that a run's totals are whole."""

    wall_s: float
    elapsed_s: float
    lanes: LaneSeconds
    stages_s: dict[str, float]
    version_changes: tuple[VersionChange, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRow:
    """One training step.

    Attributes:
        version: the policy version it made.
        wall_s: seconds since the previous row, or since the loop's start.
        elapsed_s: seconds since the loop's start.
        lanes: seconds of the spans that ended in this row's window, by lane and stage.
        stages_s: the same summed over the lanes.
        versions: the policy version that each lane held at the end of the row; a lane without weights is missing.
        version_changes: since the previous row.
        lags: how many of the rollouts trained on were how many versions behind; a rollout's oldest token counts.
        warmup: the run was not in its steady state yet: kept, and left out of statistics.
        profiled: a profiler ran in this step: never part of statistics.
    """

    step: int
    version: int
    wall_s: float
    elapsed_s: float
    optimizer_steps: int
    lanes: LaneSeconds
    stages_s: dict[str, float]
    metrics: StoredMetrics
    versions: Mapping[str, int] = field(default_factory=dict)
    version_changes: tuple[VersionChange, ...] = ()
    lags: Mapping[int, int] = field(default_factory=dict)
    warmup: bool = False
    profiled: bool = False

    def metric(self, name: str) -> Metric | None:
        """Return a metric, or None if the step has none of that name."""
        return read_metric(self.metrics, name)


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One evaluation of a policy version; ``step`` is the number of training steps made by then."""

    version: int
    step: int
    elapsed_s: float
    metrics: StoredMetrics

    def metric(self, name: str) -> Metric | None:
        """Return a metric, or None if the evaluation has none of that name."""
        return read_metric(self.metrics, name)


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout kept for people to read. Its text is generated: treat it as untrusted."""

    purpose: str
    version: int
    prompt: str
    response: str
    ground_truth: str
    reward: float
    num_tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class ShardRow:
    """The rollouts of one scored shard: what was generated, token by token counted.

    Attributes:
        purpose: ``train`` or ``evaluate``.
        step: number of the rollout batch, or for an evaluation the policy version.
        shard: part of the batch.
        prompt_ids: of each group.
        prompt_tokens: of each group's prompt; None where no tokens are behind it.
        versions: (oldest, newest) policy version of each group's tokens.
        lengths: response tokens of each rollout, by group.
        rewards: of each rollout, by group.
        failed_groups: groups that got no reward and are in no other field.
    """

    purpose: str
    step: int
    shard: int
    prompt_ids: tuple[int, ...]
    prompt_tokens: tuple[int | None, ...]
    versions: tuple[tuple[int, int], ...]
    lengths: tuple[tuple[int, ...], ...]
    rewards: tuple[tuple[float, ...], ...]
    failed_groups: int = 0


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The groups that a training step trained on, where that is not the fresh batch: (batch number, prompt id)."""

    step: int
    groups: tuple[tuple[int, int], ...]


def shard_row(scored: ScoredBatch) -> dict[str, Any]:
    """Return the JSON row of a scored shard; see ``ShardRow``."""
    item, groups = scored.item, scored.groups
    head: dict[str, Any] = {"kind": "shard", "purpose": item.purpose.value, "step": item.step, "shard": item.shard}
    return head | {
        "prompt_ids": [group.prompt_id for group in groups],
        "prompt_tokens": [group.prompt_length for group in groups],
        "versions": [(group.min_version, group.max_version) for group in groups],
        "lengths": [group.lengths for group in groups],
        "rewards": [group.rewards for group in groups],
        "failed_groups": scored.failed_groups,
    }


def batch_row(step: int, groups: Iterable[RolloutGroup]) -> dict[str, Any]:
    """Return the JSON row of the groups that a step trained on; see ``BatchRow``."""
    return {"kind": "batch", "step": step, "groups": [(group.step, group.prompt_id) for group in groups]}


def lane_seconds(spans: Iterable[Span]) -> LaneSeconds:
    """Sum the seconds of the spans by lane and stage."""
    totals: dict[str, dict[str, int]] = {}
    for lane, stage, start_ns, end_ns, _, _ in spans:
        lane_totals = totals.setdefault(lane, {})
        lane_totals[stage.value] = lane_totals.get(stage.value, 0) + end_ns - start_ns
    return {lane: {stage: total / 1e9 for stage, total in stages.items()} for lane, stages in totals.items()}


def step_row(
    *,
    step: int,
    version: int,
    wall_s: float,
    elapsed_s: float,
    optimizer_steps: int,
    lanes: LaneSeconds,
    metrics: Metrics,
    versions: Mapping[str, int] | None = None,
    version_changes: Iterable[VersionChange] = (),
    lags: Mapping[int, int] | None = None,
    warmup: bool = False,
    profiled: bool = False,
) -> dict[str, Any]:
    """Return the JSON row of a training step; see ``StepRow``. Flags are written where they are true."""
    head: dict[str, Any] = {"kind": "step", "step": step, "version": version, "wall_s": round(wall_s, 9)}
    rest: dict[str, Any] = {"elapsed_s": round(elapsed_s, 9), "optimizer_steps": optimizer_steps}
    held: dict[str, Any] = {"versions": dict(versions or {}), "version_changes": _stored_changes(version_changes)}
    trained = {"lags": {str(lag): rollouts for lag, rollouts in sorted((lags or {}).items())}}
    flags = {name: True for name, is_set in (("warmup", warmup), ("profiled", profiled)) if is_set}
    return head | rest | flags | _stage_fields(lanes) | held | trained | {"metrics": store_metrics(metrics)}


def evaluation_row(*, version: int, step: int, elapsed_s: float, metrics: Metrics) -> dict[str, Any]:
    """Return the JSON row of an evaluation; see ``EvaluationRow``."""
    head = {"kind": "evaluation", "version": version, "step": step, "elapsed_s": round(elapsed_s, 9)}
    return head | {"metrics": store_metrics(metrics)}


def tail_row(
    *, wall_s: float, elapsed_s: float, lanes: LaneSeconds, version_changes: Iterable[VersionChange] = ()
) -> dict[str, Any]:
    """Return the JSON row of what ended after the last step; see ``TailRow``."""
    head: dict[str, Any] = {"kind": "tail", "wall_s": round(wall_s, 9), "elapsed_s": round(elapsed_s, 9)}
    return head | _stage_fields(lanes) | {"version_changes": _stored_changes(version_changes)}


def lane_kind(lane: str) -> str:
    """Return what a lane is, without its number: ``generator1`` is a ``generator``."""
    return lane.rstrip("0123456789").rstrip("_")


def _stored_changes(changes: Iterable[VersionChange]) -> list[list[Any]]:
    return [[round(elapsed_s, 9), lane, version] for elapsed_s, lane, version in changes]


def _stage_fields(lanes: LaneSeconds) -> dict[str, Any]:
    stages: dict[str, float] = {}
    for lane_stages in lanes.values():
        for stage, seconds in lane_stages.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    rounded = {lane: {stage: round(s, 9) for stage, s in lane_stages.items()} for lane, lane_stages in lanes.items()}
    return {"lanes": rounded, "stages_s": {stage: round(seconds, 9) for stage, seconds in stages.items()}}


def store_metrics(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Return the stored form of metrics: the reduction names the value, with the count beside it."""
    return {name: {metric.reduction: metric.value, "count": metric.count} for name, metric in metrics.items()}


def read_metric(metrics: StoredMetrics, name: str) -> Metric | None:
    """Return one stored metric, or None."""
    stored = metrics.get(name)
    if stored is None:
        return None
    for reduction in _REDUCTIONS:
        if reduction in stored:
            return Metric(stored[reduction], reduction, int(stored.get("count", 1)))
    return None


def with_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with NaN and infinities as None, listed under ``non_finite``; unchanged if there are none."""
    places = dict(_non_finite(row, ""))
    if not places:
        return row
    return cast(dict[str, Any], _nulled(row)) | {"non_finite": places}


def _non_finite(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield pointer, "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _non_finite(item, f"{pointer}/{str(key).translate(_ESCAPES)}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _non_finite(item, f"{pointer}/{index}")


def _nulled(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _nulled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nulled(item) for item in value]
    return value


def restore_non_finite(row: dict[str, Any]) -> dict[str, Any]:
    """Put back, in place, the numbers that ``with_nulls`` took out.

    Raises:
        LookupError, ValueError: a pointer leads nowhere or a value is no number.
    """
    for pointer, text in row.pop("non_finite", {}).items():
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        holder: Any = row
        for part in parents:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        holder[int(last) if isinstance(holder, list) else last] = float(text)
    return row
