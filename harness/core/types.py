"""The values that pass between the parts: frozen dataclasses, no torch, no Ray, no I/O.

Data that may be large (token ids, weights) travels as an opaque ``data``: the object itself in an in-process run, an
object reference in a distributed one, nothing in a simulated one. The loop never looks inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from harness.core.rewards import rewards_differ

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Purpose(StrEnum):
    """What a work item's rollouts are for."""

    TRAIN = "train"
    EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How responses are sampled.

    ``temperature`` 0 means greedy. Log-probabilities are those of the distribution that was sampled from: after the
    temperature, and after top-p. ``stop`` strings end a response and stay part of it. With ``pinned_lengths``, the
    shortest and the longest in tokens, nothing ends a response early: its length is drawn uniformly from there by the
    request's seed and its place, whatever the policy says. So two runs do the same amount of work.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_tokens: int = 0
    max_tokens: int = 32
    stop: tuple[str, ...] = ()
    pinned_lengths: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled response as an engine returns it.

    ``token_ids`` is int64 (T,) and includes the end token where one was sampled; ``log_probs`` is float32
    (T,), one for each token; ``text`` leaves special tokens out. ``versions`` is int64 (T,), the policy version that
    sampled each token; None where one version sampled them all.
    """

    token_ids: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float32]
    text: str
    finish_reason: Literal["stop", "length"]
    versions: npt.NDArray[np.int64] | None = None


Turn = tuple[str, str]
"""A turn of a chat: its role and its content."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task's prompt: the text given to the policy and what the reward function compares with.

    ``turns`` are those of a prompt that is a chat, and ``text`` then is what people read of it. ``row`` is the whole
    row of the data file it comes from, where a reward function takes it, and ``where`` file and line; no parts of its
    value.
    """

    text: str
    ground_truth: str
    row: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    turns: tuple[Turn, ...] | None = None
    where: str | None = field(default=None, compare=False, repr=False)

    @property
    def asked(self) -> str | tuple[Turn, ...]:
        """What is encoded: the turns of a chat, else the text."""
        return self.turns or self.text


@dataclass(frozen=True, slots=True, eq=False)
class GroupData:
    """The tokens of one group (``group_size`` responses to one prompt); the ``data`` of an in-process RolloutGroup."""

    prompt: Prompt
    prompt_token_ids: npt.NDArray[np.int64]
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One generation order: these prompts, ``group_size`` responses each.

    ``step`` is the number of the rollout batch (where batches are consumed in order, the training step that consumes
    it), or for an evaluation the policy version evaluated. ``shard`` counts the parts into which a batch is split over
    several Generators, and ``first`` is the place of its first prompt in the batch: the random stream of a sample
    depends on the seed of the batch, the place of its prompt and its own number, and not on how many Generators there
    are. ``attempt`` is 0 for what a batch is first sampled with; in later ones, which have other seeds, the groups at
    the places ``again`` are sampled anew (dynamic sampling).
    """

    purpose: Purpose
    step: int
    shard: int
    prompt_ids: tuple[int, ...]
    group_size: int
    seed: int
    first: int = 0
    attempt: int = 0
    again: tuple[int, ...] = ()

    @property
    def places(self) -> Sequence[int]:
        """Places of the prompts in the rollout batch."""
        return self.again or range(self.first, self.first + len(self.prompt_ids))


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The rollouts of one prompt: metadata that the loop may read, and the opaque data that it may not.

    ``min_version`` and ``max_version`` are the policy versions of the oldest and the newest token, ``mean_version`` is
    the mean over tokens (None: all are of one version); ``rewards`` is None until the Scorer has filled it.
    ``prompt_length`` is None where no tokens are behind the group. ``attempt`` is that of its order. ``truncated`` says
    which responses were cut at ``max_tokens``; empty where nobody tells.
    ``dropped_special`` counts responses whose text leaves out special tokens that do not end it.
    """

    prompt_id: int
    step: int
    min_version: int
    max_version: int
    lengths: tuple[int, ...]
    data: Any = field(repr=False, default=None)
    rewards: tuple[float, ...] | None = None
    mean_version: float | None = None
    prompt_length: int | None = None
    attempt: int = 0
    truncated: tuple[bool, ...] = ()
    dropped_special: int = 0

    @property
    def token_version(self) -> float:
        """Mean policy version over the group's tokens."""
        return self.min_version if self.mean_version is None else self.mean_version

    @property
    def has_spread(self) -> bool:
        """Whether its rewards differ, by ``rewards_differ``; else advantages are 0. Unknown ones count as different."""
        return not self.rewards or rewards_differ(min(self.rewards), max(self.rewards))

    @property
    def num_tokens(self) -> int:
        """Response tokens of all the group's rollouts."""
        return sum(self.lengths)


Reduction = Literal["mean", "sum", "max", "min"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that knows how to be combined, so that a mean of means cannot happen.

    For ``mean``, ``value`` is the mean over ``count`` items and combining weights by the counts.
    """

    value: float
    reduction: Reduction = "mean"
    count: int = 1

    def combine(self, other: Metric) -> Metric:
        """Return the metric of both sets of items together.

        Raises:
            ValueError: the reductions differ.
        """
        if self.reduction != other.reduction:
            raise ValueError(f"cannot combine a {self.reduction} with a {other.reduction}")
        count = self.count + other.count
        match self.reduction:
            case "mean":
                total = self.value * self.count + other.value * other.count
                value = total / count if count else float("nan")
            case "sum":
                value = self.value + other.value
            case "max":
                value = max(self.value, other.value)
            case "min":
                value = min(self.value, other.value)
        return Metric(value, self.reduction, count)


Metrics = dict[str, Metric]


def combine_metrics(parts: list[Metrics]) -> Metrics:
    """Combine several metric dicts name by name; a name may be missing from some of them."""
    combined: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            combined[name] = combined[name].combine(metric) if name in combined else metric
    return combined


@dataclass(frozen=True, slots=True)
class ExampleRollout:
    """A rollout kept for people to read. The text is generated, so whoever shows it must treat it as untrusted.

    Attributes:
        version: policy version that sampled its group's newest token.
        advantage: what its loss was weighed by; None for a rollout that nobody trained on.
        log_probs: of its first tokens, as the engine reported them at sampling; kept with ``advantage``.
    """

    prompt: str
    response: str
    ground_truth: str
    reward: float
    num_tokens: int
    finish_reason: str
    version: int
    advantage: float | None = None
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """What the Scorer returns for one work item: the groups with rewards, metrics, and examples to show.

    A group whose reward function failed or ran out of time is missing from ``groups`` and counted in ``failed_groups``;
    ``failure`` says what happened to the first of them. ``discarded`` are groups without spread for which others were
    sampled, without their data; None where there is no dynamic sampling.
    """

    item: WorkItem
    groups: tuple[RolloutGroup, ...]
    metrics: Metrics
    examples: tuple[ExampleRollout, ...] = ()
    failed_groups: int = 0
    failure: str | None = None
    discarded: tuple[RolloutGroup, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LogProbProbe:
    """What an engine must say of a few rollouts if it holds the Learner's weights.

    ``prompts`` and ``responses`` are token ids; ``log_probs`` are the Learner's log-probabilities of each response's
    tokens, float32 (T,), at temperature 1 over the whole vocabulary.
    """

    prompts: tuple[npt.NDArray[np.int64], ...]
    responses: tuple[npt.NDArray[np.int64], ...]
    log_probs: tuple[npt.NDArray[np.float32], ...]


@dataclass(frozen=True, slots=True)
class PartChecksum:
    """Of what one rank of a Learner published: ``slices`` (``transports.shards.TensorSlice``) say of which blocks."""

    rank: int
    checksum: str
    slices: tuple[Any, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class WeightHandle:
    """Published weights: version, size, checksum, and the opaque payload a Generator loads them from.

    ``checksum`` is of all weights, or in parts where several ranks published them. ``probe``, where the engine's
    log-probabilities are compared after each load, is of these weights.
    """

    version: int
    num_bytes: int
    num_tensors: int
    checksum: str | tuple[PartChecksum, ...] | None = None
    payload: Any = field(repr=False, default=None)
    probe: LogProbProbe | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one rank of a Learner did in a training step, from the moment at which all of them were there.

    Attributes:
        tokens: that it ran, prompts included, added over the passes.
        cost: the predicted operations of its rollouts, where the plan was made by cost; else its tokens.
        computing_s: seconds that its thread was on a processor; None where a GPU computes, as is the next.
        runnable_s: seconds that its thread wanted a processor and had none; None where the system does not say.
        blocked_s: the rest: seconds that it waited in collectives, or for them; None where a GPU computes.
        late_s: how much later than the first rank it was there.
    """

    tokens: int
    cost: float
    computing_s: float | None
    runnable_s: float | None
    blocked_s: float | None
    late_s: float


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one training step did to the policy.

    Attributes:
        metrics: of the training step.
        optimizer_step_metrics: of each of its optimizer steps; empty where the trainer does not tell.
        examples: rollouts of one of its groups; empty in most steps.
        ranks: what each rank of the Learner did; empty where it is one process.
        advantages: of each rollout trained on, group by group; empty where the trainer does not tell.
    """

    version: int
    optimizer_steps: int
    metrics: Metrics
    optimizer_step_metrics: Sequence[Metrics] = ()
    examples: tuple[ExampleRollout, ...] = ()
    ranks: tuple[RankStep, ...] = ()
    advantages: tuple[float, ...] = ()
