"""From per-token losses to one number, with a denominator that belongs to the whole batch.

Each response token has a weight that depends on the whole batch and on its own row, never on the microbatch it happens
to be in; the loss is the sum of weight * token loss. So the losses, and the gradients, of any split of the rows into
microbatches add up to those of the one big batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.masking import at_least_float32, require_matrix, require_same_shape, unknown_choice, zero_masked

Aggregation = Literal["sequence_mean", "token_mean", "constant"]


@dataclass(frozen=True, slots=True)
class Denominator:
    """What the loss of one optimizer step is divided by.

    Attributes:
        aggregation: ``sequence_mean`` averages over each response's tokens, then over the rollouts (GRPO);
            ``token_mean`` averages once over all response tokens (DAPO, arXiv:2503.14476); ``constant`` divides each
            response's sum by a constant, then averages over the rollouts (Dr. GRPO, arXiv:2503.20783).
        num_sequences: rollouts in the whole batch, those without tokens included.
        num_tokens: response tokens in the whole batch.
        constant: tokens that ``constant`` divides by.
    """

    aggregation: Aggregation
    num_sequences: int
    num_tokens: int
    constant: float | None = None

    def __post_init__(self) -> None:
        if self.aggregation not in get_args(Aggregation):
            raise unknown_choice("aggregation", self.aggregation, get_args(Aggregation))
        if self.aggregation == "constant" and not (self.constant and self.constant > 0):
            raise UserError(
                f"aggregation 'constant' divides by constant, which is {self.constant}; it must be above 0",
                where="constant",
                fix="set it to the maximum number of response tokens",
            )

    def __add__(self, other: Denominator) -> Denominator:
        """Return that of both batches together."""
        together = self.num_sequences + other.num_sequences, self.num_tokens + other.num_tokens
        return Denominator(self.aggregation, *together, self.constant)

    @property
    def counted(self) -> int:
        """What each token's weight is divided by and grows with the batch: its tokens or its rollouts, at least 1."""
        return max(self.num_tokens if self.aggregation == "token_mean" else self.num_sequences, 1)

    def token_weights(self, response_mask_BT: Tensor) -> Tensor:
        """Return the weight of each token of these rows of the batch.

        1 / (B * len_b) for ``sequence_mean``, 1 / total tokens for ``token_mean``, 1 / (B * constant) for
        ``constant``; 0 where the mask is 0. A response without tokens has no weight, and still counts in B.

        Args:
            response_mask_BT: (rows, T), any rows of the batch, trimmed or padded to any T.

        Returns:
            (rows, T) float32.
        """
        require_matrix("response_mask", response_mask_BT)
        mask_BT = response_mask_BT.bool().float()
        match self.aggregation:
            case "sequence_mean":
                return mask_BT / (self.counted * mask_BT.sum(dim=1, keepdim=True).clamp(min=1))
            case "token_mean":
                return mask_BT / self.counted
            case "constant":
                assert self.constant is not None
                return mask_BT / (self.counted * self.constant)


def loss_denominator(
    response_mask_BT: Tensor, aggregation: Aggregation = "sequence_mean", constant: float | None = None
) -> Denominator:
    """Return the denominator of a whole batch: all rollouts of one optimizer step.

    Args:
        response_mask_BT: (B, T), 1 on the response tokens of the whole batch.
        aggregation: ``sequence_mean``, ``token_mean`` or ``constant``.
        constant: tokens to divide by, for ``constant``.

    Raises:
        UserError: the aggregation is unknown, or ``constant`` lacks its constant.
    """
    require_matrix("response_mask", response_mask_BT)
    return Denominator(aggregation, response_mask_BT.shape[0], int(response_mask_BT.bool().sum()), constant)


def weighted_sum(loss_BT: Tensor, token_weights_BT: Tensor) -> Tensor:
    """Return sum(weight * loss), the microbatch's share of the batch's loss, as a scalar.

    A token of weight 0 adds nothing, even where its loss is NaN or infinite.
    """
    require_same_shape("token_weights", token_weights_BT, "loss", loss_BT)
    return (zero_masked(at_least_float32(loss_BT), token_weights_BT) * token_weights_BT).sum()
