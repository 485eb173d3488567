"""Response log-probabilities for training, with each prompt encoded once for all its rollouts.

A group's responses share their prompt, so its keys and values are the same for all of them: they are computed once and
their gradient is the sum over the group. Tokens of all prompts and responses lie packed behind one another, without
padding, for every layer that treats tokens one by one; only attention sees padded rows. The last token of a response
predicts nothing that is scored, so it is not run; the first is predicted by the prompt's last token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.models.decoder import Attention, DecoderLM
from harness.models.head import score_hidden
from harness.models.layers import attention, bias_from, causal_bias
from harness.models.scoring import TokenBan, check_batch, scatter_scores


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Where every token of a batch lies in the packed order: all prompts, then all responses.

    N tokens run through the layers, M response tokens are scored. A response row has S = T - 1 queries and, with its
    prompt in front, K = L + S keys. Slots of padding are 0: what is read there is masked or dropped.
    """

    token_ids_N: Tensor
    positions_N: Tensor
    prompt_slots_PL: Tensor
    prompt_bias_1LL: Tensor
    query_slots_BS: Tensor
    key_slots_BK: Tensor
    key_bias_BSK: Tensor
    padded_slots_N: Tensor
    scored_mask_BT: Tensor
    scored_slots_M: Tensor
    scored_ids_M: Tensor


def response_log_probs(
    model: DecoderLM,
    prompt_ids_PL: Tensor,
    prompt_lengths_P: Tensor,
    response_ids_BT: Tensor,
    response_mask_BT: Tensor,
    prompt_index_B: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    entropy_gradient: bool = False,
    ban: TokenBan | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of every response token given its prompt and the tokens before it, with gradients.

    The same as running each prompt and response as a row of its own, at the cost of the distinct tokens only.

    Args:
        model: the policy.
        prompt_ids_PL: (P, L) token ids, right-padded with any id.
        prompt_lengths_P: (P,) tokens of each prompt, at least 1.
        response_ids_BT: (B, T) token ids, right-padded with any id.
        response_mask_BT: (B, T) true for response tokens: ones, then zeros; a row may be empty.
        prompt_index_B: (B,) each row's prompt, in any order.
        temperature: logits are divided by it before the softmax.
        with_entropy: also return the entropy of each token's distribution.
        entropy_gradient: whether the entropy carries a gradient.
        ban: a token that the distributions at the start of a response leave out; None: none.

    Returns:
        Log-probabilities (B, T), 0 where masked, and the entropies likewise or None; in float32, or float64 for a
        model of that type.

    Raises:
        ValueError: shapes, lengths, mask, index or temperature are not as described.
    """
    check_batch(prompt_ids_PL, prompt_lengths_P, response_ids_BT, response_mask_BT, prompt_index_B, temperature)
    batch = pack_batch(prompt_ids_PL, prompt_lengths_P, response_ids_BT, response_mask_BT, prompt_index_B)
    hidden_ND = model.model(batch.token_ids_N, batch.positions_N, _shared_prompt_attention(batch))
    hidden_MD = hidden_ND.index_select(0, batch.scored_slots_M)
    scores = score_hidden(
        hidden_MD,
        model.output_weight,
        batch.scored_ids_M,
        temperature,
        with_entropy,
        entropy_gradient=entropy_gradient,
        banned_M=None if ban is None else ban.of_tokens(batch.scored_mask_BT),
    )
    return scatter_scores(*scores, batch.scored_mask_BT)


def pack_batch(
    prompt_ids_PL: Tensor,
    prompt_lengths_P: Tensor,
    response_ids_BT: Tensor,
    response_mask_BT: Tensor,
    prompt_index_B: Tensor,
) -> PackedBatch:
    """Lay a batch out for one forward pass; arguments as in ``response_log_probs``."""
    device = prompt_ids_PL.device
    positions_L = torch.arange(prompt_ids_PL.shape[1], device=device)
    steps_S = torch.arange(max(response_ids_BT.shape[1] - 1, 0), device=device)
    in_prompt_PL = positions_L < prompt_lengths_P[:, None]
    scored_BT = response_mask_BT.bool()
    is_run_BS = scored_BT[:, 1:]
    prompt_slots_PL = _number(in_prompt_PL, 0)
    query_slots_BS = _number(is_run_BS, in_prompt_PL.sum())
    last_slots_P1 = prompt_slots_PL.gather(1, prompt_lengths_P[:, None] - 1)
    scored_slots_BT = torch.cat((last_slots_P1[prompt_index_B], query_slots_BS), dim=1)
    padded_slots_PL = torch.arange(in_prompt_PL.numel(), device=device).view_as(in_prompt_PL)
    padded_slots_BS = in_prompt_PL.numel() + torch.arange(is_run_BS.numel(), device=device).view_as(is_run_BS)

    def pack(of_prompts_PL: Tensor, of_responses_BS: Tensor) -> Tensor:
        return torch.cat((of_prompts_PL[in_prompt_PL], of_responses_BS[is_run_BS]))

    return PackedBatch(
        token_ids_N=pack(prompt_ids_PL, response_ids_BT[:, :-1]),
        positions_N=pack(positions_L.expand_as(in_prompt_PL), prompt_lengths_P[prompt_index_B, None] + steps_S),
        prompt_slots_PL=prompt_slots_PL,
        prompt_bias_1LL=causal_bias(prompt_ids_PL.shape[1], device),
        query_slots_BS=query_slots_BS,
        key_slots_BK=torch.cat((prompt_slots_PL[prompt_index_B], query_slots_BS), dim=1),
        key_bias_BSK=_key_bias(in_prompt_PL[prompt_index_B], steps_S),
        padded_slots_N=pack(padded_slots_PL, padded_slots_BS),
        scored_mask_BT=scored_BT,
        scored_slots_M=scored_slots_BT[scored_BT],
        scored_ids_M=response_ids_BT[scored_BT],
    )


def _shared_prompt_attention(batch: PackedBatch) -> Attention:
    def attend(q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, layer: int) -> Tensor:
        queries, keys, values = (_rows(part, batch.prompt_slots_PL) for part in (q_NHD, k_NHD, v_NHD))
        of_prompts = attention(queries, keys, values, batch.prompt_bias_1LL)
        queries = _rows(q_NHD, batch.query_slots_BS)
        keys, values = (_rows(part, batch.key_slots_BK) for part in (k_NHD, v_NHD))
        of_responses = attention(queries, keys, values, batch.key_bias_BSK)
        padded = torch.cat((of_prompts.flatten(0, 1), of_responses.flatten(0, 1)))
        return padded.index_select(0, batch.padded_slots_N)

    return attend


def _rows(packed_NHD: Tensor, slots: Tensor) -> Tensor:
    return packed_NHD.index_select(0, slots.flatten()).unflatten(0, slots.shape)


def _number(present: Tensor, first: Tensor | int) -> Tensor:
    """Number the present elements in order, from ``first``; the others get 0."""
    return (present.flatten().cumsum(0).view_as(present) - 1 + first) * present


def _key_bias(in_prompt_BL: Tensor, steps_S: Tensor) -> Tensor:
    """A response token sees its own prompt, and its response up to itself."""
    rows, steps = in_prompt_BL.shape[0], steps_S.shape[0]
    causal_SS = steps_S <= steps_S[:, None]
    return bias_from(torch.cat((in_prompt_BL[:, None].expand(-1, steps, -1), causal_SS.expand(rows, -1, -1)), dim=-1))
