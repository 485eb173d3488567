"""Matrix products in float32 on a CPU, through oneDNN where torch would take MKL.

torch multiplies float32 matrices with MKL, which gives CPUs of other makers than Intel no AVX-512: on a Zen 5 core it
reaches 105 GFLOP/s where oneDNN reaches 165 to 245 (2,036 rows, 128 to 1,024 columns, one thread), forward and for both
gradients. Where neither has AVX-512 both are alike (``ONEDNN_MAX_CPU_ISA=AVX2``: a training pass takes 0.98 of the
seconds). The operator is the one that TorchInductor emits; since it is no public interface of torch, ``onednn_works``
tries it with known numbers before anything relies on it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_MOST_BESIDE = 2**22
"""Most elements of a copy or of a product on its way into a sum."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for x (..., in) and W (out, in), with gradients; as ``torch.nn.functional.linear``."""
    if not _goes_by_onednn(x, weight):
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias)
    return out


class FastLinear(nn.Linear):
    """torch's linear module, multiplying by ``linear``."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def use_fast_products(model: nn.Module) -> None:
    """Have every plain linear module of somebody else's model multiply by ``linear``; nothing else changes."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear


def product(a_NK: Tensor, b_MK: Tensor) -> Tensor:
    """a b^T, (N, M), without a gradient; either may be a transposed view."""
    if not _goes_by_onednn(a_NK, b_MK):
        return a_NK @ b_MK.t()
    return _onednn(a_NK, b_MK, None)


def add_weight_gradient(total_MK: Tensor, grad_NM: Tensor, x_NK: Tensor) -> None:
    """Add grad^T x to ``total``, with no more than a few MB beside it."""
    if _goes_by_onednn(grad_NM, x_NK):
        x_KN, columns = x_NK.t(), max(1, _MOST_BESIDE // max(x_NK.shape))
        for total, grad in zip(total_MK.split(columns), grad_NM.split(columns, dim=1), strict=True):
            total += _onednn(grad.t(), x_KN, None)
    elif grad_NM.dtype == total_MK.dtype:
        total_MK.addmm_(grad_NM.t(), x_NK)
    else:
        total_MK += grad_NM.t() @ x_NK


_SMALL_ROWS = 2048
"""Rows below which an eighth more of them costs too little to be measured in the seconds of a quickstart."""


def rounded_up(rows: int, multiple: int = 1) -> int:
    """Return the next of a few numbers of rows, for products whose rows vary all the time.

    They are 4 apart up to 64, then an eighth at most, and a sixteenth from 2,048 on. One row stays one: its product is
    summed up in another order. oneDNN compiles a product for its exact shape, which takes about 0.3 ms and 0.6 MiB,
    and keeps the last 1,024. Where the rows are shared out, their number is a ``multiple`` of the ranks.
    """
    parts = 8 if rows < _SMALL_ROWS else 16
    step = math.lcm(max(4, 2 ** (rows.bit_length() - 1) // parts) if rows > 1 else 1, multiple)
    return rows + -rows % step


@cache
def onednn_works() -> bool:
    """Whether this torch has the operator, and it computes what it should, on transposed views too.

    The probe's products are small integers, exact in float32, so that equality is the test.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    a, b = torch.arange(-6.0, 6.0).view(3, 4), torch.arange(8.0).view(2, 4)
    bias, exact = torch.tensor([1.0, -2.0]), (a[:, :, None] * b.t()).sum(1)
    try:
        got = _onednn(a, b, bias), _onednn(a, b.t().contiguous().t(), None), _onednn(a.t().contiguous().t(), b, None)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(got[0], exact + bias) and torch.equal(got[1], exact) and torch.equal(got[2], exact)


class _Linear(torch.autograd.Function):
    """With y = x W^T + b: dx = dy W, dW = dy^T x, db = sum(dy)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _onednn(x.flatten(0, -2), weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2).contiguous()  # a gradient of a sum is one number seen everywhere, which is slow
        of_x = _onednn(rows, weight.t(), None).view(x.shape) if needs_x else None
        of_weight = _weight_gradient(rows, x.flatten(0, -2)) if needs_weight else None
        return of_x, of_weight, rows.sum(0) if ctx.has_bias and needs_bias else None


def _weight_gradient(grad_NM: Tensor, x_NK: Tensor) -> Tensor:
    """grad^T x, (M, K). The operator copies its first operand when that is a view, so the narrower one comes first."""
    if grad_NM.shape[1] <= x_NK.shape[1]:
        return _onednn(grad_NM.t(), x_NK.t(), None)
    return _onednn(x_NK.t(), grad_NM.t(), None).t()


def _goes_by_onednn(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype is torch.float32
        and b.dtype is torch.float32
        and a.device.type == "cpu"
        and type(a) in (Tensor, nn.Parameter)  # a sharded tensor has products of its own
        and type(b) in (Tensor, nn.Parameter)
        and a.dim() > 1
        and a.numel() > 0
        and b.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and onednn_works()
    )


def _onednn(a_NK: Tensor, b_MK: Tensor, bias_M: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(a_NK, b_MK, bias_M, "none", [], "")
    return out
