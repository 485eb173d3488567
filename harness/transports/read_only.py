"""Tensors over memory that may only be read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def from_read_only(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """Return tensors over these arrays without a copy.

    Torch knows no read-only tensors and warns of it: writing to one of these ends the process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
