"""Normalisation and attention, and the precision in which they compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from harness.models.activations import MAX_SCORES


def widen(x: Tensor) -> Tensor:
    """``x`` in float32, or as it is where it is float64: for norms, softmax and whatever is summed."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def product_dtype(x: Tensor) -> torch.dtype:
    """The type that matrix products of ``x`` are computed in: autocast's where it is on, else that of ``x``."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32; Zhang and Sennrich 2019.

    On a CPU torch composes the operator of many passes over memory. The gradient written out here takes half the time
    (0.9 ms against 1.6 ms, forward and backward, 2,088 tokens of width 256, one thread) but cannot be differentiated
    again. SwiGLU and the rotation, treated the same way, gained nothing that could be measured on a whole step.

    Returns:
        The shape of ``x``, in the type the next matrix product takes: autocast's where that is on, else that of ``x``.
    """
    dtype = product_dtype(x)
    if x.device.type != "cpu":
        return F.rms_norm(widen(x), (x.shape[-1],), widen(weight), eps).to(dtype)
    out: Tensor = _RMSNorm.apply(x, weight, eps, dtype)
    return out


class _RMSNorm(torch.autograd.Function):
    """With n = x / rms: dx = (g * w - n * mean(g * w * n)) / rms and dw = sum(g * n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        ctx.input_dtype = x.dtype
        x = widen(x)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = (norm.square_() / x.shape[-1]).add_(eps).rsqrt_()
        normalized = x * inverse
        ctx.save_for_backward(normalized, inverse, weight)
        return (normalized * weight).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        normalized, inverse, weight = ctx.saved_tensors
        grad = widen(grad)
        grad_weight = (grad * normalized).flatten(0, -2).sum(0).to(weight.dtype)
        grad = grad * weight
        projection = (grad * normalized).sum(-1, keepdim=True).div_(-normalized.shape[-1])
        return grad.addcmul_(normalized, projection).mul_(inverse).to(ctx.input_dtype), grad_weight, None, None


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, max_scores: int = MAX_SCORES) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v, each key head serving a group of query heads.

    The backward pass of torch's fused kernel is slow on a CPU: with 64 rows of 31 queries, 44 keys and 8 heads of 32,
    forward and backward take 10.5 ms in float32 and 34 ms in bfloat16 on one thread. Two matrix products and a softmax
    in float32 take 7.6 ms, so they are used there while the scores fit in memory.

    Args:
        q: (B, S, Hq, D).
        k: (B, K, Hkv, D).
        v: (B, K, Hkv, D).
        bias: (B or 1, S, K) float32, 0 where a query may see a key and -inf where not, no row all -inf; None is causal
            (S = K).
        max_scores: above this number of scores, B * Hq * S * K, torch's fused kernel is used on a CPU too.

    Returns:
        (B, S, Hq, D) in the type of ``v``.
    """
    num_scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[1]
    if q.device.type == "cpu" and num_scores <= max_scores:
        return _plain_attention(q, k, v, causal_bias(k.shape[1], k.device) if bias is None else bias)
    return _fused_attention(q, k, v, bias)


def causal_bias(length: int, device: torch.device) -> Tensor:
    """(1, length, length): 0 on and below the diagonal, -inf above."""
    return torch.full((1, length, length), float("-inf"), device=device).triu_(1)


def bias_from(allowed: Tensor) -> Tensor:
    """0 where ``allowed`` is true and -inf where not."""
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, float("-inf"))


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The query heads of a group are laid behind one another, as more rows for their key head."""
    batch, queries, heads, size = q.shape
    groups = k.shape[2]
    with torch.autocast("cpu", enabled=False):
        q_rows = (widen(q) * size**-0.5).unflatten(2, (groups, heads // groups)).permute(0, 2, 3, 1, 4)
        q_rows = q_rows.reshape(batch * groups, heads // groups * queries, size)
        k_rows = widen(k).transpose(1, 2).flatten(0, 1)
        v_rows = widen(v).transpose(1, 2).flatten(0, 1)
        scores = torch.bmm(q_rows, k_rows.transpose(1, 2)).view(batch, heads, queries, k.shape[1])
        probabilities = scores.add_(bias[:, None]).softmax(-1)
        out = torch.bmm(probabilities.view(batch * groups, heads // groups * queries, k.shape[1]), v_rows)
    out = out.view(batch, groups, heads // groups, queries, size).permute(0, 3, 1, 2, 4)
    return out.reshape(q.shape).to(v.dtype)


def _fused_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Key heads are repeated for their group where a bias is given: torch's masked kernels take equal head counts."""
    heads, groups = q.shape[2], k.shape[2]
    if bias is not None and heads != groups:
        k, v = (part.repeat_interleave(heads // groups, dim=2) for part in (k, v))
    q, k, v = (part.to(v.dtype).transpose(1, 2) for part in (q, k, v))
    mask = None if bias is None else bias[:, None].to(v.dtype)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=bias is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)
