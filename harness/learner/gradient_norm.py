"""The norm of a gradient and its clipping, also where parameters are cut over the ranks of several meshes.

``torch.nn.utils.clip_grad_norm_`` stacks the norms of all parameters, which it cannot where their meshes differ
(torch 2.13: "All operands in aten.stack.default must have the same mesh"), and where some parameters are no DTensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients in place so that their norm is at most ``max_norm``; return the norm before.

    As ``torch.nn.utils.clip_grad_norm_``: times min(1, max_norm / (norm + 1e-6)), Pascanu et al. 2013.
    """
    parameters = list(parameters)
    norm = gradient_norm(parameters)
    if max_norm < math.inf:
        share = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for _, local in _gradients(parameters):
            local.mul_(share)
    return norm


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the Euclidean norm of all gradients together, the same on every rank.

    A collective call: each rank adds up the squares of what it holds, and these are summed over the mesh dimensions
    that a gradient is cut over, so that a replica counts once.
    """
    norms: dict[_Cut, list[Tensor]] = {}
    for cut, local in _gradients(parameters):
        norms.setdefault(cut, []).append(torch.linalg.vector_norm(local, dtype=_wide(local)))
    total = torch.zeros(())
    for (mesh, dimensions), found in norms.items():
        square = torch.stack(found).square().sum()
        for dimension in dimensions:
            assert mesh is not None
            dist.all_reduce(square, group=mesh.get_group(dimension))
        total = total.to(square.device) + square
    return total.sqrt()


_Cut = tuple[DeviceMesh | None, tuple[int, ...]]
"""A mesh, and those of its dimensions that a tensor is cut over; a plain tensor is whole on every rank."""


def _gradients(parameters: Iterable[nn.Parameter]) -> Iterator[tuple[_Cut, Tensor]]:
    """What this rank holds of each gradient there is, and how that is cut."""
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(gradient, DTensor):
            if gradient is not None:
                yield (None, ()), gradient
            continue
        placements = gradient.placements
        if any(placement.is_partial() for placement in placements):
            raise ValueError(f"a gradient {tuple(gradient.shape)} is still to be summed over ranks: {placements}")
        dimensions = tuple(number for number, placement in enumerate(placements) if placement != Replicate())
        yield (gradient.device_mesh, dimensions), gradient.to_local()


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
