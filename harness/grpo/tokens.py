"""What enters the losses: one checked record of the tokens of B rollouts, padded to T."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.masking import at_least_float32, require_matrix, require_per_rollout, require_same_shape, zero_masked

LARGEST_LOG_RATIO = 80.0
"""exp of more than 88 overflows float32, and an infinite ratio times a zero gradient is NaN."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The tokens of B rollouts. Shapes are checked here; what is computed of the record checks none again.

    Where the mask is 0, ``log_probs`` becomes 0: every gradient of a masked place ends here.

    Attributes:
        log_probs: (B, T), of the policy being trained, with gradient.
        response_mask: (B, T), 1 on response tokens. What stands elsewhere in the other tensors has no influence.
        raw_rewards: (B, 1), for the loss ``no_baseline``.
        advantages: (B, 1), the same for every token of a response, or (B, T); for the other losses.
        old_log_probs: (B, T), of the policy the ratio divides by; no gradient flows into them.
        reference_log_probs: (B, T), of the reference policy.
        engine_log_probs: (B, T), as the engine reported them at sampling.
        entropy: (B, T), of the distribution that each token was sampled from.

    Raises:
        UserError: a shape is another one. An advantage (B,) is refused: it would broadcast along the tokens.
    """

    log_probs: Tensor
    response_mask: Tensor
    raw_rewards: Tensor | None = None
    advantages: Tensor | None = None
    old_log_probs: Tensor | None = None
    reference_log_probs: Tensor | None = None
    engine_log_probs: Tensor | None = None
    entropy: Tensor | None = None

    def __post_init__(self) -> None:
        require_matrix("policy_log_probs", self.log_probs)
        for name in ("response_mask", "old_log_probs", "reference_log_probs", "engine_log_probs", "entropy"):
            tensor = getattr(self, name)
            if tensor is not None:
                require_same_shape(name, tensor, "policy_log_probs", self.log_probs)
        for name in ("raw_rewards", "advantages"):
            tensor = getattr(self, name)
            if tensor is not None:
                require_per_rollout(name, tensor, self.log_probs)
        object.__setattr__(self, "log_probs", zero_masked(self.log_probs, self.response_mask))

    def needed(self, name: str, by: str) -> Tensor:
        """Return one of the tensors, float32 at least.

        Raises:
            UserError: it is None.
        """
        tensor: Tensor | None = getattr(self, name)
        if tensor is None:
            raise UserError(f"{by} needs {name}, which is None", where=name, fix=f"pass {name}")
        return at_least_float32(tensor)

    def ratio(self, level: str, by: str) -> Tensor:
        """Return rho = exp(log p - log p_old) of each token, (B, T), log rho counting as at most 80.

        At level ``sequence`` every token has its response's ratio (GSPO, arXiv:2507.18071, equation 7),
        s_i = (p(y_i) / p_old(y_i)) ^ (1 / |y_i|) = exp(mean over the response's tokens of log p - log p_old): the
        geometric mean of the tokens' ratios. So a clip acts on whole responses, and its range is much narrower than
        that of tokens. Every token's log-prob gets 1 / |y_i| of the gradient; a response without tokens has ratio 1.
        """
        log_ratio_BT = at_least_float32(self.log_probs) - self.needed("old_log_probs", by).detach()
        if level == "sequence":
            mean_B1 = mean_of_responses(zero_masked(log_ratio_BT, self.response_mask), self.response_mask)
            return bounded_exp(mean_B1).expand_as(log_ratio_BT)  # after exp: the gradient is rounded once
        return bounded_exp(log_ratio_BT)


def mean_of_responses(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean over each response of values that are 0 where masked, (B, 1)."""
    return values_BT.sum(dim=1, keepdim=True) / mask_BT.bool().sum(dim=1, keepdim=True).clamp(min=1)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return the ratio of a log ratio, which counts as at most ``LARGEST_LOG_RATIO``."""
    return log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()
