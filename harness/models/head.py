"""Log-probabilities and entropy of given tokens from hidden states and the output matrix, a piece of logits at a time.

With a vocabulary of 151,936 the logits of 4,096 tokens are 2.5 GB in float32, and log-softmax, its gradient and the
entropy make several of them. Here a piece needs its logits and one array more, in each direction; the logits of as many
pieces as ``MAX_LOGITS`` allows are kept for the way back, those of the others are computed again. The gradients are
written out, as in fused linear cross-entropies (Hsu et al. 2024, arXiv:2410.10989, section 3.2), for log-probabilities
and entropies whose own gradients come later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.models.activations import MAX_LOGITS, PIECE_LOGITS
from harness.models.layers import product_dtype, widen
from harness.models.products import add_weight_gradient, product

LEAST_LOG_PROB = -1e4
"""Below it a probability is 0 in float32 and float64 alike."""
PLAIN_HEADS = ("llama", "mistral", "qwen2", "qwen3")
"""Model types of transformers whose logits are the output matrix times the last hidden states, and nothing else."""


def has_plain_head(model: nn.Module) -> bool:
    """Whether a model of transformers makes its logits of the last hidden states and its output matrix alone.

    Others scale or cap their logits, or add a bias to them.
    """
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind in PLAIN_HEADS and head is not None and getattr(head, "bias", None) is None


def score_hidden(
    hidden_MC: Tensor,
    weight_VC: Tensor,
    token_ids_M: Tensor,
    temperature: float,
    with_entropy: bool,
    *,
    entropy_gradient: bool = False,
    banned_M: Tensor | None = None,
    max_logits: int = MAX_LOGITS,
    piece_logits: int = PIECE_LOGITS,
) -> tuple[Tensor, Tensor | None]:
    """Score tokens as ``scoring.score_tokens`` does, from hidden states and the output matrix.

    Args:
        hidden_MC: the last layer's normed output where each token is predicted.
        weight_VC: turns it into logits.
        token_ids_M: the tokens.
        temperature: divides the logits.
        with_entropy: also return the entropies.
        entropy_gradient: see ``score_tokens``.
        banned_M: see ``score_tokens``.
        max_logits: most logits kept for the way back.
        piece_logits: most logits computed at a time.

    Returns:
        Log-probabilities (M,), and entropies (M,) or None.
    """
    scores: tuple[Tensor, Tensor | None] = _Scores.apply(
        hidden_MC,
        weight_VC,
        token_ids_M,
        banned_M,
        temperature,
        with_entropy,
        with_entropy and entropy_gradient,
        max_logits,
        max(1, piece_logits // weight_VC.shape[0]),
    )
    return scores


class _Scores(torch.autograd.Function):
    """With z the logits over the temperature T, log p = z - logsumexp(z) and H = logsumexp(z) - sum(p z).

    For the gradients g of log p[token] and h of H: dz = g 1[token] - p (g + h (log p + H)).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MC: Tensor,
        weight_VC: Tensor,
        token_ids_M: Tensor,
        banned_M: Tensor | None,
        temperature: float,
        with_entropy: bool,
        entropy_gradient: bool,
        max_logits: int,
        rows: int,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.temperature, ctx.entropy_gradient, ctx.rows = temperature, entropy_gradient, rows
        ctx.dtype = product_dtype(hidden_MC)
        hidden, weight = hidden_MC.to(ctx.dtype), weight_VC.to(ctx.dtype)
        needs_gradient = any(ctx.needs_input_grad[:2])
        normalisers, log_probs, entropies, kept = [], [], [], []
        room = max_logits
        for piece in _pieces(len(hidden), rows):
            z = _scaled_logits(hidden[piece], weight, temperature, None if banned_M is None else banned_M[piece])
            highest = z.amax(-1, keepdim=True)
            scratch = torch.sub(z, highest).exp_()
            mass = scratch.sum(-1)
            normaliser = mass.log() + highest[:, 0]
            normalisers.append(normaliser)
            log_probs.append(z.gather(-1, token_ids_M[piece, None])[:, 0] - normaliser)
            if with_entropy:  # a token of probability 0 adds nothing, where 0 * -inf is no number
                entropies.append(normaliser - scratch.mul_(z).nansum(-1) / mass)
            room -= z.numel()
            if needs_gradient and room >= 0:  # the first pieces, and none behind one that was not
                kept.append(z)
        entropy_M = torch.cat(entropies) if with_entropy else None
        if entropy_M is not None and not entropy_gradient:
            ctx.mark_non_differentiable(entropy_M)
        ctx.save_for_backward(hidden_MC, weight_VC, token_ids_M, banned_M, torch.cat(normalisers), entropy_M, *kept)
        return torch.cat(log_probs), entropy_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_M: Tensor, grad_entropy_M: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_MC, weight_VC, token_ids_M, banned_M, normaliser_M, entropy_M, *kept = ctx.saved_tensors
        hidden, weight = hidden_MC.to(ctx.dtype), weight_VC.to(ctx.dtype)
        grad_M = (grad_M / ctx.temperature).to(normaliser_M.dtype)[:, None]
        of_hidden, of_weight = [], torch.zeros_like(weight_VC)
        for number, piece in enumerate(_pieces(len(hidden), ctx.rows)):
            if number < len(kept):
                gradient = kept[number] - normaliser_M[piece, None]
            else:
                banned = None if banned_M is None else banned_M[piece]
                gradient = _scaled_logits(hidden[piece], weight, ctx.temperature, banned).sub_(
                    normaliser_M[piece, None]
                )
            if ctx.entropy_gradient and grad_entropy_M is not None:
                by_entropy = (grad_entropy_M[piece, None] / ctx.temperature).to(gradient.dtype)
                probabilities = gradient.exp()
                gradient.clamp_(min=LEAST_LOG_PROB).add_(entropy_M[piece, None]).mul_(by_entropy)
                gradient.add_(grad_M[piece]).mul_(probabilities).neg_()
            else:
                gradient.exp_().mul_(-grad_M[piece])
            gradient.scatter_add_(1, token_ids_M[piece, None], grad_M[piece])
            gradient = gradient.to(ctx.dtype)
            of_hidden.append(product(gradient, weight.t()))
            add_weight_gradient(of_weight, gradient, hidden[piece])
        return torch.cat(of_hidden).to(hidden_MC.dtype), of_weight, *[None] * 7


def _pieces(total: int, rows: int) -> list[slice]:
    """Consecutive rows, at least one piece, if an empty one."""
    return [slice(first, min(first + rows, total)) for first in range(0, max(total, 1), rows)]


def _scaled_logits(hidden_RC: Tensor, weight_VC: Tensor, temperature: float, banned_R: Tensor | None) -> Tensor:
    """Logits over the temperature in float32 at least, minus infinity at each row's banned token; -1 is none."""
    z_RV = widen(product(hidden_RC, weight_VC))
    if temperature != 1.0:
        z_RV /= temperature
    if banned_R is not None:
        index_R1 = banned_R.clamp(min=0)[:, None]
        z_RV.scatter_(1, index_R1, torch.where(banned_R[:, None] >= 0, -torch.inf, z_RV.gather(1, index_R1)))
    return z_RV
