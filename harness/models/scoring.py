"""What it is to score responses under a policy: the request, and log-probabilities and entropy from logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from harness.grpo.log_probs import entropy_of, log_softmax, select

Scores = tuple[Tensor, Tensor | None]
"""Log-probabilities, and entropies where they are asked for."""


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


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Responses to be scored under a policy.

    Attributes:
        prompt_ids_PL: (P, L) token ids, right-padded with any id.
        prompt_lengths_P: (P,) tokens of each prompt, at least 1.
        response_ids_BT: (B, T) token ids, right-padded with any id.
        response_mask_BT: (B, T) true for response tokens: ones, then zeros; a row may be empty.
        prompt_index_B: (B,) each row's prompt, in any order.
        temperature: logits are divided by it before the softmax.
        with_entropy: also return the entropy of each token's distribution.
        entropy_gradient: whether the entropy carries a gradient.
        ban: tokens that the distributions at the start of a response leave out; None: none.

    Raises:
        ValueError: shapes, lengths, mask, index or temperature are not as described, and the batch would be scored
            wrongly without a word.
    """

    prompt_ids_PL: Tensor
    prompt_lengths_P: Tensor
    response_ids_BT: Tensor
    response_mask_BT: Tensor
    prompt_index_B: Tensor
    _: KW_ONLY
    temperature: float = 1.0
    with_entropy: bool = False
    entropy_gradient: bool = False
    ban: TokenBan | None = None

    def __post_init__(self) -> None:
        prompts, width = self.prompt_ids_PL.shape
        rows, lengths = len(self.response_ids_BT), self.prompt_lengths_P.tolist()
        for name, tensor, count in (
            ("prompt_lengths", self.prompt_lengths_P, prompts),
            ("prompt_index", self.prompt_index_B, rows),
        ):
            _require(tensor.shape == (count,), f"{name} is {tuple(tensor.shape)}, not {(count,)}")
        mask_BT, shape = self.mask_BT, tuple(self.response_ids_BT.shape)
        _require(mask_BT.shape == shape, f"response_mask is {tuple(mask_BT.shape)}, response_ids {shape}")
        _require(self.temperature > 0, f"temperature is {self.temperature}, must be above 0")
        shortest, longest = min(lengths, default=1), max(lengths, default=1)
        _require(shortest >= 1, f"a prompt has {shortest} tokens, must be at least 1")
        _require(longest <= width, f"a prompt of {longest} tokens in {width} columns")
        outside = [index for index in self.prompt_index_B.tolist() if not 0 <= index < prompts]
        _require(not outside, f"prompt_index {outside[:1]} is outside 0..{prompts - 1}")
        holes = (mask_BT[:, 1:] > mask_BT[:, :-1]).any()
        _require(not holes, "response_mask has a 1 after a 0: ones must come first")

    @property
    def mask_BT(self) -> Tensor:
        """Which response tokens are scored."""
        return self.response_mask_BT.bool()

    @property
    def banned_EM(self) -> Tensor | None:
        """The tokens that each scored token cannot be, see ``TokenBan.of_tokens``."""
        return None if self.ban is None else self.ban.of_tokens(self.mask_BT)

    def in_rows(self, scores: Scores) -> Scores:
        """Put the scores (M,) of the scored tokens back into their rows (B, T), with 0 where masked."""
        log_probs_M, entropy_M = scores
        zeros_BT = log_probs_M.new_zeros(self.mask_BT.shape)
        entropy_BT = None if entropy_M is None else zeros_BT.masked_scatter(self.mask_BT, entropy_M)
        return zeros_BT.masked_scatter(self.mask_BT, log_probs_M), entropy_BT


def score_tokens(
    logits_MV: Tensor,
    token_ids_M: Tensor,
    temperature: float,
    with_entropy: bool,
    *,
    entropy_gradient: bool = False,
    banned_EM: Tensor | None = None,
) -> Scores:
    """log softmax(logits / temperature) at the tokens, (M,), and if asked the entropies (M,).

    Computed in float32 where the logits are narrower.

    Args:
        logits_MV: what the tokens were predicted by.
        token_ids_M: the tokens.
        temperature: divides the logits.
        with_entropy: also return the entropies.
        entropy_gradient: whether the entropies carry a gradient.
        banned_EM: tokens for each row that its distribution leaves out, or -1; see ``TokenBan``. None: nowhere one.
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


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
