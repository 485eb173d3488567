"""Whole weights on one rank of a sharded Learner, gathered by collectives: what publishing shards is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, a collective call where it is a DTensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def gather_per_tensor(weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor] = whole) -> dict[str, Tensor]:
    """Gather one tensor after the other, on all ranks together; on one rank, at most one is whole beside the result.

    Args:
        weights: what this rank holds, by name.
        whole: gathers one of them.

    Returns:
        On rank 0 the whole tensors by name, on the CPU: those that were whole already may be the live ones. On other
        ranks nothing.
    """
    keeps, gathered = dist.get_rank() == 0, {}
    for name, tensor in weights.items():
        full = whole(tensor).detach()
        if keeps:
            gathered[name] = full.cpu()
    return gathered


def gather_whole(model: nn.Module) -> dict[str, Tensor]:
    """Gather the model's parameters at once, by torch's ``get_model_state_dict``, on all ranks together.

    Returns:
        On rank 0 the whole parameters by name, on the CPU; on other ranks nothing.
    """
    state: dict[str, Any] = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    names = (name.removeprefix("module.") for name, _ in model.named_parameters())  # a name that only DDP gives
    return {name: state[name] for name in names if name in state}
