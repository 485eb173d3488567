"""The loss the Learner minimises: policy gradient, KL penalty and entropy bonus, under the batch's own denominator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor

from harness.core.clip_ranges import usual_clip_range
from harness.core.errors import UserError
from harness.grpo.aggregate import weighted_sum
from harness.grpo.importance import ImportanceOptions, importance_weights
from harness.grpo.kl import KlEstimator, kl_estimate
from harness.grpo.masking import at_least_float32, require_same_shape, unknown_choice, zero_masked
from harness.grpo.policy_gradient import (
    LossType,
    check_clip_options,
    cispo_by_ratio,
    clipped_by_ratio,
    compute_policy_gradient_loss,
    unclipped_by_ratio,
)
from harness.grpo.ratio import RatioLevel, sequence_ratio, token_ratio
from harness.grpo.tally import Tally, max_tally, mean_tally

SurrogateType = LossType | Literal["own"]
_TYPES = (*get_args(LossType), "own")


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Which loss, with which settings.

    Attributes:
        type: ``no_baseline``, ``reinforce_with_baseline``, ``naive``, ``unclipped``, ``grpo_clip``, ``cispo`` or
            ``own``.
        cliprange: how far the ratio may fall below 1; ``grpo_clip`` and ``cispo``, as the next one. None: the type's
            own, 0.2 for ``grpo_clip``, 0.0003 with ``ratio_level`` ``sequence``, and 1 for ``cispo``.
        cliprange_high: how far it may rise above 1; None means ``cliprange`` where that is given, else the type's own,
            0.2, 0.0004 and 4.
        dual_clip: bound on the ratio where the advantage is negative; ``grpo_clip`` only; None means no bound.
        kl_coefficient: weight of the KL(policy || reference) penalty of each token; 0 means none.
        kl_estimator: its form; see ``kl_estimate`` for what each does as a loss.
        importance: how the loss is weighted for tokens that another policy sampled; off by default.
        ratio_level: whether the ratio is a token's own or its whole response's (GSPO); see ``harness.grpo.ratio``.
        kl_weighted_by_ratio: multiply the KL penalty of each token by its ratio, with gradient, so that the penalty's
            gradient is right off-policy too (DeepSeek-V3.2, arXiv:2512.02556; TRL's ``use_bias_correction_kl``).
        entropy_coefficient: weight of the entropy bonus of each token; 0 means none.
        own: the loss of type ``own``: from keywords to the loss of each token (B, T), and figures (B, T) to log.

    Raises:
        UserError: a value is unknown or out of bounds, or two of them do not go together.
    """

    type: SurrogateType = "grpo_clip"
    cliprange: float | None = None
    cliprange_high: float | None = None
    dual_clip: float | None = None
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    importance: ImportanceOptions = field(default_factory=ImportanceOptions)
    ratio_level: RatioLevel = "token"
    kl_weighted_by_ratio: bool = False
    entropy_coefficient: float = 0.0
    own: Callable[..., tuple[Tensor, Mapping[str, Tensor]]] | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("type", self.type, _TYPES),
            ("kl_estimator", self.kl_estimator, get_args(KlEstimator)),
            ("ratio_level", self.ratio_level, get_args(RatioLevel)),
        ):
            if value not in choices:
                raise unknown_choice(name, value, choices)
        check_clip_options(*self.clip_range, self.dual_clip)
        for name in ("kl_coefficient", "entropy_coefficient"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} is {getattr(self, name)}, it must be at least 0", where=name)
        if (self.type == "own") != (self.own is not None):
            raise UserError(f"type is {self.type!r} and own is {self.own}; they go together", where="own")

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the ratio may fall below 1 and rise above it: as given, else the type's own."""
        low, high = usual_clip_range(self.type, self.ratio_level)
        if self.cliprange is not None:
            low = high = self.cliprange
        return low, high if self.cliprange_high is None else self.cliprange_high


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

    With L the policy-gradient loss of a token, v its importance weight, K its KL estimate and H the entropy of the
    distribution it was sampled from, the share is

        sum over tokens of token_weight * (v * L + kl_coefficient * K - entropy_coefficient * H)

    and the shares of all microbatches of a batch add up to the loss of the one big batch. Whatever stands at positions
    where the mask is 0 has no influence. Importance weights are those of old / engine, so the old policy is the
    proximal one; they multiply neither K nor H. With ``kl_weighted_by_ratio`` K is multiplied by the token's ratio
    policy / old. The entropy bonus is that of A3C (arXiv:1602.01783, section 4).

    Args:
        log_probs_BT: (B, T), of the policy being trained, with gradient.
        response_mask_BT: (B, T), 1 on response tokens.
        token_weights_BT: (B, T), from the whole batch's ``Denominator.token_weights``.
        options: which loss.
        rewards_B1: (B, 1), needed by ``no_baseline``.
        advantages_B1: (B, 1), needed by the others.
        old_log_probs_BT: (B, T), needed by the losses with a ratio; for the first pass over an on-policy batch, where
            the ratio is 1, pass ``log_probs_BT.detach()``. The other losses only report the ratio, or take the weights
            from them.
        reference_log_probs_BT: (B, T), needed for a KL coefficient above 0.
        entropy_BT: (B, T), the policy's token entropy: with gradient, and needed, for an entropy coefficient above 0,
            else only reported.
        engine_log_probs_BT: (B, T), as the engine reported them, needed unless ``options.importance`` is off; then they
            are only compared with the old ones.

    Returns:
        The scalar, and tallies without gradient: ``clip_fraction`` (``grpo_clip``, ``cispo``), ``ratio/mean`` and
        ``ratio/max`` (with old log-probs), ``kl/penalty`` (mean estimate before the coefficient), ``token_entropy``,
        those of ``importance_weights`` (with the engine's log-probs), and ``own/*`` (of a user's own loss), each over
        response tokens.

    Raises:
        UserError: a shape is wrong, or an argument that the options need is missing.
    """
    require_same_shape("response_mask", response_mask_BT, "log_probs", log_probs_BT)
    log_probs_BT = zero_masked(log_probs_BT, response_mask_BT)  # here every gradient of a masked position ends
    loss_BT, metadata = _policy_gradient(
        log_probs_BT,
        response_mask_BT,
        options,
        rewards=rewards_B1,
        advantages=advantages_B1,
        old_log_probs=old_log_probs_BT,
        reference_log_probs=reference_log_probs_BT,
        engine_log_probs=engine_log_probs_BT,
    )
    tallies = _ratio_tallies(metadata, log_probs_BT, old_log_probs_BT, response_mask_BT)
    if engine_log_probs_BT is not None or options.importance.mode != "off":
        importance_BT, figures = _importance(
            old_log_probs_BT, engine_log_probs_BT, response_mask_BT, options.importance
        )
        loss_BT = loss_BT * importance_BT
        tallies |= figures
    if options.kl_coefficient > 0:
        penalty_BT = _kl_penalty(log_probs_BT, reference_log_probs_BT, old_log_probs_BT, options)
        tallies["kl/penalty"] = mean_tally(penalty_BT, response_mask_BT)
        loss_BT = loss_BT + options.kl_coefficient * penalty_BT
    if entropy_BT is not None:
        tallies["token_entropy"] = mean_tally(entropy_BT, response_mask_BT)
    if options.entropy_coefficient > 0:
        entropy_BT = _needed("entropy_BT", entropy_BT, "entropy_coefficient", options.entropy_coefficient)
        loss_BT = loss_BT - options.entropy_coefficient * entropy_BT
    return weighted_sum(loss_BT, token_weights_BT), tallies


def _policy_gradient(
    log_probs_BT: Tensor, mask_BT: Tensor, options: LossOptions, **given: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the policy-gradient loss of each token (B, T), and its metadata."""
    low, high = options.clip_range
    if options.own is not None:
        of_tokens = {
            name: tensor if tensor is None or tensor.shape != mask_BT.shape else zero_masked(tensor.detach(), mask_BT)
            for name, tensor in given.items()
        }
        loss_BT, figures = options.own(
            log_probs=log_probs_BT, response_mask=mask_BT.bool(), cliprange=low, cliprange_high=high, **of_tokens
        )
        return loss_BT, {f"own/{name}": values_BT for name, values_BT in figures.items()}
    advantages, old_log_probs = given["advantages"], given["old_log_probs"]
    if options.ratio_level == "sequence" and options.type in ("grpo_clip", "unclipped", "cispo"):
        advantages = _needed("advantages", advantages, "loss_type", options.type)
        old_log_probs = _needed("old_log_probs", old_log_probs, "loss_type", options.type)
        ratio_BT = sequence_ratio(log_probs_BT, old_log_probs, mask_BT)
        match options.type:
            case "grpo_clip":
                return clipped_by_ratio(ratio_BT, advantages, low, high, options.dual_clip)
            case "cispo":
                return cispo_by_ratio(ratio_BT, advantages, log_probs_BT, low, high)
            case _:
                return unclipped_by_ratio(ratio_BT, advantages)
    assert options.type != "own"
    return compute_policy_gradient_loss(
        log_probs_BT,
        options.type,
        given["rewards"],
        advantages,
        old_log_probs,
        low,
        cliprange_high=high,
        dual_clip=options.dual_clip,
    )


def _ratio_tallies(
    metadata: dict[str, Tensor], log_probs_BT: Tensor, old_log_probs_BT: Tensor | None, mask_BT: Tensor
) -> dict[str, Tally]:
    tallies = {name: mean_tally(values, mask_BT) for name, values in metadata.items() if name.startswith("own/")}
    if old_log_probs_BT is None:
        return tallies
    if "clipped" in metadata:
        tallies["clip_fraction"] = mean_tally(metadata["clipped"], mask_BT)
    ratio_BT = metadata.get("ratio")
    if ratio_BT is None:
        ratio_BT = token_ratio(log_probs_BT.detach(), old_log_probs_BT)
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


def _kl_penalty(
    log_probs_BT: Tensor, reference_log_probs_BT: Tensor | None, old_log_probs_BT: Tensor | None, options: LossOptions
) -> Tensor:
    if reference_log_probs_BT is None:
        raise UserError(
            f"kl_coefficient is {options.kl_coefficient} but there are no reference log-probs",
            where="reference_log_probs_BT",
            fix="pass the reference policy's log-probs, or set kl_coefficient to 0",
        )
    penalty_BT = kl_estimate(log_probs_BT, reference_log_probs_BT.detach(), options.kl_estimator)
    if not options.kl_weighted_by_ratio:
        return penalty_BT
    old_log_probs_BT = _needed("old_log_probs_BT", old_log_probs_BT, "kl_weighted_by_ratio", True)
    return penalty_BT * token_ratio(log_probs_BT, old_log_probs_BT)


def _needed(name: str, value: Tensor | None, option: str, given: object) -> Tensor:
    if value is None:
        raise UserError(f"{option} {given!r} needs {name}, which is None", where=name, fix=f"pass {name}")
    return at_least_float32(value)
