"""From per-token losses to one number, with a denominator that belongs to the whole batch.

Each response token has a weight that depends on the whole batch and on its own row, never on the microbatch it happens
to be in; the loss is the sum of weight * token loss. So the losses, and the gradients, of any split of the rows into
microbatches add up to those of the one big batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.masking import at_least_float32, require_matrix, require_same_shape, unknown_choice, zero_masked

Aggregation = Literal["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"]


@dataclass(frozen=True, slots=True)
class Denominator:
    """What the loss of one optimizer step is divided by.

    Attributes:
        aggregation: ``sequence_mean`` averages over each response's tokens, then over the rollouts (GRPO);
            ``sequence_sum`` sums over each response's tokens, then averages over the rollouts (verl's
            ``seq-mean-token-sum``); ``token_mean`` averages once over all response tokens (DAPO, arXiv:2503.14476);
            ``prompt_mean`` averages over all tokens of a group, then over the groups (SkyRL's ``prompt_mean``);
            ``constant`` divides each response's sum by a constant, then averages over the rollouts (Dr. GRPO,
            arXiv:2503.20783).
        num_sequences: rollouts in the whole batch, those without tokens included.
        num_tokens: response tokens in the whole batch.
        constant: tokens that ``constant`` divides by.
        num_prompts: groups in the whole batch, those without tokens included; for ``prompt_mean``.
    """

    aggregation: Aggregation
    num_sequences: int
    num_tokens: int
    constant: float | None = None
    num_prompts: int = 0

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
        """Return that of both batches together, which have no group in common."""
        return replace(
            self,
            num_sequences=self.num_sequences + other.num_sequences,
            num_tokens=self.num_tokens + other.num_tokens,
            num_prompts=self.num_prompts + other.num_prompts,
        )

    @property
    def counted(self) -> int:
        """What each token's weight is divided by and grows with the batch: tokens, groups or rollouts, at least 1."""
        of = {"token_mean": self.num_tokens, "prompt_mean": self.num_prompts}
        return max(of.get(self.aggregation, self.num_sequences), 1)

    def token_weights(self, response_mask_BT: Tensor, prompt_tokens_B: Tensor | None = None) -> Tensor:
        """Return the weight of each token of these rows of the batch.

        1 / (B * len_b) for ``sequence_mean``, 1 / B for ``sequence_sum``, 1 / total tokens for ``token_mean``,
        1 / (P * tokens of the row's group) for ``prompt_mean``, 1 / (B * constant) for ``constant``; 0 where the mask
        is 0. A response or a group without tokens has no weight, and still counts in B or P.

        Args:
            response_mask_BT: (rows, T), any rows of the batch, trimmed or padded to any T.
            prompt_tokens_B: (rows,), response tokens of each row's group in the whole batch; for ``prompt_mean``.

        Returns:
            (rows, T) float32.

        Raises:
            UserError: ``prompt_mean`` lacks the tokens of the groups.
        """
        require_matrix("response_mask", response_mask_BT)
        mask_BT = response_mask_BT.bool().float()
        match self.aggregation:
            case "sequence_mean":
                return mask_BT / (self.counted * mask_BT.sum(dim=1, keepdim=True).clamp(min=1))
            case "sequence_sum" | "token_mean":
                return mask_BT / self.counted
            case "prompt_mean":
                if prompt_tokens_B is None:
                    raise UserError("aggregation 'prompt_mean' needs prompt_tokens_B, which is None", "prompt_tokens_B")
                return mask_BT / (self.counted * prompt_tokens_B[:, None].clamp(min=1))
            case "constant":
                assert self.constant is not None
                return mask_BT / (self.counted * self.constant)


def loss_denominator(
    response_mask_BT: Tensor,
    aggregation: Aggregation = "sequence_mean",
    constant: float | None = None,
    prompt_index_B: Tensor | None = None,
) -> Denominator:
    """Return the denominator of a whole batch: all rollouts of one optimizer step.

    Args:
        response_mask_BT: (B, T), 1 on the response tokens of the whole batch.
        aggregation: see ``Denominator``.
        constant: tokens to divide by, for ``constant``.
        prompt_index_B: (B,), the group of each rollout, for ``prompt_mean``; see ``prompt_tokens``.

    Raises:
        UserError: the aggregation is unknown, or ``constant`` lacks its constant.
    """
    require_matrix("response_mask", response_mask_BT)
    prompts = 0 if prompt_index_B is None else len(torch.unique(prompt_index_B))
    return Denominator(
        aggregation, response_mask_BT.shape[0], int(response_mask_BT.bool().sum()), constant, num_prompts=prompts
    )


def prompt_tokens(response_mask_BT: Tensor, prompt_index_B: Tensor) -> Tensor:
    """Return for each rollout of a whole batch the response tokens of its group together, (B,)."""
    lengths_B = response_mask_BT.bool().sum(dim=1)
    return lengths_B.new_zeros(int(prompt_index_B.max()) + 1).index_add_(0, prompt_index_B, lengths_B)[prompt_index_B]


def weighted_sum(loss_BT: Tensor, token_weights_BT: Tensor) -> Tensor:
    """Return sum(weight * loss), the microbatch's share of the batch's loss, as a scalar.

    A token of weight 0 adds nothing, even where its loss is NaN or infinite.
    """
    require_same_shape("token_weights", token_weights_BT, "loss", loss_BT)
    return (zero_masked(at_least_float32(loss_BT), token_weights_BT) * token_weights_BT).sum()
