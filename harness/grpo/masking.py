"""Means and sums over the response tokens only, and the checks at the entry of the public functions."""

from __future__ import annotations

from difflib import get_close_matches

import torch
from torch import Tensor

from harness.core.errors import UserError


def shape_of(tensor: Tensor) -> str:
    """Return the shape as people write it: ``(4, 1)``."""
    return str(tuple(tensor.shape))


def require_matrix(name: str, tensor: Tensor) -> None:
    """Raise UserError unless the tensor has the two dimensions (B, T)."""
    if tensor.dim() != 2:
        raise UserError(
            f"{name} has shape {shape_of(tensor)}, expected two dimensions (B, T)",
            fix=f"pass {name} as one row for each rollout, padded to a common length",
        )


def require_same_shape(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise UserError unless both tensors have the same shape."""
    if tensor.shape != other.shape:
        raise UserError(
            f"{name} has shape {shape_of(tensor)} and {other_name} has shape {shape_of(other)}; they must be equal",
            fix=f"build {name} and {other_name} from the same padded batch",
        )


def require_per_rollout(name: str, tensor: Tensor, log_probs_BT: Tensor) -> None:
    """Raise UserError unless the tensor is (B, 1), or (B, T), beside log-probabilities (B, T).

    A tensor (B,) is refused: it would broadcast along the tokens instead of along the rollouts.
    """
    rows, length = log_probs_BT.shape
    if tuple(tensor.shape) not in {(rows, 1), (rows, length)}:
        raise UserError(
            f"{name} has shape {shape_of(tensor)}, expected ({rows}, 1) beside log-probs {shape_of(log_probs_BT)}",
            fix=f"reshape it to one value for each rollout: {name}.reshape(-1, 1)",
        )


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return integers and half-precision floats as float32; float32 and float64 as they are."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def unknown_choice(name: str, value: str, choices: tuple[str, ...]) -> UserError:
    """Return the error for a value that is none of the choices, with the nearest one as the fix."""
    nearest = get_close_matches(str(value), choices, n=1, cutoff=0.0)[0]
    return UserError(f"{name} is {value!r}, expected one of {', '.join(choices)}", where=name, fix=f"use {nearest!r}")


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
