"""Drawing tokens from logits: temperature, top-p and a ban on the end of sequence.

A token is drawn by inverting the cumulative distribution at a uniform number that was drawn beforehand from the row's
own stream (see ``rng``): one uniform a token instead of one noise value for each entry of the vocabulary, and the
same token whatever batch the row is computed in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from harness.core.types import SamplingParams


def draw(
    logits_RV: Tensor, sampling: SamplingParams, uniforms_R: Tensor | None, banned: int | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token for each row.

    Temperature 0 takes the likeliest token (the first one among equals).

    Args:
        logits_RV: (R, V) float32; overwritten.
        sampling: temperature and top-p.
        uniforms_R: (R,) in [0, 1); not needed at temperature 0.
        banned: a token that must not be drawn.

    Returns:
        token ids (R,) int64, and their log-probabilities (R,) float32 under the distribution they were drawn from:
        without the banned token, after temperature and top-p, renormalised. At temperature 0 they are those of
        temperature 1 (still without the banned token).
    """
    if banned is not None:
        logits_RV[:, banned] = -torch.inf
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


def invert(
    probs_RV: Tensor, uniforms_R: Tensor, scan: Callable[[Tensor, int], Tensor] = torch.cumsum
) -> tuple[Tensor, Tensor]:
    """The first token whose cumulative probability exceeds u times the total, and its log-probability.

    u is a multiple of 2^-24 below 1, for which the rounded product u * total stays below the total. Summed in order, a
    token of probability 0 never raises the cumulative sum, so it is never drawn. A parallel scan may round each sum
    differently (CUDA's of a single row does): where it points at such a token, the nearest possible one before it is
    drawn, or the first. What is not a number stays so; the caller reports it.

    Args:
        probs_RV: (R, V) float32, each row with a token above 0; need not sum to 1.
        uniforms_R: (R,) in [0, 1).
        scan: sums along a dimension, as ``torch.cumsum`` does.
    """
    cumulative_RV = scan(probs_RV, -1)
    total_R1 = cumulative_RV[:, -1:]
    tokens_R1 = torch.searchsorted(cumulative_RV, uniforms_R.unsqueeze(1) * total_R1, right=True)
    tokens_R1.clamp_(max=probs_RV.shape[1] - 1)
    drawn_R1 = probs_RV.gather(1, tokens_R1)
    if not drawn_R1.all():
        possible_RV = probs_RV > 0
        ids_V = torch.arange(probs_RV.shape[1], device=probs_RV.device)
        before_R1 = torch.where(possible_RV & (ids_V <= tokens_R1), ids_V, -1).amax(1, keepdim=True)
        first_R1 = possible_RV.int().argmax(1, keepdim=True)
        tokens_R1 = torch.where(before_R1 < 0, first_R1, before_R1)
        drawn_R1 = probs_RV.gather(1, tokens_R1)
    log_probs_R1 = (drawn_R1 / total_R1).log_()
    return tokens_R1.squeeze(1), log_probs_R1.squeeze(1)
