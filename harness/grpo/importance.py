"""Importance weights: correcting for tokens that another policy sampled than the one the ratio is clipped against.

Two gaps are told apart (decoupled PPO: Hilton et al., arXiv:2110.00641; AReaL, arXiv:2505.24298). The clipped ratio,
policy / proximal, bounds how far the update moves. The weight, proximal / engine, corrects for who sampled: the engine,
by its numerics alone at lag 0, and as an older policy with lag or replay. The proximal policy is the Learner's own at
the start of the training step, so the weights are the same in every pass over a rollout batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.grpo.kl import kl_estimate
from harness.grpo.masking import zero_masked
from harness.grpo.tally import Tally, max_tally, mean_tally
from harness.grpo.tokens import TokenBatch, bounded_exp, mean_of_responses

if TYPE_CHECKING:
    from harness.settings.loss import ImportanceSettings


def importance_weights(tokens: TokenBatch, settings: ImportanceSettings) -> tuple[Tensor, dict[str, Tally]]:
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
        tokens: the proximal policy is that of the old log-probs, the Learner's at the start of the training step.
        settings: which mode, level and bounds.

    Returns:
        The weights (B, T), float32 at least, without gradient, 0 where the mask is 0; and tallies over response tokens.
        ``engine_mismatch/kl`` is the k3 estimate of KL(engine || proximal). Unless the mode is ``off``:
        ``importance/mean`` and ``importance/max`` of w before any bound (of its level, a response's w counted once for
        each of its tokens), ``importance/truncated_fraction`` of tokens whose weight is not w, and among these
        ``importance/masked_fraction`` of tokens whose weight was set to 0.

    Raises:
        UserError: the old or the engine's log-probs are missing.
    """
    mask_BT, mode = tokens.response_mask, settings.mode
    proximal_BT, engine_BT = (
        zero_masked(tokens.needed(name, f"importance mode {mode!r}").detach(), mask_BT)
        for name in ("old_log_probs", "engine_log_probs")
    )
    tallies = {"engine_mismatch/kl": mean_tally(kl_estimate(engine_BT, proximal_BT, "k3"), mask_BT)}
    log_ratio_BT = proximal_BT - engine_BT
    if mode == "off":
        return zero_masked(torch.ones_like(log_ratio_BT), mask_BT), tallies
    if settings.level == "sequence":
        ratio_BT = bounded_exp(log_ratio_BT.sum(dim=1, keepdim=True).expand_as(log_ratio_BT))
    else:
        ratio_BT = bounded_exp(log_ratio_BT)
    floor, cap = settings.bounds
    if mode == "tis":
        bounded_BT, bound = ratio_BT > cap, cap
    else:  # comparisons with NaN are false: a NaN passes, to be seen
        judged_BT = ratio_BT
        if mode == "seq-mask-tis":
            judged_BT = bounded_exp(mean_of_responses(log_ratio_BT, mask_BT)).expand_as(ratio_BT)
        bounded_BT, bound = (judged_BT < floor) | (judged_BT > cap), 0.0
    weights_BT = torch.where(bounded_BT, bound, ratio_BT)
    tallies |= {
        "importance/mean": mean_tally(ratio_BT, mask_BT),
        "importance/max": max_tally(ratio_BT, mask_BT),
        "importance/truncated_fraction": mean_tally(bounded_BT, mask_BT),
        "importance/masked_fraction": mean_tally(bounded_BT & (weights_BT == 0), mask_BT),
    }
    return zero_masked(weights_BT, mask_BT), tallies
