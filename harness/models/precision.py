"""Which type to compute in: what must stay accurate, and what may follow autocast."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """``x`` in float32, or as it is where it is float64: for norms, softmax and whatever is summed."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def product_dtype(x: Tensor) -> torch.dtype:
    """The type that matrix products of ``x`` are computed in: autocast's where it is on, else that of ``x``."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
