"""Drawing tokens from logits: temperature, top-p and a ban on the end tokens.

A token is drawn by inverting the cumulative distribution at a uniform number that was drawn beforehand from the row's
own stream (see ``rng``): one uniform a token instead of one noise value for each entry of the vocabulary, and the
same token whatever batch the row is computed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.core.types import SamplingParams


def draw(
    logits_RV: Tensor, sampling: SamplingParams, uniforms_R: Tensor | None, banned: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Draw one token for each row.

    Temperature 0 takes the likeliest token (the first one among equals).

    Args:
        logits_RV: (R, V) float32; overwritten.
        sampling: temperature and top-p.
        uniforms_R: (R,) in [0, 1); not needed at temperature 0.
        banned: tokens that must not be drawn.

    Returns:
        token ids (R,) int64, and their log-probabilities (R,) float32 under the distribution they were drawn from:
        without the banned tokens, after temperature and top-p, renormalised. At temperature 0 they are those of
        temperature 1 (still without the banned tokens).
    """
    for token in banned:
        logits_RV[:, token] = -torch.inf
    if sampling.temperature == 0:
        return _greedy(logits_RV)
    if sampling.temperature != 1:
        logits_RV /= sampling.temperature
    probs_RV = torch.softmax(logits_RV, -1)
    if sampling.top_p < 1:
        keep_nucleus(probs_RV, sampling.top_p)
    assert uniforms_R is not None
    return invert(probs_RV, uniforms_R)


def keep_nucleus(probs_RV: Tensor, top_p: float) -> None:
    """Zero, in place, every token outside the nucleus (Holtzman et al. 2020).

    The nucleus is the smallest set of likeliest tokens whose mass reaches ``top_p``. Tokens as likely as the last one
    that belongs to it are kept too, so that the set does not depend on the order of a sort.
    """
    ascending_RV = _sort(probs_RV)
    outside_R1 = torch.full_like(ascending_RV[:, :1], 1 - top_p)
    first_kept_R1 = torch.searchsorted(ascending_RV.cumsum(-1), outside_R1, right=True)
    threshold_R1 = ascending_RV.gather(1, first_kept_R1.clamp_(max=probs_RV.shape[1] - 1))
    probs_RV.masked_fill_(probs_RV < threshold_R1, 0.0)


def _sort(values_RV: Tensor) -> Tensor:
    """Sort each row. numpy's vectorised sort of plain values is several times faster than torch's pairs on a CPU."""
    if values_RV.device.type == "cpu":
        return torch.from_numpy(np.sort(values_RV.numpy(), axis=-1))
    return values_RV.sort(-1).values


def _greedy(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    tokens_R1 = logits_RV.argmax(-1, keepdim=True)
    log_probs_R1 = logits_RV.gather(1, tokens_R1) - logits_RV.logsumexp(-1, keepdim=True)
    return tokens_R1.squeeze(1), log_probs_R1.squeeze(1)


def invert(probs_RV: Tensor, uniforms_R: Tensor) -> tuple[Tensor, Tensor]:
    """The first token whose cumulative probability exceeds u times the total, and its log-probability.

    u is a multiple of 2^-24 below 1, for which the rounded product u * total stays below the total. A CPU sums in
    order, so that a token of probability 0 never raises the cumulative sum and is never drawn. What is not a number
    stays so; the caller reports it.

    Args:
        probs_RV: (R, V) float32, each row with a token above 0; need not sum to 1.
        uniforms_R: (R,) in [0, 1).
    """
    if probs_RV.device.type != "cpu":
        return invert_in_blocks(probs_RV, uniforms_R)
    cumulative_RV = torch.cumsum(probs_RV, -1)
    total_R1 = cumulative_RV[:, -1:]
    tokens_R1 = torch.searchsorted(cumulative_RV, uniforms_R.unsqueeze(1) * total_R1, right=True)
    tokens_R1.clamp_(max=probs_RV.shape[1] - 1)
    log_probs_R1 = (probs_RV.gather(1, tokens_R1) / total_R1).log_()
    return tokens_R1.squeeze(1), log_probs_R1.squeeze(1)


def invert_in_blocks(
    probs_RV: Tensor,
    uniforms_R: Tensor,
    block: int = 512,
    scan: Callable[[Tensor, int], Tensor] = torch.cumsum,
) -> tuple[Tensor, Tensor]:
    """As ``invert``, for a GPU: first a block of tokens is drawn by its mass, then a token of the block.

    Two short scans use the whole GPU, where one over the vocabulary uses a thread block a row: 0.04 against 0.25 ms for
    64 rows of 151,936 on an H100. Nothing waits for the device. Rounding may draw the neighbour of the token that
    ``invert`` draws, about once in a thousand tokens.

    ``scan`` sums along a dimension, as ``torch.cumsum`` does; on a GPU the order in which it adds is not defined.
    """
    blocks_RNB = F.pad(probs_RV, (0, -probs_RV.shape[1] % block)).unflatten(1, (-1, block))
    masses_RN = blocks_RNB.sum(-1)
    cumulative_RN = scan(masses_RN, -1)
    total_R1 = cumulative_RN[:, -1:]
    targets_R1 = uniforms_R.unsqueeze(1) * total_R1
    block_R1 = _first_above(cumulative_RN, targets_R1, masses_RN)
    before_R1 = F.pad(cumulative_RN, (1, 0)).gather(1, block_R1)
    probs_RB = blocks_RNB.gather(1, block_R1[:, :, None].expand(-1, -1, block)).squeeze(1)
    place_R1 = _first_above(scan(probs_RB, -1), targets_R1 - before_R1, probs_RB)
    log_probs_R1 = (probs_RB.gather(1, place_R1) / total_R1).log_()
    return (block_R1 * block + place_R1).squeeze(1), log_probs_R1.squeeze(1)


def _first_above(cumulative_RN: Tensor, targets_R1: Tensor, masses_RN: Tensor) -> Tensor:
    """Where the cumulative masses first exceed the target; if the mass there is 0, the last before it that is not.

    A parallel scan may round each sum differently, so that a mass of 0 raises it. Before all masses the first is taken.
    """
    at_R1 = torch.searchsorted(cumulative_RN, targets_R1, right=True)
    possible_RN = masses_RN > 0
    ids_N = torch.arange(masses_RN.shape[1], device=masses_RN.device)
    last_R1 = torch.where(possible_RN & (ids_N <= at_R1), ids_N, -1).amax(1, keepdim=True)
    return torch.where(last_R1 < 0, possible_RN.int().argmax(1, keepdim=True), last_R1)
