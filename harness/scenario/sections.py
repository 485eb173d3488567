"""The sections of a scenario: what may be written in each, within which bounds, with which defaults.

Bounds of one value are in its ``Field``; rules that tie several values together are in ``rules``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harness.core.types import SamplingParams

AtLeast0 = Annotated[int, Field(ge=0)]
AtLeast1 = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
DelayedStage = Literal[
    "generate", "score", "prepare_batch", "old_logprobs", "reference_logprobs", "update",
    "weight_publish", "weight_transfer", "weight_load", "weight_verify", "evaluate", "checkpoint",
]  # fmt: skip
LossType = Literal["no_baseline", "reinforce_with_baseline", "naive", "unclipped", "grpo_clip"]
Delta = Literal["rewards", "centered_rewards", "normalized_rewards", "max_rewards", "max_centered_rewards"]
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+=,-]*$"
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
FORMS = {
    _NAME: "letters, digits and _ . + = , - (a letter, digit or _ first)",
    FUNCTION: "of the form `package.module:function`",
}
FolderName = Annotated[str, Field(pattern=_NAME, max_length=100)]
Precision = Literal["float32", "bfloat16"]
NonEmptyText = Annotated[str, Field(min_length=1)]


def _tuple_of_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _empty_of_null(value: object) -> object:
    return {} if value is None else value


def typed(default_type: str) -> Callable[[object], object]:
    """Fill in the section's usual ``type`` where the file leaves it, or the whole section, out."""

    def fill(value: object) -> object:
        if value is None:
            return {"type": default_type}
        return {"type": default_type, **value} if isinstance(value, dict) else value

    return fill


FromList = BeforeValidator(_tuple_of_list)
EmptyIfNull = BeforeValidator(_empty_of_null)


class Section(BaseModel):
    """A block of settings: unknown keys and values of another type are refused, and nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class SamplingSettings(Section):
    """How responses are sampled."""

    temperature: Positive = 1.0
    """Divides the logits; above 0, since equal responses in a group teach nothing."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with at least this probability; 1 is all of them."""
    min_tokens: AtLeast0 = 1
    """A response cannot end before this many tokens. Lagged ratios and monitored KL leave the ban out: slightly off."""
    max_tokens: AtLeast1 = 32
    """A response is cut after this many tokens."""
    stop: Annotated[tuple[NonEmptyText, ...], FromList] = ()
    """Strings that end a response; they stay part of it."""
    pinned_lengths: Annotated[tuple[AtLeast1, AtLeast1] | None, FromList] = None
    """[shortest, longest]: lengths are drawn from the seed and nothing ends a response early: arms do equal work."""

    def to_params(self) -> SamplingParams:
        """Return these settings in the form that engines take."""
        return SamplingParams(
            self.temperature, self.top_p, self.min_tokens, self.max_tokens, self.stop, self.pinned_lengths
        )


class KlSettings(Section):
    """KL divergence to a reference policy: in the loss, monitored, or both."""

    coefficient: NotNegative = 0.0
    """Weight of the KL term in the loss; 0 leaves it out."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL of a token is estimated: with d = log p - log q, k1 = d, k2 = d*d/2, k3 = exp(-d) - 1 + d."""
    reference: Literal["frozen", "reclone"] = "frozen"
    """`frozen`: the initial policy for ever; `reclone`: replaced by the current policy every `reclone_every` steps."""
    reclone_every: AtLeast1 | None = None
    """Training steps between two re-clonings; only with `reference: reclone`."""
    monitor: bool = False
    """Measure the KL to the reference and to the previous policy at each training step."""


class ImportanceSettings(Section):
    """Weights proximal / engine on the loss, truncated."""

    mode: Literal["off", "tis", "icepop", "seq-mask-tis"] = "off"
    """`tis` cuts weights at `cap`; `icepop` leaves out what is outside [floor, cap]; `seq-mask-tis` whole sequences."""
    level: Literal["token", "sequence"] = "token"
    """Whether a weight belongs to a token or to its whole sequence."""
    cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Smallest weight of the masking modes."""


class LossSettings(Section):
    """The policy-gradient loss."""

    type: LossType = "grpo_clip"
    """`naive`: -log p * delta; `unclipped`: -ratio * delta; `grpo_clip` clips the ratio; the others are naive too."""
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    """Mean over each response then over responses; one mean over all tokens; or sums over a constant (Dr. GRPO)."""
    constant: AtLeast1 | None = None
    """Divisor of `aggregation: constant`; null takes sampling.max_tokens."""
    cliprange: Annotated[float, Field(ge=0, le=1)] = 0.2
    """How far the probability ratio may move from 1 before the clip acts."""
    cliprange_high: NotNegative | None = None
    """Upper clip range, where it differs from the lower one (clip-higher)."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound on the ratio for negative advantages (dual clip); null for none."""
    kl: Annotated[KlSettings, EmptyIfNull] = KlSettings()
    """KL divergence to a reference policy."""
    proximal: Literal["engine", "recompute"] = "engine"
    """With lag or replay, what the ratio divides by: the engine's log-probs, or the Learner's at the step's start."""
    importance: Annotated[ImportanceSettings, EmptyIfNull] = ImportanceSettings()
    """Truncated importance sampling: correct for an engine or a policy that is not quite the Learner's."""


class AdvantageSettings(Section):
    """How rewards become advantages, within each group."""

    eps: Positive = 1e-6
    """Added to the group's standard deviation."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation; false only subtracts the mean (Dr. GRPO)."""
    delta: Delta | None = None
    """What weighs a response's loss; null: `rewards` for `loss.type: no_baseline`, else as `normalize_by_std` says."""

    def delta_for(self, loss_type: LossType) -> Delta:
        """Return the delta, for this type of loss: the one that is named, or what follows from the other settings."""
        if self.delta is not None:
            return self.delta
        if loss_type == "no_baseline":
            return "rewards"
        return "normalized_rewards" if self.normalize_by_std else "centered_rewards"


class OptimizerSettings(Section):
    """AdamW."""

    learning_rate: NotNegative = 1e-5
    """Step size, after the warm-up."""
    betas: Annotated[tuple[Beta, Beta], FromList] = (0.9, 0.95)
    """Decay of the two running averages."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive | None = 1.0
    """Gradients are scaled down to this norm; null leaves them as they are."""
    warmup_steps: AtLeast0 = 0
    """Optimizer steps over which the learning rate rises from 0."""


class EvaluationSettings(Section):
    """Validation on held-out prompts: before the first step, every `every` steps, and after the last."""

    every: AtLeast1 = 10
    """Training steps between two validations."""
    prompts: AtLeast1 = 256
    """Validation prompts used, one response each."""
    examples: AtLeast0 = 4
    """Rollouts of each validation kept in the results, to be read."""


class PartSettings(Section):
    """What one part may use."""

    cpus: NotNegative = 1.0
    """CPUs that Ray reserves for it."""
    gpus: NotNegative = 0.0
    """GPUs that Ray reserves for it; a fraction shares one."""
    threads: AtLeast1 | None = None
    """Its CPU threads; null takes model.threads, or else its CPUs."""


class ReplicatedPartSettings(PartSettings):
    """What each of several equal parts may use."""

    count: AtLeast1 = 1
    """How many of them."""


class ScorerSettings(ReplicatedPartSettings):
    """What each Scorer may use."""

    cpus: NotNegative = 0.0
    """CPUs that Ray reserves for it; 0, since most reward functions are light."""


class PlacementSettings(Section):
    """Where the parts run: in this process with `transport.type: in_process`, else as Ray actors."""

    colocated: bool = True
    """Generator and Learner take turns on the same cores or device."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    generator: Annotated[ReplicatedPartSettings, EmptyIfNull] = ReplicatedPartSettings()
    """The Generators."""
    scorer: Annotated[ScorerSettings, EmptyIfNull] = ScorerSettings()
    """The Scorers."""
    learner: Annotated[PartSettings, EmptyIfNull] = PartSettings()
    """The Learner."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray lays the parts over the nodes of a cluster."""
    address: NonEmptyText = "local"
    """`local` starts Ray on this machine; `auto` or HOST:PORT joins a cluster that is running."""
    interface: NonEmptyText = "lo"
    """Network interface of what the harness opens itself (UCX, gloo); `lo` is this machine alone."""


class ReplaySettings(Section):
    """The replay buffer: each fresh batch enters it, and each training step takes a sample of it."""

    capacity: AtLeast0 = 0
    """Groups kept; 0 has no buffer and trains on each batch directly."""
    max_age: AtLeast0 | None = None
    """Versions after which a group is thrown away; null: max_lag, and the steps in which the capacity is refilled."""
    sampling: Literal["newest", "uniform", "reward_weighted"] = "uniform"
    """Which groups a step takes."""
    sample_groups: AtLeast1 | None = None
    """Groups that a step takes; null: as many as a fresh batch has."""
    max_uses: AtLeast1 | None = None
    """How often a group may be trained on; null: no bound."""


class FaultSettings(Section):
    """What to do when a part dies or nothing moves."""

    max_replacements: AtLeast0 = 10
    """How many dead Generators and Scorers are replaced; the next one ends the run."""
    delays: Annotated[dict[DelayedStage, NotNegative], EmptyIfNull] = Field(default_factory=dict)
    """Seconds by which each span of a stage is made longer, by stage: to see whether a comparison finds it."""
    skip_weight_loads: Annotated[tuple[AtLeast1, ...], FromList] = ()
    """Versions whose weights the engine pretends to load: to see whether the engine mismatch finds it."""
    stall_after_s: Positive = 600.0
    """Seconds that one stage may take, or that may pass without any ending; then the run says who waits and stops."""
