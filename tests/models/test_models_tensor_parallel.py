"""The own model cut over tensor ranks: the scores, entropies, gradients and optimizer steps of the whole one.

Each rank compares with the whole model, which it keeps beside its shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.core.errors import UserError
from harness.models.config import ModelConfig, check_divides
from harness.models.decoder import DecoderLM, checkpoint_layers
from harness.models.head import score_hidden
from harness.models.policy import ScoringModel
from harness.models.scoring import TokenBan
from harness.models.sorting import SortingModel
from harness.models.tensor_parallel import parallelise
from tests.models.batches import SHAPE, make_batch, spread
from tests.rank_pool import RankPool

VOCABULARY = SHAPE.vocab_size  # 53: a prime, and no other size of the model or the batch
SHAPES = {
    "llama, tied": SHAPE,
    "qwen2, untied": dataclasses.replace(SHAPE, model_type="qwen2", tie_word_embeddings=False),
    "qwen3, tied": dataclasses.replace(SHAPE, model_type="qwen3"),
    "three key heads": dataclasses.replace(SHAPE, num_attention_heads=6, num_key_value_heads=3),
}
TOLERANCES = {torch.float32: 5e-6, torch.float64: 1e-14}
"""Of a tensor's norm, of which 1.3e-6 and 2.3e-15 were seen: sums run in another order, and nothing else differs."""


def assert_equal(found: Tensor, wanted: Tensor | None, name: str = "") -> None:
    assert wanted is not None
    assert found.shape == wanted.shape, name
    error = float((found.detach() - wanted).norm() / wanted.detach().norm())
    assert error < TOLERANCES[wanted.dtype], f"{name} is {error:.1e} of its norm off"


def whole_model(shape: ModelConfig, dtype: torch.dtype = torch.float32) -> ScoringModel:
    return ScoringModel(spread(DecoderLM(shape), alpha=0.2).to(dtype))


def batch() -> tuple[Tensor, ...]:
    return make_batch([6, 3], [5, 3, 1, 4], [0, 0, 1, 1])


def step(scoring: nn.Module) -> tuple[Tensor, Tensor]:
    """Scores and entropies (B, T) without the token that the second of two ranks has first, and all gradients."""
    how: dict[str, Any] = {"temperature": 0.8, "entropy_gradient": True, "ban": TokenBan((27, 0), 2)}
    scores_BT, entropy_BT = scoring(*batch(), with_entropy=True, **how)
    weights_BT = torch.linspace(-1, 2, scores_BT.numel(), dtype=scores_BT.dtype).view_as(scores_BT)
    (scores_BT * weights_BT + entropy_BT * weights_BT.flip(0)).sum().backward()
    return scores_BT.detach(), entropy_BT.detach()


class NoWholeVocabulary(TorchDispatchMode):
    """Refuses every result with a dimension as long as the vocabulary."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for result in out if isinstance(out, Sequence) else (out,):
            if isinstance(result, Tensor) and not isinstance(result, DTensor):
                assert VOCABULARY not in result.shape, f"{func} made {tuple(result.shape)}"
        return out


def compare(rank: int, ranks: int, shape: str, dtype: torch.dtype, checkpointed: bool) -> None:
    whole, cut = whole_model(SHAPES[shape], dtype), whole_model(SHAPES[shape], dtype)
    parallelise(cut.policy, init_device_mesh("cpu", (ranks,)))
    if checkpointed:
        checkpoint_layers(cut.policy)
    with pytest.raises(AssertionError, match="made"), NoWholeVocabulary():
        step(whole)
    whole.zero_grad()
    for _ in range(2):  # gradients of two microbatches add up
        wanted = step(whole)
        with NoWholeVocabulary():
            found = step(cut)
    for scores, of_whole in zip(found, wanted, strict=True):
        assert_equal(scores, of_whole)
    for (name, parameter), of_whole in zip(cut.named_parameters(), whole.parameters(), strict=True):
        assert isinstance(parameter, DTensor), name
        assert isinstance(parameter.grad, DTensor), name
        assert parameter.grad.placements == parameter.placements, name
        assert_equal(parameter.grad.full_tensor(), of_whole.grad, name)


@pytest.mark.parametrize(
    ("ranks", "shape", "dtype"),
    [
        (2, "llama, tied", torch.float32),
        (2, "llama, tied", torch.float64),
        (2, "qwen2, untied", torch.float64),
        (2, "qwen3, tied", torch.float64),
        pytest.param(3, "three key heads", torch.float64, marks=pytest.mark.slow),
    ],
)
def test_cut_over_ranks_it_is_the_same_policy_and_none_has_all_logits(
    ranks: int, shape: str, dtype: torch.dtype, rank_pool: RankPool
) -> None:
    rank_pool.run(ranks, compare, ranks, shape, dtype, dtype is torch.float64)


def score_parts(rank: int, ranks: int, size: int, banned: int, kept: int, piece: int) -> None:
    generator = torch.Generator().manual_seed(size)
    hidden_MC = torch.randn(9, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight_VC = torch.randn(size, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens_M = torch.arange(9) % size
    banned_EM = torch.tensor([[banned, -1, -1] * 3, [-1, -1, 0, 1, -1, -1, -1, 0, -1]])
    of_score_M, of_entropy_M = torch.randn(2, 9, generator=generator, dtype=torch.float64)

    is_banned = (banned_EM[..., None] == torch.arange(size)).any(0)
    logits = (hidden_MC @ weight_VC.T / 0.7).masked_fill(is_banned, -1e3)
    log_p = logits.log_softmax(-1)
    wanted = log_p.gather(1, tokens_M[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    of_wanted = torch.autograd.grad((wanted[0] * of_score_M + wanted[1] * of_entropy_M).sum(), (hidden_MC, weight_VC))

    cut_VC = distribute_tensor(weight_VC.detach(), init_device_mesh("cpu", (ranks,)), [Shard(0)]).requires_grad_()
    how: dict[str, Any] = {"entropy_gradient": True, "banned_EM": banned_EM, "max_logits": kept, "piece_logits": piece}
    found = score_hidden(hidden_MC, cut_VC, tokens_M, 0.7, True, **how)
    assert found[1] is not None
    total = (found[0] * of_score_M + found[1] * of_entropy_M).sum()
    of_hidden, of_weight = torch.autograd.grad(total, (hidden_MC, cut_VC))
    for tensor, by_definition in zip((*found, of_hidden, of_weight.full_tensor()), (*wanted, *of_wanted), strict=True):
        assert tensor is not None
        assert_equal(tensor, by_definition)


def score_all_parts(rank: int) -> None:
    """Parts of 27 and 26 tokens, the second without its first; of 3 and 2; of 2 and of 1 that is banned."""
    for size, banned in ((VOCABULARY, 27), (5, 4), (3, 2)):
        for kept, piece in ((10**6, 10**6), (9, 4), (0, 4)):
            score_parts(rank, 2, size, banned, kept, piece)


def test_over_ranks_the_head_computes_what_the_definition_says(rank_pool: RankPool) -> None:
    rank_pool.run(2, score_all_parts)


def test_heads_that_do_not_divide_over_the_ranks_are_refused_with_both_numbers() -> None:
    shape = dataclasses.replace(SHAPE, num_attention_heads=12, num_key_value_heads=6)
    for ranks in (1, 2, 3, 6):
        check_divides(shape, ranks)
    with pytest.raises(UserError, match="6 key/value heads do not divide over 4 tensor ranks") as caught:
        check_divides(shape, 4)
    assert caught.value.fix == "set it to 1 or 2 or 3"
    with pytest.raises(UserError, match="50 columns of the MLP do not divide over 3"):
        check_divides(dataclasses.replace(shape, intermediate_size=50), 3)


def test_tokens_outside_the_vocabulary_and_batches_that_are_not_packed_are_refused(rank_pool: RankPool) -> None:
    rank_pool.run(2, refuse)


def refuse(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    policy = DecoderLM(SHAPE)
    parallelise(policy, mesh)
    with pytest.raises(ValueError, match=r"tokens \(2, 6\)"):
        policy(torch.zeros(2, 6, dtype=torch.long))
    prompts_PL, *rest = batch()
    for outside in (-1, VOCABULARY):
        with pytest.raises(IndexError, match=f"{outside}"):
            ScoringModel(policy)(prompts_PL.index_fill(1, torch.tensor([0]), outside), *rest)
    with pytest.raises(UserError, match="SortingModel cannot be cut over 2 tensor ranks"):
        parallelise(SortingModel(6, 8), mesh)
