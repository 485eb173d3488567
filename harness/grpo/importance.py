"""Importance weights: correcting for tokens that another policy sampled than the one the ratio is clipped against.

Two gaps are told apart (decoupled PPO: Hilton et al., arXiv:2110.00641; AReaL, arXiv:2505.24298). The clipped ratio,
policy / proximal, bounds how far the update moves. The weight, proximal / engine, corrects for who sampled: the engine,
by its numerics alone at lag 0, and as an older policy with lag or replay. The proximal policy is the Learner's own at
the start of the training step, so the weights are the same in every pass over a rollout batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.kl import kl_estimate
from harness.grpo.masking import at_least_float32, require_matrix, require_same_shape, unknown_choice, zero_masked
from harness.grpo.ratio import LARGEST_LOG_RATIO
from harness.grpo.tally import Tally, max_tally, mean_tally

ImportanceMode = Literal["off", "tis", "icepop", "seq-mask-tis"]
ImportanceLevel = Literal["token", "sequence"]

_BOUNDS: dict[str, tuple[float, float]] = {
    "off": (0.0, math.inf),
    "tis": (0.0, 2.0),  # the cap of Yao et al. 2025
    "icepop": (0.5, 5.0),  # of NeMo-RL's docs/guides/prorlv2.md, as the next one
    "seq-mask-tis": (0.999, 1.002),
}
"""Smallest and largest ratio of each mode, where none is given."""


@dataclass(frozen=True, slots=True)
class ImportanceOptions:
    """How the ratio proximal / engine becomes a weight on the loss.

    Attributes:
        mode: ``off``, ``tis``, ``icepop`` or ``seq-mask-tis``; see ``importance_weights``.
        level: ``token`` gives each token its own ratio; ``sequence`` gives every token of a response the product of all
            of them. ``seq-mask-tis`` has both levels built in and takes ``token`` only.
        cap: upper bound of the ratio, at least 1, so that a ratio of 1 always passes; of its geometric mean for
            ``seq-mask-tis``. None: the mode's own, 2 for ``tis``, 5 for ``icepop``, 1.002 for ``seq-mask-tis``.
        floor: lower bound of the same, from 0 to 1; ``tis`` has none and does not read it. None: the mode's own, 0.5
            for ``icepop``, 0.999 for ``seq-mask-tis``.

    Raises:
        UserError: a value is unknown or out of bounds.
    """

    mode: ImportanceMode = "off"
    level: ImportanceLevel = "token"
    cap: float | None = None
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(ImportanceMode):
            raise unknown_choice("mode", self.mode, get_args(ImportanceMode))
        if self.level not in get_args(ImportanceLevel):
            raise unknown_choice("level", self.level, get_args(ImportanceLevel))
        if self.cap is not None and not self.cap >= 1:
            raise UserError(f"cap is {self.cap}, it must be at least 1", where="cap", fix="set cap to 2.0")
        if self.floor is not None and not 0 <= self.floor <= 1:
            raise UserError(f"floor is {self.floor}, it must be from 0 to 1", where="floor", fix="set floor to 0.5")
        if self.mode == "seq-mask-tis" and self.level == "sequence":
            raise UserError(
                "level is 'sequence' with mode 'seq-mask-tis', which masks by sequence and weights by token",
                where="level",
                fix="set level to 'token', or mode to 'icepop' to mask and weight by sequence",
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest ratio: as given, else the mode's own."""
        floor, cap = _BOUNDS[self.mode]
        return (floor if self.floor is None else self.floor, cap if self.cap is None else self.cap)


def importance_weights(
    proximal_log_probs_BT: Tensor,
    engine_log_probs_BT: Tensor,
    response_mask_BT: Tensor,
    options: ImportanceOptions,
) -> tuple[Tensor, dict[str, Tally]]:
    """Return the weight of each token's loss, made from w = exp(log p_proximal - log p_engine).

    - ``off``: 1, uncorrected.
    - ``tis``: min(w, cap). Truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings
      You Off-Policy RL Training", https://fengyao.notion.site/off-policy-rl; after Ionides 2008).
    - ``icepop``: w inside [floor, cap], else 0 (IcePop; Ring-1T, arXiv:2510.18855).
    - ``seq-mask-tis``: 0 for every token of a response whose geometric mean of w, exp(mean over tokens of log w), is
      outside [floor, cap]; else each token's own w. That w is *not* truncated, whatever the name says: so NeMo-RL
      (docs/guides/prorlv2.md: "use the raw, non-truncated token-level IS ratios", and ``ClippedPGLossFn``) and OpenRLHF
      define it. The mask is the geometric one of Liu, Li et al. 2025, "When Speed Kills Stability: Demystifying RL
      Collapse from the Training-Inference Mismatch", https://richardli.xyz/rl-collapse. A geometric mean lies much
      closer to 1 than the ratios of single tokens, so its bounds are tight; the wide ones of the other modes would mask
      next to nothing and leave every weight as large as it is.

    At level ``sequence``, ``tis`` and ``icepop`` take for w the product over the response's tokens, exp(sum of log w):
    the ratio of the whole responses' probabilities, as in the sequence-level truncated and masked importance sampling
    of Liu, Li et al. It leaves [floor, cap] the sooner, the longer a response is. The geometric mean, which does not,
    only masks, in ``seq-mask-tis``.

    A token of weight 0 still counts in the loss's denominator, as in IcePop's objective. A log w counts as at most 80
    in a weight, as in ``compute_grpo_clip_loss``; a NaN stays one, so that it stops the run.

    Args:
        proximal_log_probs_BT: (B, T), of the Learner's policy at the start of the training step.
        engine_log_probs_BT: (B, T), as the engine reported them at sampling.
        response_mask_BT: (B, T), 1 on response tokens.
        options: which mode, level and bounds.

    Returns:
        The weights (B, T), float32 at least, without gradient, 0 where the mask is 0; and tallies over response tokens.
        ``engine_mismatch/kl`` is the k3 estimate of KL(engine || proximal). Unless the mode is ``off``:
        ``importance/mean`` and ``importance/max`` of w before any bound (of its level, a response's w counted once for
        each of its tokens), ``importance/truncated_fraction`` of tokens whose weight is not w, and among these
        ``importance/masked_fraction`` of tokens whose weight was set to 0.

    Raises:
        UserError: a shape is another one.
    """
    require_matrix("proximal_log_probs", proximal_log_probs_BT)
    require_same_shape("engine_log_probs", engine_log_probs_BT, "proximal_log_probs", proximal_log_probs_BT)
    require_same_shape("response_mask", response_mask_BT, "proximal_log_probs", proximal_log_probs_BT)
    proximal_BT, engine_BT = (
        zero_masked(at_least_float32(log_probs_BT.detach()), response_mask_BT)
        for log_probs_BT in (proximal_log_probs_BT, engine_log_probs_BT)
    )
    tallies = {"engine_mismatch/kl": mean_tally(kl_estimate(engine_BT, proximal_BT, "k3"), response_mask_BT)}
    log_ratio_BT = proximal_BT - engine_BT
    if options.mode == "off":
        return zero_masked(torch.ones_like(log_ratio_BT), response_mask_BT), tallies
    ratio_BT = _ratio(_summed(log_ratio_BT) if options.level == "sequence" else log_ratio_BT)
    bounded_BT = _out_of_bounds(ratio_BT, log_ratio_BT, response_mask_BT, options)
    bound = options.bounds[1] if options.mode == "tis" else 0.0
    weights_BT = torch.where(bounded_BT, bound, ratio_BT)
    tallies |= {
        "importance/mean": mean_tally(ratio_BT, response_mask_BT),
        "importance/max": max_tally(ratio_BT, response_mask_BT),
        "importance/truncated_fraction": mean_tally(bounded_BT, response_mask_BT),
        "importance/masked_fraction": mean_tally(bounded_BT & (weights_BT == 0), response_mask_BT),
    }
    return zero_masked(weights_BT, response_mask_BT), tallies


def _out_of_bounds(ratio_BT: Tensor, log_ratio_BT: Tensor, mask_BT: Tensor, options: ImportanceOptions) -> Tensor:
    """Return where the weight is not the ratio. Comparisons with NaN are false: a NaN passes, to be seen."""
    floor, cap = options.bounds
    if options.mode == "tis":
        return ratio_BT > cap
    judged_BT = _ratio(_averaged(log_ratio_BT, mask_BT)) if options.mode == "seq-mask-tis" else ratio_BT
    return (judged_BT < floor) | (judged_BT > cap)


def _ratio(log_ratio_BT: Tensor) -> Tensor:
    return log_ratio_BT.clamp(max=LARGEST_LOG_RATIO).exp()


def _summed(log_ratio_BT: Tensor) -> Tensor:
    return log_ratio_BT.sum(dim=1, keepdim=True).expand_as(log_ratio_BT)


def _averaged(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return _summed(log_ratio_BT) / mask_BT.bool().sum(dim=1, keepdim=True)
