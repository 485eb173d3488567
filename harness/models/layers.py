"""Normalisation and attention, and the precision in which they compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from harness.models.limits import MAX_SCORES, keeps_scores


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


class QueryBlock(NamedTuple):
    """Queries ``start`` to ``end`` of the first ``rows`` rows, and what they see.

    ``bias`` is (rows, end - start, keys) float32 over the first ``keys`` keys: 0 where a query may see a key and -inf
    where not, no row all -inf.
    """

    rows: int
    start: int
    end: int
    keys: int
    bias: Tensor

    @property
    def queries(self) -> int:
        """Queries of all rows."""
        return self.rows * (self.end - self.start)


def queries_per_block(device: torch.device) -> int:
    """Return how many queries of a row go through attention at a time.

    Smaller blocks skip more of what a causal row does not see and start more kernels. On a CPU, 4 rows of 2,047
    queries, forward and backward: one block 843 ms, 4 blocks 538, 8 blocks 498.
    """
    return 128 if device.type == "cpu" else 1024


def avoid_cudnn_attention() -> None:
    """Have torch take its flash or memory-efficient attention on a GPU, for the rest of this process.

    From 2.11 on, torch takes cuDNN's first on Hopper, which builds a plan for each new shape. On an H100 that made a
    microbatch of a new length take up to twice as long, and a decoded token of a transformers model 40 to 640 ms in
    place of 4; on known shapes cuDNN was not faster (docs/measured/h100.md).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def attention_kernels() -> list[str]:
    """Return which kernels of attention torch may take on a GPU in this process, by torch's names."""
    names = ("flash", "mem_efficient", "cudnn", "math")
    return [name for name in names if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, max_scores: int = MAX_SCORES) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v, each key head serving a group of query heads.

    On a CPU, forward and backward of two matrix products and a softmax between them take 0.6 to 0.8 of the time of
    torch's fused kernel while a row sees few keys, and up to 2.2 times as long beyond: the scores pass through memory
    several times, which costs less than the slower products of the fused kernel only up to about 2 D keys.

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
    if _takes_plain(q, k.shape[1], max_scores):
        causal = torch.full((1, k.shape[1], k.shape[1]), float("-inf"), device=k.device).triu_(1)
        return _plain_attention(q, k, v, causal if bias is None else bias)
    if bias is not None:
        k, v = _repeat_heads(q, k), _repeat_heads(q, v)
    return _fused_attention(q, k, v, bias)


def attention_in_blocks(q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[QueryBlock]) -> list[Tensor]:
    """Return each block's attention, (rows, S, Hq, D); arguments and kernels as in ``attention``."""
    plain = _takes_plain(q, k.shape[1], MAX_SCORES)
    attend = _plain_attention if plain else _fused_attention
    if not plain:
        k, v = _repeat_heads(q, k), _repeat_heads(q, v)
    return [
        attend(
            q[: block.rows, block.start : block.end],
            k[: block.rows, : block.keys],
            v[: block.rows, : block.keys],
            block.bias,
        )
        for block in blocks
    ]


def _takes_plain(q: Tensor, keys: int, max_scores: int) -> bool:
    batch, queries, heads, size = q.shape
    return q.device.type == "cpu" and keeps_scores(batch * queries * heads * keys, keys, size, max_scores)


def _repeat_heads(q: Tensor, k: Tensor) -> Tensor:
    """Repeat key heads for their groups: torch's masked kernels take equal head counts."""
    times = q.shape[2] // k.shape[2]
    return k if times == 1 else k.repeat_interleave(times, dim=2)


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
    """torch's fused kernel; on a CPU in float32, since its backward pass in bfloat16 takes three times as long."""
    dtype = v.dtype
    if q.device.type == "cpu":
        q, k, v = widen(q), widen(k), widen(v)
    q, k, v = (part.to(v.dtype).transpose(1, 2) for part in (q, k, v))
    mask = None if bias is None else bias[:, None].to(v.dtype)
    with torch.autocast(q.device.type, enabled=False):
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=bias is None, enable_gqa=q.shape[1] != k.shape[1]
        )
    return out.transpose(1, 2).to(dtype)
