"""The loss the Learner minimises: policy gradient, KL penalty and entropy bonus, under the batch's own denominator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from harness.grpo.aggregate import weighted_sum
from harness.grpo.importance import importance_weights
from harness.grpo.kl import kl_estimate
from harness.grpo.masking import zero_masked
from harness.grpo.policy_gradient import ClipRange, token_loss
from harness.grpo.tally import Tally, max_tally, mean_tally
from harness.grpo.tokens import TokenBatch

if TYPE_CHECKING:
    from harness.settings.loss import KlSettings, LossSettings

OwnLoss = Callable[..., tuple[Tensor, Mapping[str, Tensor]]]
"""A user's own loss: that of each token (B, T), and figures (B, T) to log; see ``harness.learner.plugins``."""


def surrogate_loss(
    tokens: TokenBatch, token_weights_BT: Tensor, settings: LossSettings, own: OwnLoss | None = None
) -> tuple[Tensor, dict[str, Tally]]:
    """Return a microbatch's share of the loss, to call ``backward`` on, and its figures to log.

    With L the policy-gradient loss of a token, v its importance weight, K its KL estimate and H the entropy of the
    distribution it was sampled from, the share is

        sum over tokens of token_weight * (v * L + kl.coefficient * K - entropy_coefficient * H)

    and the shares of all microbatches of a batch add up to the loss of the one big batch. Importance weights are those
    of old / engine, so the old policy is the proximal one; they multiply neither K nor H. With ``kl.weighted_by_ratio``
    K is multiplied by the token's ratio policy / old (DeepSeek-V3.2, arXiv:2512.02556; TRL's
    ``use_bias_correction_kl``). The entropy bonus is that of A3C (arXiv:1602.01783, section 4).

    Args:
        tokens: with what the settings need. For the first pass over an on-policy batch, where the ratio is 1, the
            old log-probs are the detached ``log_probs``. Losses without a ratio only report it. With importance ``off``
            the engine's log-probs, if there are any, are only compared with the old ones. The entropy carries a
            gradient where its coefficient is above 0, else it is only reported.
        token_weights_BT: (B, T), from the whole batch's ``Denominator.token_weights``.
        settings: which loss.
        own: the loss of type ``own``.

    Returns:
        The scalar, and tallies without gradient: ``clip_fraction`` (``grpo_clip``, ``cispo``), ``ratio/mean`` and
        ``ratio/max`` (with old log-probs), ``kl/penalty`` (mean estimate before the coefficient), ``token_entropy``,
        those of ``importance_weights`` (with the engine's log-probs), and ``own/*`` (of a user's own loss), each over
        response tokens.

    Raises:
        UserError: a tensor that the settings need is missing.
    """
    mask_BT = tokens.response_mask
    if own is None:
        clip = ClipRange(*settings.clip_range, settings.dual_clip)
        loss_BT, metadata = token_loss(tokens, settings.type, clip, settings.ratio_level)
    else:
        loss_BT, metadata = _own_loss(tokens, settings, own)
    tallies = {name: mean_tally(values, mask_BT) for name, values in metadata.items() if name.startswith("own/")}
    if tokens.old_log_probs is not None:
        if "clipped" in metadata:
            tallies["clip_fraction"] = mean_tally(metadata["clipped"], mask_BT)
        ratio_BT = metadata["ratio"] if "ratio" in metadata else tokens.ratio("token", "the ratio").detach()
        tallies |= {"ratio/mean": mean_tally(ratio_BT, mask_BT), "ratio/max": max_tally(ratio_BT, mask_BT)}
    if tokens.engine_log_probs is not None or settings.importance.mode != "off":
        weights_BT, figures = importance_weights(tokens, settings.importance)
        loss_BT = loss_BT * weights_BT
        tallies |= figures
    if settings.kl.coefficient > 0:
        penalty_BT = _kl_penalty(tokens, settings.kl)
        tallies["kl/penalty"] = mean_tally(penalty_BT, mask_BT)
        loss_BT = loss_BT + settings.kl.coefficient * penalty_BT
    if tokens.entropy is not None:
        tallies["token_entropy"] = mean_tally(tokens.entropy, mask_BT)
    if settings.entropy_coefficient > 0:
        by = f"entropy_coefficient {settings.entropy_coefficient}"
        loss_BT = loss_BT - settings.entropy_coefficient * tokens.needed("entropy", by)
    return weighted_sum(loss_BT, token_weights_BT), tallies


def _own_loss(tokens: TokenBatch, settings: LossSettings, own: OwnLoss) -> tuple[Tensor, dict[str, Tensor]]:
    def detached(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.shape != tokens.response_mask.shape:
            return tensor
        return zero_masked(tensor.detach(), tokens.response_mask)

    low, high = settings.clip_range
    loss_BT, figures = own(
        log_probs=tokens.log_probs,
        response_mask=tokens.response_mask.bool(),
        cliprange=low,
        cliprange_high=high,
        rewards=detached(tokens.raw_rewards),
        advantages=detached(tokens.advantages),
        old_log_probs=detached(tokens.old_log_probs),
        reference_log_probs=detached(tokens.reference_log_probs),
        engine_log_probs=detached(tokens.engine_log_probs),
    )
    return loss_BT, {f"own/{name}": values_BT for name, values_BT in figures.items()}


def _kl_penalty(tokens: TokenBatch, kl: KlSettings) -> Tensor:
    reference_BT = tokens.needed("reference_log_probs", f"kl.coefficient {kl.coefficient}")
    penalty_BT = kl_estimate(tokens.log_probs, reference_BT.detach(), kl.estimator)
    return penalty_BT * tokens.ratio("token", "kl.weighted_by_ratio") if kl.weighted_by_ratio else penalty_BT
