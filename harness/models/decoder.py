"""The harness' own decoder-only language model; its parameters carry the names of Hugging Face's Llama and Qwen.

Every layer takes the hidden states of any leading shape and an attention function, so that padded batches
and packed sequences with shared prompts run through the same layers. With gradient checkpointing a layer keeps its
input and computes the rest again on the way back (Chen et al. 2016, arXiv:1604.06174): one more forward pass, and
activations of one layer at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.core.errors import UserError
from harness.models.config import ModelConfig
from harness.models.layers import attention, bias_from, rms_norm, widen
from harness.models.matmul import FastLinear, linear

INIT_STD = 0.02

Attention = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""``(q (..., Hq, D), k (..., Hkv, D), v (..., Hkv, D), layer index) -> (..., Hq, D)``; q and k are already rotated."""

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each (..., 1, D/2), of the tokens' positions."""


class LMOutput(NamedTuple):
    """What a forward pass returns: ``logits`` (B, T, V)."""

    logits: Tensor


class Embedding(nn.Embedding):
    """A table that is left uninitialised."""

    def reset_parameters(self) -> None:
        pass


class RMSNorm(nn.Module):
    """``layers.rms_norm`` with its weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions; how tokens see each other is the caller's ``attend``.

    Every projection is a module of its own. Put together for one product each time they were no faster on a CPU (0.97
    to 1.09 of the CPU seconds of a training pass, from the preset tiny to two layers of 1.5B's width), and a plan that
    shards or replaces linear modules finds nothing to take apart.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = FastLinear(config.hidden_size, config.query_size, config.attention_bias)
        self.k_proj = FastLinear(config.hidden_size, config.key_size, config.attention_bias)
        self.v_proj = FastLinear(config.hidden_size, config.key_size, config.attention_bias)
        self.o_proj = FastLinear(config.query_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.head_norms else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.head_norms else None

    def forward(self, x: Tensor, rotation: Rotation, attend: Attention, layer: int) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        attended = attend(rotate(q, rotation), rotate(k, rotation), v, layer)
        out: Tensor = self.o_proj(attended.flatten(-2))
        return out


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)), Shazeer 2020."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = FastLinear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = FastLinear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = FastLinear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Attention, then SwiGLU, each after a norm and added to its input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rotation: Rotation, attend: Attention, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, attend, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderStack(nn.Module):
    """Embeddings, layers and the last norm: all but the output projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """Hidden states (..., hidden_size) of tokens (...) at ``positions`` (...), attending as ``attend`` says."""
        x = self.embed_tokens(token_ids)
        rotation = rotation_at(positions, self.config)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, attend, index)
        return self.norm(x)


class DecoderLM(nn.Module):
    """A language model whose ``state_dict`` has the names of ``LlamaForCausalLM``'s, or ``Qwen3ForCausalLM``'s.

    Args:
        config: the shape.
        seed: all weights are drawn from a generator of their own with this seed, the same on every device; None
            leaves them uninitialised, for weights about to be loaded.
    """

    def __init__(self, config: ModelConfig, *, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderStack(config)
        if not config.tie_word_embeddings:
            self.lm_head = FastLinear(config.hidden_size, config.vocab_size, bias=False)
        if seed is not None:
            self.initialize(seed)

    @property
    def output_weight(self) -> Tensor:
        """The (V, hidden_size) matrix that turns hidden states into logits."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Draw every matrix from N(0, 0.02^2), set the norms' gains to 1 and the biases to 0."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * INIT_STD)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> LMOutput:
        """Return the next-token logits at every position.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 1 for tokens and 0 for padding, at either side. Positions count the tokens that are
                not padding. Logits at padding mean nothing.
        """
        positions, bias = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids), None
        if attention_mask is not None:
            mask, steps = attention_mask.bool(), positions[0]
            positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
            # padding sees itself: a row of a softmax must not be empty
            bias = bias_from((steps <= steps[:, None]) & mask[:, None, :] | (steps == steps[:, None]))
        hidden = self.model(input_ids, positions, lambda q, k, v, layer: attention(q, k, v, bias))
        return LMOutput(linear(hidden, self.output_weight))


def decoder_without_weights(config: ModelConfig, dtype: torch.dtype = torch.float32) -> DecoderLM:
    """Return a model on the device ``meta``: shapes and names, and no memory."""
    with torch.device("meta"):
        return DecoderLM(config, seed=None).to(dtype).eval()


def rotation_at(positions: Tensor, config: ModelConfig) -> Rotation:
    """Cosines and sines (..., 1, D/2) in float32 of the rotary angles, position * frequency."""
    angles = positions[..., None, None].float() * rotary_frequencies(config, positions.device)
    return angles.cos(), angles.sin()


def rotary_frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """theta^(-2i/D) in float32, (D/2,), stretched where the config says so."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)  # within the first context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn the pairs (x_i, x_{i + D/2}) of heads (..., H, D) by their token's angles, in float32.

    Su et al. 2021, in Llama's layout.
    """
    cos, sin = rotation
    first, second = widen(x).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


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
    for layer in layers:
        if isinstance(dropout := getattr(layer, "dropout", 0.0), float) and dropout > 0:
            raise _cannot(f"{type(layer).__name__} drops {dropout:g} of its activations in training")
    trained: Any = model
    trained.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a policy, or of a module around one: what is cut over ranks, and gathered, as one piece.

    Of transformers' models they are of the classes that the model itself says must stay whole.
    """
    whole = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if isinstance(module, DecoderLayer) or type(module).__name__ in whole]


def _cannot(what: str) -> UserError:
    fix = "set it to false, and raise gradient_accumulation_steps where memory is short"
    return UserError(what, "model.gradient_checkpointing", fix)
