"""The loss the Learner minimises: policy gradient plus an optional KL penalty, under the batch's own denominator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.aggregate import weighted_sum
from harness.grpo.importance import ImportanceOptions, importance_weights
from harness.grpo.kl import KlEstimator, kl_estimate
from harness.grpo.masking import require_same_shape, unknown_choice, zero_masked
from harness.grpo.policy_gradient import LossType, check_clip_options, compute_policy_gradient_loss
from harness.grpo.tally import Tally, max_tally, mean_tally


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Which loss, with which settings.

    Attributes:
        type: ``no_baseline``, ``reinforce_with_baseline``, ``naive``, ``unclipped`` or ``grpo_clip``.
        cliprange: how far the ratio may fall below 1; ``grpo_clip`` only, as the next two.
        cliprange_high: how far it may rise above 1; None means ``cliprange``.
        dual_clip: bound on the ratio where the advantage is negative; None means no bound.
        kl_coefficient: weight of the KL(policy || reference) penalty of each token; 0 means none.
        kl_estimator: its form; see ``kl_estimate`` for what each does as a loss.
        importance: how the loss is weighted for tokens that another policy sampled; off by default.

    Raises:
        UserError: a value is unknown or out of bounds.
    """

    type: LossType = "grpo_clip"
    cliprange: float = 0.2
    cliprange_high: float | None = None
    dual_clip: float | None = None
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    importance: ImportanceOptions = field(default_factory=ImportanceOptions)

    def __post_init__(self) -> None:
        if self.type not in get_args(LossType):
            raise unknown_choice("type", self.type, get_args(LossType))
        if self.kl_estimator not in get_args(KlEstimator):
            raise unknown_choice("kl_estimator", self.kl_estimator, get_args(KlEstimator))
        check_clip_options(self.cliprange, self.cliprange_high, self.dual_clip)
        if not self.kl_coefficient >= 0:
            raise UserError(f"kl_coefficient is {self.kl_coefficient}, it must be at least 0", where="kl_coefficient")


def surrogate_loss(
    log_probs_BT: Tensor,
    response_mask_BT: Tensor,
    token_weights_BT: Tensor,
    options: LossOptions,
    *,
    rewards_B1: Tensor | None = None,
    advantages_B1: Tensor | None = None,
    old_log_probs_BT: Tensor | None = None,
    reference_log_probs_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
    engine_log_probs_BT: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tally]]:
    """Return a microbatch's share of the loss, to call ``backward`` on, and its figures to log.

    The shares of all microbatches of a batch add up to the loss of the one big batch. Whatever stands at positions
    where the mask is 0 has no influence. Importance weights multiply the policy-gradient loss of each token, not the KL
    penalty; they are those of old / engine, so the old policy is the proximal one.

    Args:
        log_probs_BT: (B, T), of the policy being trained, with gradient.
        response_mask_BT: (B, T), 1 on response tokens.
        token_weights_BT: (B, T), from the whole batch's ``Denominator.token_weights``.
        options: which loss.
        rewards_B1: (B, 1), needed by ``no_baseline``.
        advantages_B1: (B, 1), needed by the others.
        old_log_probs_BT: (B, T), needed by ``unclipped`` and ``grpo_clip``; for the first pass over an on-policy batch,
            where the ratio is 1, pass ``log_probs_BT.detach()``. The other losses only report the ratio, or take the
            weights from them.
        reference_log_probs_BT: (B, T), needed for a KL coefficient above 0.
        entropy_BT: (B, T), the policy's token entropy, only reported.
        engine_log_probs_BT: (B, T), as the engine reported them, needed unless ``options.importance`` is off; then they
            are only compared with the old ones.

    Returns:
        The scalar, and tallies without gradient: ``clip_fraction`` (``grpo_clip``), ``ratio/mean`` and ``ratio/max``
        (with old log-probs), ``kl/penalty`` (mean estimate before the coefficient), ``token_entropy``, those of
        ``importance_weights`` (with the engine's log-probs), each over response tokens.

    Raises:
        UserError: a shape is wrong, or an argument that the options need is missing.
    """
    require_same_shape("response_mask", response_mask_BT, "log_probs", log_probs_BT)
    log_probs_BT = zero_masked(log_probs_BT, response_mask_BT)  # here every gradient of a masked position ends
    loss_BT, metadata = compute_policy_gradient_loss(
        log_probs_BT,
        options.type,
        rewards_B1,
        advantages_B1,
        old_log_probs_BT,
        options.cliprange,
        cliprange_high=options.cliprange_high,
        dual_clip=options.dual_clip,
    )
    tallies = _ratio_tallies(metadata, log_probs_BT, old_log_probs_BT, response_mask_BT)
    if engine_log_probs_BT is not None or options.importance.mode != "off":
        importance_BT, figures = _importance(
            old_log_probs_BT, engine_log_probs_BT, response_mask_BT, options.importance
        )
        loss_BT = loss_BT * importance_BT
        tallies |= figures
    if options.kl_coefficient > 0:
        penalty_BT = _kl_penalty(log_probs_BT, reference_log_probs_BT, options)
        tallies["kl/penalty"] = mean_tally(penalty_BT, response_mask_BT)
        loss_BT = loss_BT + options.kl_coefficient * penalty_BT
    if entropy_BT is not None:
        tallies["token_entropy"] = mean_tally(entropy_BT, response_mask_BT)
    return weighted_sum(loss_BT, token_weights_BT), tallies


def _ratio_tallies(
    metadata: dict[str, Tensor], log_probs_BT: Tensor, old_log_probs_BT: Tensor | None, mask_BT: Tensor
) -> dict[str, Tally]:
    if old_log_probs_BT is None:
        return {}
    tallies = {}
    if "clipped" in metadata:
        tallies["clip_fraction"] = mean_tally(metadata["clipped"], mask_BT)
    ratio_BT = metadata.get("ratio")
    if ratio_BT is None:
        ratio_BT = (log_probs_BT.detach().float() - old_log_probs_BT.detach().float()).exp()
    return tallies | {"ratio/mean": mean_tally(ratio_BT, mask_BT), "ratio/max": max_tally(ratio_BT, mask_BT)}


def _importance(
    old_log_probs_BT: Tensor | None, engine_log_probs_BT: Tensor | None, mask_BT: Tensor, options: ImportanceOptions
) -> tuple[Tensor, dict[str, Tally]]:
    if old_log_probs_BT is None or engine_log_probs_BT is None:
        missing = "old_log_probs_BT" if old_log_probs_BT is None else "engine_log_probs_BT"
        raise UserError(
            f"importance mode {options.mode!r} compares the old with the engine's log-probs, and {missing} is None",
            where=missing,
            fix=f"pass {missing}, or set the mode to 'off' and pass no engine_log_probs_BT",
        )
    return importance_weights(old_log_probs_BT, engine_log_probs_BT, mask_BT, options)


def _kl_penalty(log_probs_BT: Tensor, reference_log_probs_BT: Tensor | None, options: LossOptions) -> Tensor:
    if reference_log_probs_BT is None:
        raise UserError(
            f"kl_coefficient is {options.kl_coefficient} but there are no reference log-probs",
            where="reference_log_probs_BT",
            fix="pass the reference policy's log-probs, or set kl_coefficient to 0",
        )
    return kl_estimate(log_probs_BT, reference_log_probs_BT.detach(), options.kl_estimator)
