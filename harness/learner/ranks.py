"""The ranks of a Learner: one process, or several that share a model and a batch through torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from harness.learner.gradient_norm import clip_gradients
from harness.models.decoder import DecoderLM, layers_of
from harness.models.policy import policy_in
from harness.models.tensor_parallel import parallelise
from harness.settings.learner import MeshShape, Sharding

MakeOptimizer = Callable[[], Optimizer]
"""Makes the optimizer of the parameters as they are when it is called."""


class Ranks:
    """What a trainer asks of its ranks, and how one process without others answers.

    Attributes:
        data_ranks: ranks that take different rollouts.
        data_rank: this one's number among them.
    """

    data_ranks, data_rank = 1, 0

    def wrap_trained(self, scoring: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        """Cut or copy the policy over the ranks, in place; on its device; return the module to call instead,
        and its optimizer.

        Of the optimizer a trainer uses ``param_groups``, ``step`` and ``zero_grad``.
        """
        return scoring, make_optimizer()

    def wrap_frozen(self, scoring: nn.Module) -> nn.Module:
        """Cut a policy without gradients over the ranks, in place, on its device; return the module to call instead."""
        return scoring

    def accumulating(self, scoring: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Return the context of a backward pass; gradients are exchanged in the last one of an optimizer step."""
        return nullcontext()

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of a value over the ranks that take different rollouts."""
        return value

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        """Scale the gradients of the whole model down to this norm; return the norm before."""
        return float(nn.utils.clip_grad_norm_(parameters, max_norm))

    def gradient_buffers(self) -> list[Tensor]:
        """Return what gradients were exchanged in since the last call, and is of no use until the next exchange."""
        return []

    def held(self, parameter: Tensor) -> Tensor:
        """Return the part of a parameter that this rank holds, in place; equal parts of equally wrapped policies."""
        return parameter

    def whole(self, parameter: Tensor) -> Tensor:
        """Return all of a parameter, detached: a collective of all ranks where it is cut."""
        return parameter.detach()


class FsdpRanks(Ranks):
    """Ranks of DDP (Li et al. 2020), FSDP2 (Zhao et al. 2023; with ``replicate`` above 1 hybrid sharding), or
    tensor parallelism (Shoeybi et al. 2019) alone or within either.

    Both average gradients over the data ranks. The loss is divided by what the whole batch counts, so that the sum is
    wanted: a trainer multiplies its loss by ``data_ranks``.

    Args:
        sharding: ``ddp`` or ``fsdp2``.
        shape: of the mesh; the default process group has as many ranks.
        device: where the model goes.
        keeps_buckets: whether ``gradient_buffers`` is asked for DDP's buckets.
    """

    def __init__(
        self, sharding: Sharding, shape: MeshShape, *, device: str = "cpu", keeps_buckets: bool = False
    ) -> None:
        self._keeps_buckets, self._buckets = keeps_buckets, list[Tensor]()
        self._sharding, self._shape, self._device = sharding, shape, device
        sizes = (shape.replicate, shape.shard, shape.tensor)
        self._mesh: DeviceMesh = init_device_mesh(device, sizes, mesh_dim_names=("replicate", "shard", "tensor"))
        self.data_ranks, self.data_rank = shape.data_ranks, shape.data_rank(dist.get_rank())
        self._data_group = self._mesh["replicate", "shard"]._flatten("data").get_group()

    def wrap_trained(self, scoring: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        self._hand_out(scoring)  # with checkpointed layers, where they are to be
        if self._is_copied:
            scoring = DistributedDataParallel(scoring, process_group=self._data_group, gradient_as_bucket_view=True)
            if self._keeps_buckets:
                scoring.register_comm_hook(None, lambda _, bucket: self._exchange(bucket))
        return scoring, make_optimizer()

    def wrap_frozen(self, scoring: nn.Module) -> nn.Module:
        self._hand_out(scoring)
        return scoring

    def _hand_out(self, scoring: nn.Module) -> None:
        """Cut a policy over the ranks.

        The harness' own model is cut without weights, and rank 0's are handed out tensor by tensor, so that no other
        rank ever holds all of it: there it may lie on the device ``meta``. What transformers runs has buffers that only
        a model with weights has right, and each rank cuts its own.
        """
        own = isinstance(policy_in(scoring), DecoderLM)
        whole = dict(scoring.state_dict()) if own and dist.get_rank() == 0 else {}
        scoring.to("meta" if own else self._device)
        self._cut(scoring)
        if own:
            scoring.to_empty(device=self._device)
            hand_out = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(scoring, whole, options=hand_out)

    @property
    def _is_copied(self) -> bool:
        """Whether each rank has the whole model. torch's DDP takes no model that is cut over tensor ranks."""
        return self._sharding == "ddp" and self._shape.tensor == 1

    def _cut(self, scoring: nn.Module) -> None:
        if self._shape.tensor > 1:
            parallelise(policy_in(scoring), self._mesh["tensor"])
        if self._is_copied or self.data_ranks == 1:
            return
        # copies of a model that is cut over tensor ranks are hybrid shards of one piece each
        names = ("replicate", "shard") if self._shape.replicate > 1 else ("shard",)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for layer in layers_of(scoring):
            fully_shard(layer, mesh=self._mesh[names], mp_policy=policy)
        # the root would keep what is outside of the layers whole after a forward pass, for a backward pass to come
        fully_shard(scoring, mesh=self._mesh[names], mp_policy=policy, reshard_after_forward=True)

    def accumulating(self, scoring: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        if isinstance(scoring, FSDPModule):
            scoring.set_requires_gradient_sync(last)
        elif isinstance(scoring, DistributedDataParallel) and not last:
            return scoring.no_sync()
        return nullcontext()

    def total(self, value: Tensor) -> Tensor:
        summed = value.clone()
        dist.all_reduce(summed, group=self._data_group)
        return summed

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        return float(clip_gradients(list(parameters), max_norm))

    def gradient_buffers(self) -> list[Tensor]:
        buckets, self._buckets = self._buckets, []
        return buckets

    def _exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket over the data ranks, as DDP does by itself: times 1 / ranks, then the sum."""
        self._buckets.append(bucket.buffer())
        shared = bucket.buffer().mul_(1.0 / self.data_ranks)
        summed = dist.all_reduce(shared, group=self._data_group, async_op=True)
        assert summed is not None
        done: torch.futures.Future[Tensor] = summed.get_future().then(lambda future: future.value()[0])
        return done

    def held(self, parameter: Tensor) -> Tensor:
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter

    def whole(self, parameter: Tensor) -> Tensor:
        return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()
