"""Gradient checkpointing: keep the input of each layer and compute the rest again on the way back.

Chen et al. 2016, arXiv:1604.06174. One more forward pass, and activations of one layer at a time.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.core.errors import UserError
from harness.models.decoder import Attention, DecoderLayer, DecoderLM, Rotation


class CheckpointedLayer(DecoderLayer):
    """A layer of the harness' own model that forgets its activations."""

    def forward(self, x: Tensor, rotation: Rotation, attend: Attention, layer: int) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, rotation, attend, layer, use_reentrant=False)
        return out


def checkpoint_layers(model: nn.Module) -> None:
    """Have a policy that is about to be trained checkpoint each of its layers; its results stay the same.

    transformers checkpoints only layers in training mode, which would turn dropout on too, and with it the ratio would
    compare two networks. So the mode is set on the layers themselves and on nothing inside of them. Call it after the
    model was put into evaluation mode.

    Raises:
        UserError: the architecture cannot, or its layers drop activations by themselves.
    """
    if isinstance(model, DecoderLM):
        for layer in model.model.layers:
            layer.__class__ = CheckpointedLayer
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not getattr(model, "supports_gradient_checkpointing", False) or not layers:
        raise _cannot(f"{type(model).__name__} has no layers that can be checkpointed")
    dropping = [layer for layer in layers if _dropout(layer) > 0]
    if dropping:
        raise _cannot(f"{type(dropping[0]).__name__} drops {_dropout(dropping[0]):g} of its activations in training")
    trained: Any = model
    trained.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True


def _dropout(layer: nn.Module) -> float:
    value = getattr(layer, "dropout", 0.0)
    return value if isinstance(value, float) else 0.0


def _cannot(what: str) -> UserError:
    return UserError(
        what,
        "model.gradient_checkpointing",
        "set it to false, and raise gradient_accumulation_steps where memory is short",
    )
