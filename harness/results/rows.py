"""The rows of a run's JSONL files: one struct for each kind, which writes the row and which it is checked against.

Each file starts with a header row. A reader skips rows of a ``kind`` it does not know. A field that has its default is
left out. NaN and infinity stand there as Python writes them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from harness.core.types import ExampleRollout, Metric, Metrics, Purpose, RankStep, Reduction, RolloutGroup, ScoredBatch

T = TypeVar("T")

SCHEMA_VERSION = 1
"""Of every file of a run."""
SPANS, STEPS, ROLLOUTS, GROUPS = "spans.jsonl", "steps.jsonl", "rollouts.jsonl", "groups.jsonl"
COUNTERS = "counters.jsonl"
MOST_SECONDS = 1e9
"""Thirty years: more than any time in a run, and as nanoseconds within 64 bits."""
MOST_WHOLE = 2**63 - 1
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
Whole = Annotated[int, Meta(ge=-MOST_WHOLE, le=MOST_WHOLE)]
LaneSeconds = dict[str, dict[str, Seconds]]  # lane -> stage -> seconds
StoredMetrics = Mapping[str, Mapping[str, Whole | float]]  # name -> {reduction: value, "count": n}


class Row(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag=lambda name: name.removesuffix("Row").lower()):
    """A line of a ``file``; its ``kind`` is its class's name without ``Row``."""

    file: ClassVar[str] = STEPS

    @property
    def kind(self) -> str:
        """What the row holds."""
        return str(self.__struct_config__.tag)

    def metric(self, name: str) -> Metric | None:
        """Return a metric of a step or an evaluation, or None if it has none of that name."""
        stored: Mapping[str, float] = getattr(self, "metrics", {}).get(name, {})
        for reduction in REDUCTIONS:
            if reduction in stored:
                count = stored.get("count", 1)
                return Metric(stored[reduction], reduction, int(count) if math.isfinite(count) else 0)
        return None

    def line(self) -> bytes:
        """Return the line of the file."""
        return json.dumps(msgspec.to_builtins(self, enc_hook=float), separators=(",", ":")).encode() + b"\n"


class HeaderRow(Row, frozen=True):
    """The first row of a file."""

    schema: str
    schema_version: int


class VersionChange(NamedTuple):
    """A lane holds another policy version since ``elapsed_s``, in seconds of the loop; -1 where a new part has none."""

    elapsed_s: Seconds
    lane: str
    version: Whole


class SpanRow(Struct, frozen=True, gc=False):
    """A span, as its file has it."""

    file: ClassVar[str] = SPANS
    lane: str
    stage: Annotated[str, Meta(min_length=1, max_length=64)]
    start_ns: Whole
    end_ns: Whole
    step: Whole
    version: Whole


WARMUP_FLOOR = 2
"""Steps that are always warm-up: the first makes things, the second still meets caches that are half full."""
SPEED_PROBE = "probe/speed_s"
"""Metric: seconds of a fixed piece of work between steps; of the one before the step, in its row."""


class StepSeconds(NamedTuple):
    """The seconds of a training step, and whether it had neither an evaluation nor a profiler."""

    step: int
    seconds: float
    plain: bool


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The start of a run that statistics leave out; ``harness.results.warmup`` finds it.

    Attributes:
        steps: how many training steps, from the first.
        steady: whether what follows keeps one level; None where there are too few steps to tell.
        slow_start: whether the run starts on a slower level that ends too late to be cut.
    """

    steps: int
    steady: bool | None
    slow_start: bool = False


def _add_stages(row: TailRow | StepRow) -> None:
    if not row.stages_s:
        msgspec.structs.force_setattr(row, "stages_s", sum_stages(row.lanes))


class TailRow(Row, frozen=True):
    """What ended after the last training step, so that a run's totals are complete; fields as in ``StepRow``."""

    wall_s: Seconds
    elapsed_s: Seconds
    lanes: LaneSeconds
    stages_s: dict[str, Seconds] = {}
    version_changes: tuple[VersionChange, ...] = ()

    def __post_init__(self) -> None:
        _add_stages(self)


class StepRow(Row, frozen=True):
    """One training step.

    Attributes:
        version: the policy version it made.
        wall_s: since the previous row, or since the loop's start.
        elapsed_s: since the loop's start.
        lanes: of the spans that ended in this row's window; an instant under two spans of a lane counts for the one
            that began last.
        stages_s: the same summed over the parts: of a Learner of several ranks, the seconds in which any rank was in
            the stage, and in a wait those in which none worked. Where it is not given, the sums over the lanes.
        versions: the policy version that each lane held at the end of the row; a lane without weights is missing.
        lags: how many of the rollouts trained on were how many versions behind; a rollout's oldest token counts.
        warmup, profiled: not in the steady state yet; a profiler ran: left out of statistics.
        optimizer_step_metrics: of the optimizer steps, where there are several.
        ranks: what each rank of the Learner did; empty where it is one process.
    """

    step: Whole
    version: Whole
    wall_s: Seconds
    elapsed_s: Seconds
    optimizer_steps: Whole
    lanes: LaneSeconds
    stages_s: dict[str, Seconds] = {}
    metrics: StoredMetrics = {}
    versions: Mapping[str, Whole] = {}
    version_changes: tuple[VersionChange, ...] = ()
    lags: Mapping[Whole, Whole] = {}
    warmup: bool = False
    profiled: bool = False
    optimizer_step_metrics: Mapping[str, tuple[float, ...]] = {}
    ranks: tuple[RankStep, ...] = ()

    def __post_init__(self) -> None:
        _add_stages(self)


class EvaluationRow(Row, frozen=True):
    """One evaluation of a policy version; ``step`` is the number of training steps made by then."""

    version: Whole
    step: Whole
    elapsed_s: Seconds
    metrics: StoredMetrics


class RolloutRow(Row, frozen=True):
    """One rollout kept for people to read. Its text is generated: treat it as untrusted.

    ``step``, ``advantage`` and ``log_probs`` are of one that was trained on: the training step, what its loss was
    weighed by, and the log-probabilities of its first tokens as the engine reported them at sampling.
    """

    file: ClassVar[str] = ROLLOUTS
    purpose: str
    version: Whole
    prompt: str
    response: str
    ground_truth: str
    reward: float
    num_tokens: Whole
    finish_reason: str
    step: Whole | None = None
    advantage: float | None = None
    log_probs: tuple[float, ...] = ()

    @classmethod
    def of(cls, rollout: ExampleRollout, purpose: Purpose, step: int | None = None) -> RolloutRow:
        """Return the row of a rollout; ``step`` is the one that trained on it."""
        trained = None if rollout.advantage is None else step
        return cls(purpose=purpose.value, step=trained, **asdict(rollout))


class GroupsRow(Row, frozen=True):
    """Groups of one scored shard, by group.

    Attributes:
        step: number of the rollout batch, or for an evaluation the policy version.
        versions: (oldest, newest) policy version of each group's tokens.
        lengths: response tokens of each rollout.
    """

    file: ClassVar[str] = GROUPS
    step: Whole
    shard: Whole
    prompt_ids: tuple[Whole, ...]
    versions: tuple[tuple[Whole, Whole], ...]
    lengths: tuple[tuple[Whole, ...], ...]
    rewards: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name in ("versions", "lengths", "rewards", "prompt_tokens", "attempts"):
            items = len(getattr(self, name, self.prompt_ids))
            if items != len(self.prompt_ids) and (items or name != "attempts" or isinstance(self, DiscardedRow)):
                raise ValueError(f"{name!r} has {items} items for {len(self.prompt_ids)} groups")


class ShardRow(GroupsRow, frozen=True):
    """The rollouts of one scored shard.

    Attributes:
        prompt_tokens: None where no tokens are behind a prompt.
        failed_groups: groups that got no reward and are in no other field.
        attempts: how often each group's place had been sampled before; empty where no group was sampled again.
    """

    purpose: str
    prompt_tokens: tuple[Whole | None, ...]
    failed_groups: Whole = 0
    attempts: tuple[Whole, ...] = ()

    @classmethod
    def of(cls, scored: ScoredBatch) -> ShardRow:
        """Return the row of a scored shard."""
        groups = scored.groups
        return cls(
            **_columns(scored, groups),
            purpose=scored.item.purpose.value,
            prompt_tokens=tuple(group.prompt_length for group in groups),
            failed_groups=scored.failed_groups,
            attempts=tuple(group.attempt for group in groups) if any(group.attempt for group in groups) else (),
        )


class DiscardedRow(GroupsRow, frozen=True):
    """The groups of a shard that dynamic sampling discarded; ``attempts`` as in ``ShardRow``."""

    attempts: tuple[Whole, ...]

    @classmethod
    def of(cls, scored: ScoredBatch) -> DiscardedRow:
        """Return the row of a scored shard's discarded groups."""
        groups = scored.discarded or ()
        return cls(**_columns(scored, groups), attempts=tuple(group.attempt for group in groups))


def _columns(scored: ScoredBatch, groups: Sequence[RolloutGroup]) -> dict[str, Any]:
    return {
        "step": scored.item.step,
        "shard": scored.item.shard,
        "prompt_ids": tuple(group.prompt_id for group in groups),
        "versions": tuple((group.min_version, group.max_version) for group in groups),
        "lengths": tuple(group.lengths for group in groups),
        "rewards": tuple(group.rewards for group in groups),
    }


class BatchRow(Row, frozen=True):
    """The groups that a training step trained on, where that is not the fresh batch: (batch number, prompt id)."""

    file: ClassVar[str] = GROUPS
    step: Whole
    groups: tuple[tuple[Whole, Whole], ...]


class SyncRow(Row, frozen=True):
    """One timed weight sync of a transport sweep, of the slowest receiver.

    Attributes:
        repeat: 0 was not counted, since it sets connections up and touches fresh memory.
        total_s: from the start of the publish until the weights are in tensors of the slowest receiver's own, without
            verification. Where a transport delivers into the receiver's own memory, ``load_s`` is not part of it.
        plain_copy_s: one copy of as many bytes in warm memory, right after it.
    """

    transport: str
    num_bytes: Whole
    tensors: Whole
    receivers: Whole
    repeat: Whole
    total_s: Seconds
    publish_s: Seconds
    transfer_s: Seconds
    load_s: Seconds
    verify_s: Seconds
    plain_copy_s: Seconds


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A number of rollouts and their response tokens."""

    rollouts: Whole
    tokens: Whole

    @property
    def mean_length(self) -> float | None:
        """Tokens of a rollout on average; None without rollouts."""
        return self.tokens / self.rollouts if self.rollouts else None


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """A run's rollouts by outcome: the columns of ``harness.loop.RolloutCounts``, from the manifest's outcome."""

    generated: Rollouts
    failed: Rollouts
    dropped: Rollouts
    trained: Rollouts
    trained_again: Rollouts
    unused: Rollouts
    discarded: Rollouts = Rollouts(0, 0)

    def share(self, column: Rollouts) -> float:
        """Return a column's share of the generated rollouts; 0 where there were none."""
        return column.rollouts / self.generated.rollouts if self.generated.rollouts else 0.0


OPTIMIZER_STEP_METRICS = ("loss", "grad_norm", "clip_fraction", "kl/penalty")
MOST_OPTIMIZER_STEPS = 64
"""Optimizer steps of a training step that are kept; of more, so many evenly spaced ones."""


def optimizer_step_columns(steps: Sequence[Metrics]) -> dict[str, tuple[float, ...]]:
    """Return the values of a training step's optimizer steps by metric, with six digits; empty where there is one."""
    if len(steps) < 2:
        return {}
    most = min(len(steps), MOST_OPTIMIZER_STEPS)
    kept = [steps[place * len(steps) // most] for place in range(most)]
    names = [name for name in OPTIMIZER_STEP_METRICS if all(name in metrics for metrics in kept)]
    return {name: tuple(float(f"{metrics[name].value:.6g}") for metrics in kept) for name in names}


def lane_kind(lane: str) -> str:
    """Return what a lane is, without its number: ``generator1`` is a ``generator``, ``learner/1`` a ``learner``."""
    return part_of(lane).rstrip("0123456789").rstrip("_")


def part_of(lane: str) -> str:
    """Return the part that a lane belongs to: ``learner`` of ``learner/1``, and of any other lane itself."""
    return lane.partition("/")[0]


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names with numbers as numbers: ``learner/2`` before ``learner/10``, k2 before k10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def in_pipeline_order(lanes: Iterable[str]) -> list[str]:
    """Sort lanes as work flows through them: Generators, Scorers, Learner, then any others; naturally within."""
    kinds = ("generator", "scorer", "learner")
    return sorted(lanes, key=lambda lane: ([*map(lane.startswith, kinds), True].index(True), natural_order(lane)))


def sum_stages(lanes: LaneSeconds) -> dict[str, float]:
    """Return the seconds of each stage, added over the lanes, to the nanosecond."""
    stages: dict[str, float] = {}
    for lane_stages in lanes.values():
        for stage, seconds in lane_stages.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    return {stage: round(seconds, 9) for stage, seconds in stages.items()}


def store_metrics(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Return the stored form of metrics: the reduction names the value, with the count beside it."""
    return {name: {metric.reduction: metric.value, "count": metric.count} for name, metric in metrics.items()}


def with_nulls(value: T) -> T:
    """Return what goes into a JSON document for other programs: NaN and infinities as None."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=float), type=type(value))
