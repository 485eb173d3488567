"""Ranks of DeepSpeed's ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054): the only file that imports DeepSpeed.

DeepSpeed's engine runs the forward pass, hooks into the backward pass and adds gradients up; its optimizer steps our
AdamW on this rank's piece of the weights. What is decided outside of it, so that it is the same for all ranks of any
kind: rows and microbatches, the learning rate, autocast, and the norm that gradients are scaled down to.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.learner.ranks import MakeOptimizer, Ranks
from harness.models.decoder import layers_of
from harness.settings.learner import MOST_ADDED_AT_ONCE, ZeroStage


class DeepSpeedRanks(Ranks):
    """Ranks that share what training keeps: stage 1 the optimizer, 2 also gradients, 3 also weights.

    The default process group is theirs; each one has a device of its own, the first that it sees. Like DDP the engine
    averages gradients, so that a trainer multiplies its loss by ``data_ranks``. Stage 3 gathers a layer at a time.

    Args:
        stage: of ZeRO.
        precision: ``float32``, or ``bfloat16`` for autocast over float32 weights.
        device: where the model goes.
    """

    def __init__(self, stage: ZeroStage, *, precision: str = "float32", device: str = "cpu") -> None:
        self._stage, self._precision, self._device = stage, precision, device
        if device == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"  # it would take a GPU that is there, and is asked for it when imported
        os.environ.setdefault("LOCAL_RANK", "0")
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)  # at each call
        beside_python = str(Path(sys.executable).parent)  # the part brings ninja, which is called by its name
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), beside_python])
        self.data_ranks, self.data_rank = dist.get_world_size(), dist.get_rank()
        self._optimizer: Any = None

    def wrap_trained(self, scoring: nn.Module, make_optimizer: MakeOptimizer) -> tuple[nn.Module, Optimizer]:
        self._hand_out(scoring)  # with checkpointed layers, where they are to be
        engine = self._engine(scoring, make_optimizer())
        self._optimizer = engine.optimizer
        return engine, self._optimizer

    def wrap_frozen(self, scoring: nn.Module) -> nn.Module:
        self._hand_out(scoring)
        return self._engine(scoring, None) if self._stage == 3 else scoring  # stages 1 and 2 leave weights whole

    def accumulating(self, scoring: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        engine: Any = scoring  # only stage 1 waits for the last pass: the others have no room for whole gradients
        engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def total(self, value: Tensor) -> Tensor:
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        # DeepSpeed has taken the gradients from the parameters; padding of zeros is among its pieces
        pieces = [piece for pieces in self._optimizer.averaged_gradients.values() for piece in pieces]
        squares = torch.stack([torch.linalg.vector_norm(piece, dtype=torch.float32).square() for piece in pieces])
        norm = math.sqrt(self.total(squares.sum()))
        scale = min(1.0, max_norm / (norm + 1e-6))  # as in torch
        if scale < 1.0:
            for piece in pieces:
                piece.mul_(scale)
        return norm

    def held(self, parameter: Tensor) -> Tensor:
        piece: Tensor = getattr(parameter, "ds_tensor", parameter)
        return piece

    def whole(self, parameter: Tensor) -> Tensor:
        if not hasattr(parameter, "ds_tensor"):
            return parameter.detach()
        import deepspeed

        with deepspeed.zero.GatheredParameters(parameter):
            return parameter.detach().clone()

    def _hand_out(self, scoring: nn.Module) -> None:
        """Give every rank rank 0's weights, which may be on the device ``meta`` elsewhere; whole ones, until cut."""
        without = any(parameter.is_meta for parameter in scoring.parameters())
        scoring.to_empty(device=self._device) if without else scoring.to(self._device)
        for tensor in (*scoring.parameters(), *scoring.buffers()):
            dist.broadcast(tensor.data, 0)

    def _engine(self, scoring: nn.Module, optimizer: Optimizer | None) -> Any:
        import deepspeed

        if self._stage == 3:
            for layer in layers_of(scoring):
                deepspeed.utils.set_z3_leaf_module(layer, True)
        most = min(MOST_ADDED_AT_ONCE, sum(parameter.numel() for parameter in scoring.parameters()))
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,  # it wants a number and makes no batches
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": self._stage,
                "reduce_bucket_size": most,
                "stage3_prefetch_bucket_size": most,
                "stage3_param_persistence_threshold": 0,  # every parameter is cut, so that pieces are all there is
            },
            # it turns the caller's autocast off unless it is told; without a list it would exchange gradients in it
            "torch_autocast": {
                "enabled": self._precision == "bfloat16",
                "dtype": "bfloat16",
                "lower_precision_safe_modules": [],
            },
        }
        engine, *_ = deepspeed.initialize(model=scoring, optimizer=optimizer, config=config, dist_init_required=False)
        return engine
