"""The engine's own copy of a model's weights, laid out for decoding, and the products with them.

Loaded by Hugging Face names from any mapping of tensors; nothing is shared with the source. What changes on the way:

* q, k and v are one projection, its heads in the order of ``group_heads``: all that one key/value head needs lies
  together. The 1/sqrt(D) of the attention scores is folded into q, or into the gain of Qwen3's norm of the queries.
* The gain of each RMSNorm, and the sqrt(C) of its mean square over C channels, are folded into the projections behind
  it: what is left of the norm is a division by the vector's length.
* Llama rotates the pairs (i, i + D/2) of a head. Rows of q and k are reordered so that a pair is adjacent and one
  complex product rotates it; the scores do not change, since q and k are reordered alike, their biases and gains too.

All folding happens in float32, before the weights are rounded to the engine's precision. A CPU that has them runs
oneDNN's prepacked kernels, everything else plain matmuls. Packing lays a weight out once in the blocks that the kernel
reads. Measured on a Zen 4 core at 64 rows, that is 8 to 16% faster than ``torch.mm`` for all but the smallest matrix of
a 3M-parameter model in float32, and 6 to 9% in bfloat16, though each call costs 13 microseconds before it computes
anything. The activation, the product with the gate and the residual sum run inside the kernel. The packed operators are
those that TorchInductor emits; since they are no public interface of torch, ``packing_works`` tries them with known
numbers before anything relies on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.models.config import ModelConfig
from harness.models.decoder import DecoderLM

ROWS_HINT = 64
"""Rows that a weight is packed for; among 1, 64 and 256 the best or within 2% of it for 2 to 832 rows."""


class Linear(Protocol):
    """x -> x W^T + b for x (R, in), with what may follow it fused in where the kernel can; most have no b.

    ``plus``, ``times`` and ``silu`` are x W^T + other, x W^T * other and silu(x W^T): for projections without bias.
    """

    def __call__(self, x: Tensor) -> Tensor: ...
    def plus(self, x: Tensor, other: Tensor) -> Tensor: ...
    def times(self, x: Tensor, other: Tensor) -> Tensor: ...
    def silu(self, x: Tensor) -> Tensor: ...


class PackedLinear:
    """A projection in oneDNN's blocked layout. CPU only; the weight is copied."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        return self._unary(x, self._weight, self._bias, "none", [], "")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self._binary(x, other, self._weight, None, "add")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self._binary(x, other, self._weight, None, "mul")

    def silu(self, x: Tensor) -> Tensor:
        return self._unary(x, self._weight, None, "swish", [], "")


class PlainLinear:
    """A projection by torch's own matmul, on any device. The weight is copied."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight_t, self._bias = weight.t().contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self._weight_t) if self._bias is None else torch.addmm(self._bias, x, self._weight_t)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return torch.addmm(other, x, self._weight_t)

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return torch.mm(x, self._weight_t).mul_(other)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(torch.mm(x, self._weight_t), inplace=True)


MakeLinear = Callable[..., Linear]
"""Makes a projection of a weight (out, in) and perhaps a bias (out,), both in the precision of the products."""


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Return the fastest projection that works for this weight (out, in), its device and its dtype."""
    if weight.device.type == "cpu" and packing_works(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether this torch and this CPU have the packed operators, and they compute what they should.

    The probe's products are small integers, exact in bfloat16 too, so that equality is the test.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    weight = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4).to(dtype)
    x = torch.arange(8, dtype=torch.float32).reshape(2, 4).to(dtype)
    other = torch.arange(6, dtype=torch.float32).reshape(2, 3).to(dtype)
    try:
        packed, biased = PackedLinear(weight), PackedLinear(weight, other[0])
        got = (packed(x), biased(x), packed.plus(x, other), packed.times(x, other), packed.silu(x))
    except (AttributeError, RuntimeError, TypeError):
        return False
    product = x.float() @ weight.float().t()
    exact = (product, product + other[0].float(), product + other.float(), product * other.float())
    same = all(torch.equal(mine, wanted.to(dtype)) for mine, wanted in zip(got, exact, strict=False))
    return same and torch.allclose(got[4].float(), F.silu(product), rtol=0.01, atol=0.001)


_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; qkv maps C to Hkv * (G + 2) * D, see ``group_heads``.

    ``head_gains`` (G + 1, D) in float32 are what the normed queries and the normed key of a group are multiplied with,
    where the model norms them.
    """

    qkv: Linear
    o: Linear
    gate: Linear
    up: Linear
    down: Linear
    head_gains: Tensor | None


@dataclass(frozen=True, slots=True)
class InferenceWeights:
    """A whole model: the embedding table (V, C), the layers, the output projection (C -> V), and its version."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    head: Linear
    version: int = 0


@cache
def expected_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Return the Hugging Face names of the weights that a model of this shape must be given, with their shapes."""
    with torch.device("meta"):
        return shapes_of(dict(DecoderLM(config, seed=None).named_parameters()))


def check_names_and_shapes(
    weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], optional: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse a mapping that is not exactly the expected weights, give or take the optional ones.

    Raises:
        ValueError: names what is missing, unknown or misshapen.
    """
    known = {**optional, **shapes}
    problems = [f"{name} is missing" for name in shapes if name not in weights]
    for name, tensor in weights.items():
        if name not in known:
            problems.append(f"{name} is unknown")
        elif tuple(tensor.shape) != known[name]:
            problems.append(f"{name} has shape {tuple(tensor.shape)}, must be {known[name]}")
    if problems:
        more = f"; and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        raise ValueError("weights not loaded, the old ones stay: " + "; ".join(problems[:_MAX_NAMED]) + more)


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes by name."""
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def build_weights(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    linear: MakeLinear = make_linear,
    version: int = 0,
) -> InferenceWeights:
    """Check the weights, copy them to this dtype and device, and lay them out for decoding.

    Args:
        weights: by Hugging Face name, any float dtype, any device. With tied embeddings ``lm_head.weight`` may
            be among them if it equals the embeddings.

    Raises:
        ValueError: a weight is missing, unknown or misshapen, or the tied ``lm_head`` differs from the embeddings.
    """
    check_names_and_shapes(weights, expected_shapes(config), {_HEAD: (config.vocab_size, config.hidden_size)})
    with torch.no_grad():
        source = {name: tensor.detach().to(device, torch.float32) for name, tensor in weights.items()}
        head = source.get(_HEAD, source[_EMBEDDING])
        if config.tie_word_embeddings and not torch.allclose(head, source[_EMBEDDING], rtol=0, atol=0, equal_nan=True):
            raise ValueError(f"weights not loaded, the old ones stay: {_HEAD} differs from the tied {_EMBEDDING}")
        return InferenceWeights(
            source[_EMBEDDING].to(dtype, copy=True),
            tuple(_layer(source, f"model.layers.{i}.", config, dtype, linear) for i in range(config.num_hidden_layers)),
            linear((head * _folded_gain(source["model.norm.weight"])).to(dtype)),
            version,
        )


def _layer(
    source: Mapping[str, Tensor], prefix: str, config: ModelConfig, dtype: torch.dtype, linear: MakeLinear
) -> LayerWeights:
    def weight(name: str) -> Tensor:
        return source[f"{prefix}{name}.weight"]

    attention_gain = _folded_gain(weight("input_layernorm"))
    mlp_gain = _folded_gain(weight("post_attention_layernorm"))
    qkv, qkv_bias, head_gains = _query_key_value(source, f"{prefix}self_attn.", config)
    return LayerWeights(
        qkv=linear((qkv * attention_gain).to(dtype), None if qkv_bias is None else qkv_bias.to(dtype)),
        o=linear(weight("self_attn.o_proj").to(dtype)),
        gate=linear((weight("mlp.gate_proj") * mlp_gain).to(dtype)),
        up=linear((weight("mlp.up_proj") * mlp_gain).to(dtype)),
        down=linear(weight("mlp.down_proj").to(dtype)),
        head_gains=head_gains,
    )


def _query_key_value(
    source: Mapping[str, Tensor], prefix: str, config: ModelConfig
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The grouped projection (Hkv * (G + 2) * D, C), its bias, and the gains of the heads' norms (G + 1, D)."""
    scale = 1.0 / math.sqrt(config.head_dim)

    def grouped(kind: str, q_scale: float) -> Tensor:
        q = pair_adjacent(source[f"{prefix}q_proj.{kind}"], config.head_dim) * q_scale
        k = pair_adjacent(source[f"{prefix}k_proj.{kind}"], config.head_dim)
        return group_heads(q, k, source[f"{prefix}v_proj.{kind}"], config.num_key_value_heads)

    if config.head_norms:  # which would undo a scale in front of them
        q_gain = _folded_gain(source[f"{prefix}q_norm.weight"]) * scale
        k_gain = _folded_gain(source[f"{prefix}k_norm.weight"])
        gains = torch.stack([*[q_gain] * config.queries_per_key, k_gain])
        return grouped("weight", 1.0), None, pair_adjacent(gains.t(), config.head_dim).t().contiguous()
    return grouped("weight", scale), grouped("bias", scale) if config.attention_bias else None, None


def _folded_gain(norm_weight: Tensor) -> Tensor:
    return norm_weight * math.sqrt(len(norm_weight))


def pair_adjacent(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows (H * D, ...) of each head from (0, 1, ..., D-1) to (0, D/2, 1, D/2 + 1, ...)."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).reshape(weight.shape)


def group_heads(q: Tensor, k: Tensor, v: Tensor, num_groups: int) -> Tensor:
    """Put the rows of q (Hq * D, ...), k and v (Hkv * D, ...) together by group: G queries, their key, its value."""
    parts = [part.unflatten(0, (num_groups, -1)) for part in (q, k, v)]
    return torch.cat(parts, dim=1).flatten(0, 1)
