"""Means and sums over the response tokens only."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.checks import at_least_float32, require_same_shape


def zero_masked(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the tensor with 0 wherever the mask is 0.

    What stood there, NaN and infinity included, reaches neither the value nor the gradient, which multiplying by the
    mask would not ensure.

    Args:
        tensor: any shape.
        mask: the same shape, boolean or 0/1.
    """
    return torch.where(mask.bool(), tensor, 0)


def masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return ``tensor.mean(dim)`` over the elements whose mask is 1.

    Args:
        tensor: any shape; half precision is summed in float32 and given back in its own type.
        mask: the same shape, boolean or 0/1.
        dim: the dimension to average over; None averages over all elements.

    Returns:
        A scalar for ``dim=None``, else the tensor's shape without ``dim``. An empty selection gives NaN, as the mean
        of an empty slice does.

    Raises:
        UserError: the shapes differ.
    """
    total, result_type = _masked_sum(tensor, mask, dim)
    count = mask.bool().sum() if dim is None else mask.bool().sum(dim)
    return (total / count).to(result_type)


def masked_normalize(tensor: Tensor, mask: Tensor, normalize_constant: float = 1.0, dim: int | None = None) -> Tensor:
    """Return the sum over the elements whose mask is 1, divided by a constant (Dr. GRPO, arXiv:2503.20783).

    Args:
        tensor: any shape.
        mask: the same shape, boolean or 0/1.
        normalize_constant: what the sum is divided by, for instance the longest length that may be sampled.
        dim: the dimension to sum over; None sums over all elements.

    Raises:
        UserError: the shapes differ, or the constant is 0.
    """
    if normalize_constant == 0:
        raise UserError("normalize_constant is 0, it must not be", fix="pass the maximum number of response tokens")
    total, result_type = _masked_sum(tensor, mask, dim)
    return (total / normalize_constant).to(result_type)


def _masked_sum(tensor: Tensor, mask: Tensor, dim: int | None) -> tuple[Tensor, torch.dtype]:
    require_same_shape("tensor", tensor, "mask", mask)
    kept = zero_masked(at_least_float32(tensor), mask)
    result_type = tensor.dtype if tensor.is_floating_point() else kept.dtype
    return (kept.sum() if dim is None else kept.sum(dim)), result_type
