"""The norm of a gradient whose pieces lie on several ranks and meshes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from harness.learner.gradient_norm import clip_gradients, gradient_norm
from tests.rank_pool import RankPool


def with_gradient(gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


def test_without_ranks_it_is_torchs_and_summed_in_float32_at_least() -> None:
    parameters = [*map(with_gradient, (torch.tensor([3.0, 0.0]), torch.tensor(4.0))), nn.Parameter(torch.ones(2))]
    assert float(clip_gradients(parameters, math.inf)) == 5.0  # 3-4-5
    assert float(clip_gradients(parameters, 2.5)) == 5.0
    assert float(gradient_norm(parameters)) == pytest.approx(2.5)
    assert float(torch.nn.utils.clip_grad_norm_(parameters, 1.0)) == pytest.approx(2.5)
    assert float(gradient_norm([])) == 0.0
    narrow = with_gradient(torch.ones(1000, dtype=torch.bfloat16))  # a norm of 31.62; bfloat16 has 31.5 and 31.75
    assert float(gradient_norm([narrow])) == pytest.approx(math.sqrt(1000), rel=1e-6)


def norm_on_meshes(rank: int) -> None:
    line, plane = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
    whole = with_gradient(torch.tensor([1.0]))
    cut = with_gradient(distribute_tensor(torch.tensor([0.0, 2.0, 0.0]), line, [Shard(0)]))  # of 2 and 1
    replicated = with_gradient(distribute_tensor(torch.tensor([4.0]), line, [Replicate()]))
    both = with_gradient(distribute_tensor(torch.tensor([[10.0, 0.0]]), plane, [Shard(0), Shard(1)]))
    empty = with_gradient(distribute_tensor(torch.tensor([20.0]), plane, [Replicate(), Shard(0)]))  # of 1 and none
    parameters = [whole, cut, replicated, both, empty]
    # 1 + 4 + 16 + 100 + 400 = 521: each once, whatever number of ranks has it
    assert float(clip_gradients(parameters, math.sqrt(521) / 2)) == pytest.approx(math.sqrt(521))
    halves = [parameter.grad.full_tensor() for parameter in parameters[1:] if isinstance(parameter.grad, DTensor)]
    assert torch.cat([half.flatten() for half in halves]).tolist() == pytest.approx([0, 1, 0, 2, 5, 0, 10])
    assert whole.grad is not None
    assert whole.grad.tolist() == pytest.approx([0.5])
    summand = with_gradient(DTensor.from_local(torch.ones(2), line, [Partial()], run_check=False))
    with pytest.raises(ValueError, match="still to be summed"):
        gradient_norm([summand])


def test_each_piece_counts_once_on_any_mesh(rank_pool: RankPool) -> None:
    rank_pool.run(2, norm_on_meshes)
