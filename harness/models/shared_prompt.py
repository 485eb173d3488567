"""Response log-probabilities for training, with each prompt encoded once for all its rollouts.

A group's responses share their prompt, so its keys and values are the same for all of them: they are computed once and
their gradient is the sum over the group. Tokens of all prompts and responses lie packed behind one another, without
padding, for every layer that treats tokens one by one; only attention sees padded rows. The last token of a response
predicts nothing that is scored, so it is not run; the first is predicted by the prompt's last token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.models.decoder import Attention, DecoderLM
from harness.models.head import score_hidden
from harness.models.layers import QueryBlock, attention_in_blocks, bias_from, queries_per_block
from harness.models.matmul import rounded_up
from harness.models.scoring import ScoreRequest, Scores


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Rows that attention sees, longest first: S queries and K keys each, as places in the packed order.

    Places of padding are 0: what is read there is masked or dropped.
    """

    query_slots_RS: Tensor
    key_slots_RK: Tensor
    blocks: list[QueryBlock]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Where every token of a batch lies in the packed order: all prompts, then all responses.

    N tokens run through the layers, M response tokens are scored. Both are filled up to a number that other batches
    have too, with tokens that nothing looks at and scores that nothing takes. A response row has S = T - 1 queries and,
    with its prompt in front, K = L + S keys. ``attended_slots_N`` is where each token lies in what attention returns.
    """

    token_ids_N: Tensor
    positions_N: Tensor
    rows: tuple[AttentionRows, AttentionRows]
    attended_slots_N: Tensor
    scored_slots_M: Tensor
    scored_ids_M: Tensor


def response_log_probs(model: DecoderLM, request: ScoreRequest) -> Scores:
    """Log-probability of every response token given its prompt and the tokens before it, with gradients.

    The same as running each prompt and response as a row of its own, at the cost of the distinct tokens only.

    Returns:
        Log-probabilities (B, T), 0 where masked, and the entropies likewise or None; in float32, or float64 for a
        model of that type.
    """
    mesh: Any = getattr(model.output_weight, "device_mesh", None)  # of a tensor-parallel model
    batch = pack_batch(request, 1 if mesh is None else mesh.size())
    banned_EM = request.banned_EM
    hidden_ND = model.model(batch.token_ids_N, batch.positions_N, _shared_prompt_attention(batch))
    scores = score_hidden(
        hidden_ND.index_select(0, batch.scored_slots_M),
        model.output_weight,
        batch.scored_ids_M,
        request.temperature,
        request.with_entropy,
        entropy_gradient=request.entropy_gradient,
        banned_EM=None if banned_EM is None else _fill_up(banned_EM, -1),
    )
    return request.in_rows(scores)


def pack_batch(request: ScoreRequest, multiple: int = 1) -> PackedBatch:
    """Lay a batch out for one forward pass; N is made a ``multiple`` of some number."""
    prompt_ids_PL, response_ids_BT, scored_BT = request.prompt_ids_PL, request.response_ids_BT, request.mask_BT
    lengths_P, index_B = request.prompt_lengths_P, request.prompt_index_B
    positions_L = torch.arange(prompt_ids_PL.shape[1], device=prompt_ids_PL.device)
    steps_S = torch.arange(max(response_ids_BT.shape[1] - 1, 0), device=prompt_ids_PL.device)
    in_prompt_PL, is_run_BS = positions_L < lengths_P[:, None], scored_BT[:, 1:]
    prompt_slots_PL, query_slots_BS = _number(in_prompt_PL, 0), _number(is_run_BS, in_prompt_PL.sum())
    last_slots_P1 = prompt_slots_PL.gather(1, lengths_P[:, None] - 1)
    scored_slots_BT = torch.cat((last_slots_P1[index_B], query_slots_BS), dim=1)
    prompts, places_PL = _lay_out(prompt_slots_PL, in_prompt_PL, prompt_slots_PL[:, :0], in_prompt_PL[:, :0])
    responses, places_BS = _lay_out(query_slots_BS, is_run_BS, prompt_slots_PL[index_B], in_prompt_PL[index_B])

    def pack(of_prompts_PL: Tensor, of_responses_BS: Tensor) -> Tensor:
        packed_N = torch.cat((of_prompts_PL[in_prompt_PL], of_responses_BS[is_run_BS]))
        return _fill_up(packed_N, multiple=multiple)

    return PackedBatch(
        token_ids_N=pack(prompt_ids_PL, response_ids_BT[:, :-1]),
        positions_N=pack(positions_L.expand_as(in_prompt_PL), lengths_P[index_B, None] + steps_S),
        rows=(prompts, responses),
        attended_slots_N=pack(places_PL, sum(block.queries for block in prompts.blocks) + places_BS),
        scored_slots_M=_fill_up(scored_slots_BT[scored_BT]),
        scored_ids_M=_fill_up(response_ids_BT[scored_BT]),
    )


def _lay_out(
    slots_RS: Tensor, present_RS: Tensor, prefix_slots_RL: Tensor, in_prefix_RL: Tensor
) -> tuple[AttentionRows, Tensor]:
    """Lay out rows of queries, each of which sees its row's prefix and the row up to itself.

    Queries are cut into blocks, and a block leaves out the keys behind it and the rows that end before it: of the
    scores of long rows about half.

    Returns:
        The rows, and for each query (R, S) its place among the blocks' queries laid behind one another.
    """
    count, width, prefix = *slots_RS.shape, prefix_slots_RL.shape[1]
    size = queries_per_block(slots_RS.device)
    starts = list(range(0, width, size)) or [0]
    lengths_R = present_RS.sum(1)
    order_R = lengths_R.argsort(descending=True, stable=True)
    reached = [count]
    if len(starts) > 1:
        reached += (lengths_R[:, None] > torch.tensor(starts[1:], device=lengths_R.device)).sum(0).tolist()
    in_prefix_RL, steps_S = in_prefix_RL[order_R], torch.arange(width, device=slots_RS.device)
    places_RS, taken = torch.zeros_like(slots_RS), 0
    blocks: list[QueryBlock] = []
    for start, rows in zip(starts, reached, strict=True):
        if rows == 0 and blocks:
            break
        steps = steps_S[start : start + size]
        causal = steps_S[: start + len(steps)] <= steps[:, None]
        seen = torch.cat((in_prefix_RL[:rows, None].expand(-1, len(steps), -1), causal.expand(rows, -1, -1)), dim=-1)
        blocks.append(QueryBlock(rows, start, start + len(steps), prefix + start + len(steps), bias_from(seen)))
        places = torch.arange(taken, taken + rows * len(steps), device=slots_RS.device).view(rows, -1)
        places_RS[order_R[:rows], start : start + len(steps)] = places
        taken += rows * len(steps)
    key_slots_RK = torch.cat((prefix_slots_RL, slots_RS), dim=1)
    return AttentionRows(slots_RS[order_R], key_slots_RK[order_R], blocks), places_RS


def _shared_prompt_attention(batch: PackedBatch) -> Attention:
    @cache
    def blocks_in(dtype: torch.dtype) -> list[list[QueryBlock]]:
        """A GPU's kernel takes the bias in the type of the values; all layers share, and keep, one copy."""
        return [[block._replace(bias=block.bias.to(dtype)) for block in rows.blocks] for rows in batch.rows]

    def attend(q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, layer: int) -> Tensor:
        attended = []
        all_blocks = blocks_in(torch.float32 if v_NHD.device.type == "cpu" else v_NHD.dtype)
        for rows, blocks in zip(batch.rows, all_blocks, strict=True):
            keys, values = (_rows(part, rows.key_slots_RK) for part in (k_NHD, v_NHD))
            attended += attention_in_blocks(_rows(q_NHD, rows.query_slots_RS), keys, values, blocks)
        return torch.cat([part.flatten(0, 1) for part in attended]).index_select(0, batch.attended_slots_N)

    return attend


def _rows(packed_NHD: Tensor, slots: Tensor) -> Tensor:
    return packed_NHD.index_select(0, slots.flatten()).unflatten(0, slots.shape)


def _fill_up(values_N: Tensor, fill: int = 0, *, multiple: int = 1) -> Tensor:
    return F.pad(values_N, (0, rounded_up(values_N.shape[-1], multiple) - values_N.shape[-1]), value=fill)


def _number(present: Tensor, first: Tensor | int) -> Tensor:
    """Number the present elements in order, from ``first``; the others get 0."""
    return (present.flatten().cumsum(0).view_as(present) - 1 + first) * present
