"""Log-probabilities and entropy of given tokens from logits, and the checks of a batch to score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.grpo.log_probs import entropy_of, log_softmax, select


@dataclass(frozen=True, slots=True)
class TokenBan:
    """Tokens that cannot be sampled among the first of a response: the end tokens within ``min_tokens``.

    Attributes:
        token_ids: the tokens.
        first: how many response tokens cannot be one of them.
    """

    token_ids: tuple[int, ...]
    first: int

    def of_tokens(self, mask_BT: Tensor) -> Tensor:
        """Return the E tokens that are banned at each scored place (E, M), in the order of the rows; -1 for none."""
        columns_M = mask_BT.nonzero()[:, 1]
        token_ids_E1 = torch.tensor(self.token_ids, device=mask_BT.device)[:, None]
        return torch.where(columns_M < self.first, token_ids_E1, -1)


def score_tokens(
    logits_MV: Tensor,
    token_ids_M: Tensor,
    temperature: float,
    with_entropy: bool,
    *,
    entropy_gradient: bool = False,
    banned_EM: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / temperature) at the tokens, (M,), and if asked the entropies (M,).

    Computed in float32 where the logits are narrower.

    Args:
        logits_MV: what the tokens were predicted by.
        token_ids_M: the tokens.
        temperature: divides the logits.
        with_entropy: also return the entropies.
        entropy_gradient: whether the entropies carry a gradient.
        banned_EM: tokens for each row that its distribution leaves out, or -1; see ``TokenBan``. None: nowhere one.

    Returns:
        Log-probabilities (M,), and entropies (M,) or None.
    """
    if banned_EM is not None:
        logits_MV = ban_tokens(logits_MV, banned_EM)
    all_log_probs_MV = log_softmax(logits_MV, temperature)
    entropy_M = None
    if with_entropy:
        entropy_M = entropy_of(all_log_probs_MV if entropy_gradient else all_log_probs_MV.detach())
    return select(all_log_probs_MV, token_ids_M), entropy_M


def ban_tokens(
    logits_MV: Tensor, banned_EM: Tensor, scatter: Callable[[Tensor, int, Tensor, Tensor], Tensor] = torch.scatter
) -> Tensor:
    """Return the logits with minus infinity at each row's banned tokens; -1 is none. ``scatter`` may work in place."""
    for banned_M in banned_EM:  # one after another: those that are none all stand at 0
        index_M1 = banned_M.clamp(min=0)[:, None]
        replaced_M1 = torch.where(banned_M[:, None] >= 0, -torch.inf, logits_MV.gather(1, index_M1))
        logits_MV = scatter(logits_MV, 1, index_M1, replaced_M1)
    return logits_MV


def scatter_scores(log_probs_M: Tensor, entropy_M: Tensor | None, mask_BT: Tensor) -> tuple[Tensor, Tensor | None]:
    """Put the scored tokens back into their rows, with 0 where masked."""
    zeros_BT = log_probs_M.new_zeros(mask_BT.shape)
    entropy_BT = None if entropy_M is None else zeros_BT.masked_scatter(mask_BT, entropy_M)
    return zeros_BT.masked_scatter(mask_BT, log_probs_M), entropy_BT


def check_batch(
    prompt_ids_PL: Tensor,
    prompt_lengths_P: Tensor,
    response_ids_BT: Tensor,
    response_mask_BT: Tensor,
    prompt_index_B: Tensor,
    temperature: float,
) -> None:
    """Refuse a batch that would be scored wrongly without a word.

    Raises:
        ValueError: naming the first rule that is broken, with the values.
    """
    prompts, width = prompt_ids_PL.shape
    rows = response_ids_BT.shape[0]
    _require(
        prompt_lengths_P.shape == (prompts,), f"prompt_lengths is {tuple(prompt_lengths_P.shape)}, not {(prompts,)}"
    )
    _require(prompt_index_B.shape == (rows,), f"prompt_index is {tuple(prompt_index_B.shape)}, not {(rows,)}")
    _require(
        response_mask_BT.shape == response_ids_BT.shape,
        f"response_mask is {tuple(response_mask_BT.shape)}, response_ids {tuple(response_ids_BT.shape)}",
    )
    _require(temperature > 0, f"temperature is {temperature}, must be above 0")
    lengths = prompt_lengths_P.tolist()
    _require(min(lengths, default=1) >= 1, f"a prompt has {min(lengths, default=1)} tokens, must be at least 1")
    _require(max(lengths, default=1) <= width, f"a prompt of {max(lengths, default=1)} tokens in {width} columns")
    outside = [index for index in prompt_index_B.tolist() if not 0 <= index < prompts]
    _require(not outside, f"prompt_index {outside[:1]} is outside 0..{prompts - 1}")
    mask = response_mask_BT.bool()
    _require(bool((mask[:, 1:] <= mask[:, :-1]).all()), "response_mask has a 1 after a 0: ones must come first")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
