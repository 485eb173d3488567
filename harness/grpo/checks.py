"""Shape checks at the entry of the public functions, and the precision the maths runs in."""

from __future__ import annotations

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
