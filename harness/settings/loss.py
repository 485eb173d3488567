"""The loss and its advantages, and which forward passes a training step needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.core.clip_ranges import usual_clip_range
from harness.settings.base import FUNCTION, AtLeast1, Fraction, HoldsFor, NotNegative, Positive, Settings

LossType = Literal["no_baseline", "reinforce_with_baseline", "naive", "unclipped", "grpo_clip", "cispo", "own"]
Delta = Literal[
    "rewards",
    "centered_rewards",
    "normalized_rewards",
    "max_rewards",
    "max_centered_rewards",
    "leave_one_out_rewards",
    "batch_normalized_rewards",
    "batch_whitened_rewards",
    "own",
]


KlEstimator = Literal["k1", "k2", "k3"]


FunctionName = Annotated[str, Field(pattern=FUNCTION)]
WITH_RATIO = ("grpo_clip", "unclipped", "cispo")
"""Losses with a probability ratio, so that data of an older policy does not go uncorrected."""
CLIPPED = ("grpo_clip", "cispo", "own")
"""Losses that take a clip range."""
CLIP_RANGE = ("cliprange", "cliprange_high")
LEAST_FOR_TOKENS = 0.1
"""Ranges from here on are meant for ratios of single tokens: papers have 0.1 to 0.3, those of GSPO 0.0004 at most."""


def _clip_of(loss: Mapping[str, Any]) -> object:
    """Return the range of a loss that clips by itself, or a user's own, which is handed it; None for any other."""
    loss_type, level = loss.get("type", "grpo_clip"), loss.get("ratio_level", "token")
    return usual_clip_range(loss_type, level) if loss_type in CLIPPED else None


def _bounds_of(importance: Mapping[str, Any]) -> object:
    """Return whose bounds the weights have."""
    return importance.get("mode", "off")


class KlSettings(Settings):
    """KL divergence to a reference policy: in the loss, monitored, or both."""

    coefficient: NotNegative = 0.0
    """Weight of the KL term in the loss; 0 leaves it out."""
    estimator: KlEstimator = "k3"
    """With d = log p - log q, k1 = d, k2 = d*d/2, k3 = exp(-d) - 1 + d; as a loss k1 has an expected gradient of 0."""
    weighted_by_ratio: bool = False
    """Multiply the KL in the loss by the ratio, with gradient: then k1's and k3's is the KL's own, off-policy too."""
    reference: Literal["frozen", "reclone", "polyak"] = "frozen"
    """The initial policy (frozen); replaced by the current one at intervals; or averaged towards it at intervals."""
    reclone_every: AtLeast1 | None = None
    """Training steps between two replacements; only with `reference: reclone`."""
    alpha: Fraction | None = None
    """For `polyak`: reference <- (1 - alpha) * reference + alpha * policy, in float32."""
    monitor: bool = False
    """Measure the KL to the reference and to the previous policy at each training step."""


USUAL_BOUNDS = {
    "off": (0.0, math.inf),
    "tis": (0.0, 2.0),  # the cap of Yao et al. 2025
    "icepop": (0.5, 5.0),  # of NeMo-RL's docs/guides/prorlv2.md, as the next one
    "seq-mask-tis": (0.999, 1.002),
}
"""Smallest and largest ratio of each mode, where none is set."""


class ImportanceSettings(Settings):
    """Weights proximal / engine on the loss, bounded."""

    mode: Literal["off", "tis", "icepop", "seq-mask-tis"] = "off"
    """`tis` cuts weights at `cap`; `icepop` zeroes those out of bounds; `seq-mask-tis` responses whose mean is."""
    level: Literal["token", "sequence"] = "token"
    """Whether a weight belongs to a token or to its whole sequence."""
    cap: Annotated[Annotated[float, Field(ge=1)] | None, HoldsFor(_bounds_of)] = None
    """Upper bound; null: 2 for `tis`, 5 for `icepop`, 1.002 (of the geometric mean) for `seq-mask-tis`."""
    floor: Annotated[Annotated[float, Field(ge=0, le=1)] | None, HoldsFor(_bounds_of)] = None
    """Lower bound; null: 0.5 for `icepop`, 0.999 (of the geometric mean) for `seq-mask-tis`; `tis` has none."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest ratio: as set, else the mode's own."""
        floor, cap = USUAL_BOUNDS[self.mode]
        return (floor if self.floor is None else self.floor, cap if self.cap is None else self.cap)


class LossSettings(Settings):
    """The policy-gradient loss."""

    type: LossType = "grpo_clip"
    """`naive`: -log p * delta; `unclipped`: -ratio * delta; `grpo_clip`; `cispo`; `own`; the others are naive too."""
    function: FunctionName | None = None
    """Your loss for `type: own`, as `package.module:function`; its arguments are in docs/losses.md."""
    ratio_level: Literal["token", "sequence"] = "token"
    """The ratio of each token, or of its whole response: the geometric mean of its tokens' (GSPO)."""
    aggregation: Literal["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"] = "sequence_mean"
    """Mean or sum over each response, then mean over responses; one mean over all tokens; mean over the tokens of each
    group, then over groups; or sums over a constant (Dr. GRPO)."""
    constant: AtLeast1 | None = None
    """Divisor of `aggregation: constant`; null takes sampling.max_tokens."""
    cliprange: Annotated[Annotated[float, Field(ge=0, le=1)] | None, HoldsFor(_clip_of)] = None
    """How far the ratio may fall below 1 (and rise above) unclipped; null: 0.2, GSPO 0.0003, `cispo` 1: no bound."""
    cliprange_high: Annotated[NotNegative | None, HoldsFor(_clip_of)] = None
    """How far it may rise (clip-higher); null: as `cliprange`, or with that null too 0.2, GSPO 0.0004, `cispo` 4."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound on the ratio for negative advantages (dual clip); null for none."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the entropy bonus: times the entropy of each token's distribution, taken from the loss; 0 for none."""
    mask_truncated: bool = False
    """Leave responses cut at sampling.max_tokens out of the loss; their rewards still count in their group's mean."""
    ban_eos: bool = False
    """Have the Learner leave the end tokens out where the engine had to (sampling.min_tokens), which is exact."""
    kl: KlSettings = KlSettings()
    """KL divergence to a reference policy."""
    proximal: Literal["engine", "recompute"] = "engine"
    """With lag or replay, what the ratio divides by: the engine's log-probs, or the Learner's at the step's start."""
    importance: ImportanceSettings = ImportanceSettings()
    """Importance sampling: weights that correct for an engine or a policy that differs from the Learner's."""

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the ratio may fall below 1 and rise above it: as set, else the type's own."""
        low, high = usual_clip_range(self.type, self.ratio_level)
        if self.cliprange is not None:
            low = high = self.cliprange
        return low, high if self.cliprange_high is None else self.cliprange_high

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self.kl.monitor or self.kl.coefficient > 0

    def old_is_engine(self, behaviour_is_older: bool) -> bool:
        """Return whether the ratio divides by the engine's log-probs; else by the Learner's own at the step's start.

        Rollouts may be of an older policy (lag or replay), so that only the engine speaks for it.
        """
        return behaviour_is_older and self.proximal == "engine"

    def needs_old_log_probs(self, behaviour_is_older: bool, optimizer_steps: int) -> bool:
        """Return whether the Learner computes log-probs of its own at the start of the training step.

        As old log-probs the ratio needs them; with one optimizer step the policy's own detached ones are the same, for
        the ratio and for importance weights. Monitoring needs them as its p, whatever the ratio divides by.
        """
        return self.kl.monitor or (optimizer_steps > 1 and not self.old_is_engine(behaviour_is_older))


class AdvantageSettings(Settings):
    """How rewards become advantages, within each group."""

    eps: Positive = 1e-6
    """Added to the group's standard deviation."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation; false only subtracts the mean (Dr. GRPO)."""
    delta: Delta | None = None
    """What weighs a response's loss; null: `rewards` for `loss.type: no_baseline`, else as `normalize_by_std` says."""
    function: FunctionName | None = None
    """Your advantage for `delta: own`, as `package.module:function`; its arguments are in docs/losses.md."""

    def delta_for(self, loss_type: LossType) -> Delta:
        """Return the delta, for this type of loss: the one that is named, or what follows from the other settings."""
        if self.delta is not None:
            return self.delta
        if loss_type == "no_baseline":
            return "rewards"
        return "normalized_rewards" if self.normalize_by_std else "centered_rewards"
