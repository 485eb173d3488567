"""Tensor parallelism of the harness' own model: every matrix cut over the ranks, and no rank ever has all logits.

Query, key, value, gate and up projections are cut by their outputs, o and down by their inputs (Shoeybi et al. 2019,
arXiv:1909.08053, section 3), so that each rank has some heads and some of the MLP's width. Between these pairs each
rank has some of the packed tokens, so norms and residuals are shared out too (Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.2). Embedding and output head are cut over the vocabulary: both are ``Shard(0)`` of
(V, C), so tied ones are one matrix with one layout. ``head.score_hidden`` does the rest.

Parameters are DTensors, all of them, because torch's optimizers and its clipping take no mixture; what is computed is
computed on plain tensors, each rank's own, and changes hands in the few functions below.

Models of transformers are refused. Their own plan (``tp_plan``, 5.19) unties a tied output head when it is applied to
a model that stands; it sums the gradient of Qwen3's head norms again with each microbatch, so that after two it is 0.4
of its largest entry off; and it leaves norms and embeddings plain.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from harness.core.errors import UserError
from harness.models.config import check_divides
from harness.models.decoder import DecoderLM, Embedding, RMSNorm
from harness.models.head import own_part
from harness.models.layers import rms_norm
from harness.models.matmul import FastLinear, linear


def parallelise(policy: nn.Module, mesh: DeviceMesh) -> None:
    """Cut a policy over the ranks of a mesh of one dimension, in place; it is scored as before, on all ranks at once.

    Every rank holds the same weights when it calls this, and keeps its share. Names of parameters stay. Gradients are
    laid out as their parameters and complete. ``checkpoint_layers`` may come before or after, ``fully_shard`` after
    both, on a mesh dimension beside this one.

    Raises:
        UserError: the policy is not the harness' own model, or its heads or widths do not divide over the ranks.
    """
    if not isinstance(policy, DecoderLM):
        raise UserError(
            f"{type(policy).__name__} cannot be cut over {mesh.size()} tensor ranks: only the harness' own models can",
            "learner.mesh.tensor",
            "set it to 1, and shard over more data-parallel ranks instead",
        )
    check_divides(policy.config, mesh.size())
    for name, module in policy.named_modules():
        if (role := name.rpartition(".")[2]) in _PLAN:
            _cut(module, *_PLAN[role], mesh)


class ColumnProjection(FastLinear):
    """Some of the outputs of all tokens: (N, in) to (N, out / ranks). The input's gradient is a share of it."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, _local(self.weight), None if self.bias is None else _local(self.bias))


class RowProjection(FastLinear):
    """All outputs of some of the tokens, from some of the inputs of all: (N, in / ranks) to (N / ranks, out)."""

    def forward(self, x: Tensor) -> Tensor:
        return _scatter_sum(linear(x, _local(self.weight)), _mesh(self.weight))


class HeadNorm(RMSNorm):
    """The norm of the heads, or tokens, that a rank has."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, _shared(self.weight), self.eps)


class GatheringNorm(HeadNorm):
    """The normed tokens of all ranks, from those that this rank has: (N / ranks, C) to (N, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return _gather(super().forward(x), _mesh(self.weight), Partial())


class LastNorm(HeadNorm):
    """As ``GatheringNorm``, for readers that all do the same with it, so that each has all of its gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return _gather(super().forward(x), _mesh(self.weight), Replicate())


class VocabularyEmbedding(Embedding):
    """Some of the packed tokens, embedded by the rank that has their row: (N,) to (N / ranks, C)."""

    def forward(self, token_ids: Tensor) -> Tensor:
        mesh = _mesh(self.weight)
        if token_ids.dim() != 1 or len(token_ids) % mesh.size():
            raise ValueError(f"tokens {tuple(token_ids.shape)}: {mesh.size()} tensor ranks share out packed ones only")
        part, rows_VC = own_part(self.weight, token_ids)
        assert part is not None
        places_N = part.places(token_ids)
        here_K = (places_N >= 0).nonzero()[:, 0]
        embedded_NC = rows_VC.new_zeros(len(token_ids), rows_VC.shape[1])
        embedded_NC = embedded_NC.index_copy(0, here_K, F.embedding(places_N[here_K], rows_VC))
        return _scatter_sum(embedded_NC, mesh)


_PLAN: dict[str, tuple[type[nn.Module], Placement]] = {
    "embed_tokens": (VocabularyEmbedding, Shard(0)),
    "input_layernorm": (GatheringNorm, Replicate()),
    "q_proj": (ColumnProjection, Shard(0)),
    "k_proj": (ColumnProjection, Shard(0)),
    "v_proj": (ColumnProjection, Shard(0)),
    "q_norm": (HeadNorm, Replicate()),
    "k_norm": (HeadNorm, Replicate()),
    "o_proj": (RowProjection, Shard(1)),
    "post_attention_layernorm": (GatheringNorm, Replicate()),
    "gate_proj": (ColumnProjection, Shard(0)),
    "up_proj": (ColumnProjection, Shard(0)),
    "down_proj": (RowProjection, Shard(1)),
    "norm": (LastNorm, Replicate()),
    "lm_head": (FastLinear, Shard(0)),
}
"""What a module of that name becomes, and how its parameters are cut; a bias as the outputs are."""


def _cut(module: nn.Module, kind: type[nn.Module], placement: Placement, mesh: DeviceMesh) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        cut = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut, requires_grad=parameter.requires_grad))
    module.__class__ = kind


def _local(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


def _mesh(parameter: Tensor) -> DeviceMesh:
    assert isinstance(parameter, DTensor)
    return parameter.device_mesh


def _shared(parameter: Tensor) -> Tensor:
    """A replicated parameter, of whose gradient each rank makes a share, which are summed on the way back."""
    replicated = DTensor.from_local(_local(parameter), _mesh(parameter), [Replicate()], run_check=False)
    return replicated.to_local(grad_placements=[Partial()])


def _gather(rows: Tensor, mesh: DeviceMesh, gradient: Placement) -> Tensor:
    """(N / ranks, C) to the rows (N, C) of all ranks; ``gradient`` is how theirs lies on the ranks."""
    whole = DTensor.from_local(rows, mesh, [Shard(0)], run_check=False).redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[gradient])


def _scatter_sum(shares: Tensor, mesh: DeviceMesh) -> Tensor:
    """(N, C), each rank's a share of the sum, to this rank's rows (N / ranks, C) of the sum."""
    summed = DTensor.from_local(shares, mesh, [Partial()], run_check=False).redistribute(placements=[Shard(0)])
    return summed.to_local()
