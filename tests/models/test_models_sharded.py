"""A policy under FSDP2 and under a tensor-parallel plan, on two ranks: the same scores, the same gradients.

Each rank compares with the whole model, which it keeps beside its shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLM
from harness.models.policy import ScoringModel, why_padded
from tests.rank_pool import RankPool

RANKS = 2
SHAPE = ModelConfig(53, 32, 48, 2, 4, 2, 8, 64)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama, tied": lambda: DecoderLM(SHAPE),
    "qwen2, untied": lambda: DecoderLM(dataclasses.replace(SHAPE, model_type="qwen2", tie_word_embeddings=False)),
    "qwen3, tied": lambda: DecoderLM(dataclasses.replace(SHAPE, model_type="qwen3")),
    "transformers' llama": lambda: LlamaForCausalLM(LlamaConfig.from_dict(SHAPE.to_hf())).eval(),
}
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")


def whole_model(name: str) -> ScoringModel:
    torch.manual_seed(0)
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return ScoringModel(model)


def batch() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    prompts_PL = torch.randint(53, (2, 6), generator=generator)
    responses_BT = torch.randint(53, (4, 5), generator=generator)
    mask_BT = torch.arange(5) < torch.tensor([5, 3, 1, 4])[:, None]
    return prompts_PL, torch.tensor([6, 4]), responses_BT, mask_BT, torch.tensor([0, 0, 1, 1])


def layers_of(scoring: ScoringModel) -> Iterable[nn.Module]:
    policy: Any = scoring.policy
    layers: nn.ModuleList = policy.model.layers
    return layers


def shard_fully(scoring: ScoringModel) -> None:
    for layer in layers_of(scoring):
        fully_shard(layer)
    fully_shard(scoring)


def shard_tensors(scoring: ScoringModel) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    plan = {name: ColwiseParallel() for name in COLUMNS} | {name: RowwiseParallel() for name in ROWS}
    for layer in layers_of(scoring):
        parallelize_module(layer, mesh, plan)


SHARDINGS = {"FSDP2": shard_fully, "tensor parallel": shard_tensors}


def step(scoring: nn.Module) -> Tensor:
    scores_BT: Tensor = scoring(*batch())[0]
    (-scores_BT.sum()).backward()
    return scores_BT.detach()


def compare(rank: int, sharding: str, model: str) -> None:
    whole, sharded = whole_model(model), whole_model(model)
    SHARDINGS[sharding](sharded)
    torch.testing.assert_close(step(sharded), step(whole), rtol=1e-5, atol=1e-5)
    if not isinstance(whole.policy, DecoderLM):  # tried within the forward pass of the sharded one too
        assert why_padded(whole.policy) == why_padded(sharded.policy) == ""
    gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    num_sharded = 0
    for name, parameter in sharded.named_parameters():
        found = parameter.grad
        assert found is not None
        if isinstance(found, DTensor):
            num_sharded += 1
            found = found.full_tensor()
        elif ".q_norm." in name or ".k_norm." in name:  # whole on each rank, which saw its own heads only
            dist.all_reduce(found)
        torch.testing.assert_close(found, gradients[name], rtol=1e-4, atol=1e-5, msg=name)
    assert num_sharded >= len(COLUMNS + ROWS) * SHAPE.num_hidden_layers


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_sharded_over_two_ranks_it_is_the_same_policy(sharding: str, model: str, rank_pool: RankPool) -> None:
    rank_pool.run(RANKS, compare, sharding, model)
