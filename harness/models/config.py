"""The shape of the harness' own model, as a ``config.json`` of Hugging Face says it, and shapes of public models.

No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from harness.core.errors import UserError

_OTHER_FOLDER = "point model.path at another folder, or let transformers run this one"
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Families that the harness' own model runs, with their class in transformers and vLLM."""
_DEFAULT_HEAD_DIM = {"qwen3": 128}
"""Where ``head_dim`` may be left out of a ``config.json`` and is not the width over the heads."""
_DEFAULT_CONTEXT = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
"""``max_position_embeddings`` where a ``config.json`` leaves it out."""
_MISTRAL_WINDOW = 4096
"""The sliding window of a Mistral whose ``config.json`` says nothing of it."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Rotary frequencies stretched for contexts longer than those of the first training.

    ``linear`` divides all by ``factor`` (Chen et al. 2023, arXiv:2306.15595). ``llama3`` divides those whose wavelength
    is above ``original_max_position_embeddings / low_freq_factor``, keeps those below ``.../ high_freq_factor``, and
    goes over smoothly in between (Llama 3.1's ``apply_scaling``).
    """

    rope_type: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def to_hf(self) -> dict[str, Any]:
        """Return what stands of it in ``rope_parameters``."""
        values = asdict(self)
        return values if self.rope_type == "llama3" else {name: values[name] for name in ("rope_type", "factor")}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a dense decoder-only language model: Llama, Mistral, Qwen2 (and 2.5) or Qwen3.

    RMSNorm before each sub-layer (Zhang and Sennrich 2019), rotary positions (Su et al. 2021), SwiGLU (Shazeer 2020),
    grouped-query attention (Ainslie et al. 2023). Qwen2 has biases on query, key and value (arXiv:2407.10671, section
    2.2), Qwen3 a norm on each query and key head (arXiv:2505.09388, section 2); there are no other biases.

    Raises:
        UserError: a size is below 1, the heads do not divide into the key/value heads, or ``head_dim`` is odd.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    model_type: Literal["llama", "mistral", "qwen2", "qwen3"] = "llama"
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        check_sizes({name: getattr(self, name) for name in SIZES}, "ModelConfig")
        if not 0 < self.rope_theta < _MOST_THETA or not 0 <= self.rms_norm_eps < 1:
            what = f"rope_theta is {self.rope_theta} and rms_norm_eps {self.rms_norm_eps}"
            raise UserError(what, "ModelConfig", f"give a theta above 0 and below {_MOST_THETA:g}, an eps from 0 to 1")
        if self.num_attention_heads % self.num_key_value_heads:
            raise UserError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}",
                "ModelConfig",
                "each key/value head serves a whole number of query heads",
            )
        if self.head_dim % 2:
            raise UserError(f"head_dim {self.head_dim} is odd", "ModelConfig", "rotary positions turn pairs: use even")

    @property
    def attention_bias(self) -> bool:
        """Whether query, key and value have biases."""
        return self.model_type == "qwen2"

    @property
    def head_norms(self) -> bool:
        """Whether each query and key head is normalised before it is rotated."""
        return self.model_type == "qwen3"

    @property
    def queries_per_key(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads together, which is also that of the values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of trained values; tied embeddings count once."""
        attention = self.hidden_size * 2 * (self.query_size + self.key_size)
        attention += (self.query_size + 2 * self.key_size) * self.attention_bias + 2 * self.head_dim * self.head_norms
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings + self.hidden_size

    def to_hf(self, *, eos_token_id: int | None = None, pad_token_id: int | None = None) -> dict[str, Any]:
        """Return the ``config.json`` with which transformers and vLLM load the weights.

        What says how positions rotate stands there twice: ``rope_theta`` and ``rope_scaling`` for readers from before
        transformers 5, ``rope_parameters`` for those since.
        """
        scaling = {"rope_type": "default"} if self.rope_scaling is None else self.rope_scaling.to_hf()
        return {
            "architectures": [_ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            **{name: getattr(self, name) for name in SIZES},
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "rope_theta": self.rope_theta,
            **({} if self.rope_scaling is None else {"rope_scaling": scaling}),
            "rope_parameters": {**scaling, "rope_theta": self.rope_theta},
            "hidden_act": "silu",
            **_UNUSED[self.model_type],
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "dtype": "float32",
            "bos_token_id": None,
            "eos_token_id": eos_token_id,
            "pad_token_id": pad_token_id,
        }

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Read the ``config.json`` of a Llama, Mistral, Qwen2 or Qwen3.

        Args:
            config: the parsed file.
            where: its name, for the error.

        Raises:
            UnsupportedModel: another model type, or a feature this model lacks: biases elsewhere, other rope scalings,
                partial rotary, sliding windows, another activation, quantised weights.
            UserError: a size is missing or wrong.
        """
        try:
            return cls._from_hf(config, where)
        except UserError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(f"a value is of the wrong kind: {error}", where, "save the model again") from error

    @classmethod
    def _from_hf(cls, config: Mapping[str, Any], where: str) -> ModelConfig:
        _refuse_unsupported(config, where)
        kind = config["model_type"]
        heads = _required(config, "num_attention_heads", where)
        hidden = _required(config, "hidden_size", where)
        rope = _rope(config)
        return cls(
            vocab_size=_required(config, "vocab_size", where),
            hidden_size=hidden,
            intermediate_size=_required(config, "intermediate_size", where),
            num_hidden_layers=_required(config, "num_hidden_layers", where),
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or _DEFAULT_HEAD_DIM.get(kind) or hidden // heads,
            max_position_embeddings=config.get("max_position_embeddings", _DEFAULT_CONTEXT[kind]),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            model_type=kind,
            rope_scaling=_rope_scaling(rope, where),
        )


def context_length(config: Any) -> int | None:
    """Return the most tokens that a prompt and its response may have together; None where a config does not say.

    ``longrope`` (Ding et al. 2024, arXiv:2402.13753) turns positions by other frequencies in a row that is longer than
    the first context, and transformers does so for all rows beside it: log-probs would depend on the batch, and cached
    keys be of both kinds. So the first context is all.

    Args:
        config: a ``ModelConfig``, or the config of a model of transformers.
    """
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    most: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    of_layers = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    first = [part.get("original_max_position_embeddings") for part in of_layers if _rope_type(part) == "longrope"]
    return min((bound for bound in (most, *first) if bound is not None), default=None)


class UnsupportedModel(UserError):
    """A model that the harness' own code cannot run; transformers may."""


_MOST = {"num_hidden_layers": 1000, "max_position_embeddings": 2**31}
_MOST_SIZE, _MOST_THETA = 2**24, 1e12
"""Far above every model there is, and far below what would keep a machine busy before it is found wrong."""


def check_sizes(config: Mapping[str, Any], where: str) -> None:
    """Refuse sizes in a ``config.json`` that no model can have; those that are left out, or no numbers, may stay.

    Raises:
        UserError: naming the size and its bounds.
    """
    for name in SIZES:
        value, most = config.get(name), _MOST.get(name, _MOST_SIZE)
        if isinstance(value, int | float) and not 1 <= value <= most:
            what = f"{name} is {str(value)[:40]}, must be from 1 to {most}"
            raise UserError(what, where, "save the model again")


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_UNUSED: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False, "sliding_window": None},
    "qwen3": {"attention_bias": False, "use_sliding_window": False, "sliding_window": None},
}
"""What else a family's ``config.json`` can ask for, switched off."""


def _required(config: Mapping[str, Any], name: str, where: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{name} is {value!r}, must be an integer", where, _OTHER_FOLDER)
    return value


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rope_type(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def _rope_scaling(rope: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = _rope_type(rope)
    if kind == "default":
        return None
    names = ("factor",) if kind == "linear" else tuple(field.name for field in fields(RopeScaling))[1:]
    values: dict[str, Any] = {name: rope.get(name) for name in names}
    for name, value in values.items():
        if not isinstance(value, int | float) or value <= 0:
            raise UserError(f"{name} of the rope scaling {kind} is {value!r}, must be above 0", where, _OTHER_FOLDER)
    scaling = RopeScaling(rope_type="linear" if kind == "linear" else "llama3", **values)
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise UserError(
            f"low_freq_factor {scaling.low_freq_factor} of the rope scaling is not below high_freq_factor "
            f"{scaling.high_freq_factor}",
            where,
            _OTHER_FOLDER,
        )
    return scaling


def _refuse_unsupported(config: Mapping[str, Any], where: str) -> None:
    kind, rope = config.get("model_type"), _rope(config)
    if kind not in _ARCHITECTURES:
        supported = ", ".join(_ARCHITECTURES)
        raise UnsupportedModel(
            f"model_type is {kind!r}, the harness' own model runs only {supported}", where, _OTHER_FOLDER
        )
    has_window = kind == "mistral" or bool(config.get("use_sliding_window", False))
    window = config.get("sliding_window", _MISTRAL_WINDOW if kind == "mistral" else None) if has_window else None
    found = {
        "attention_bias": False if kind == "qwen2" else bool(config.get("attention_bias", False)),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "hidden_act": config.get("hidden_act", "silu"),
        "sliding_window": window,
        "partial_rotary_factor": rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0,
        "quantization_config": config.get("quantization_config"),
    }
    supported_values = {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "sliding_window": None,
        "partial_rotary_factor": 1.0,
        "quantization_config": None,
    }
    for name, value in found.items():
        if value != supported_values[name]:
            raise UnsupportedModel(
                f"{name} is {value!r}, the harness' own model supports only {supported_values[name]!r}",
                where,
                _OTHER_FOLDER,
            )
    if _rope_type(rope) not in ("default", "linear", "llama3"):
        raise UnsupportedModel(
            f"rope_type is {_rope_type(rope)!r}, the harness' own model supports default, linear and llama3",
            where,
            _OTHER_FOLDER,
        )


PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
    ),
    "small": ModelConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=256,
    ),
    "course": ModelConfig(
        vocab_size=1024,
        hidden_size=512,
        intermediate_size=1344,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    ),
    "maths": ModelConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
    ),
}
"""The shipped shapes; ``preset_shape`` gives one the vocabulary of its tokenizer."""
VOCABULARY = {"tiny": 1280, "small": 1280, "course": 1280, "maths": 1024}
"""Tokens of each preset's tokenizer, which its warm start trains."""


def preset_shape(preset: str) -> ModelConfig:
    """Return the shape of a preset as it is trained."""
    return replace(PRESETS[preset], vocab_size=VOCABULARY[preset])


QWEN2_5_MATH_1_5B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_sliding_window": False,
    "sliding_window": None,
    "use_cache": True,
}
"""https://huggingface.co/Qwen/Qwen2.5-Math-1.5B/blob/main/config.json, which litgpt's ``litgpt/config.py`` repeats (28
layers, 12 heads, 2 key/value groups, width 1536, 8960 inside the MLP, 151936 padded tokens, 4096 positions, rotary base
10000, eps 1e-6, biases on query, key and value). The published weights are 1,543,714,304 numbers."""

TINY_QWEN2: dict[str, Any] = {
    **QWEN2_5_MATH_1_5B,
    "vocab_size": 2000,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
}
"""The same architecture with next to no weights, for trials and tests; nobody has published it."""

PUBLIC_SHAPES: dict[str, dict[str, Any]] = {"qwen2.5-math-1.5b": QWEN2_5_MATH_1_5B, "tiny-qwen2": TINY_QWEN2}
"""Name -> ``config.json``."""


def _qwen2_5(
    hidden: int, intermediate: int, layers: int, heads: int, key_value_heads: int, vocab: int, tied: bool, context: int
) -> dict[str, Any]:
    return {
        **QWEN2_5_MATH_1_5B,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "max_position_embeddings": context,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": tied,
    }


PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _qwen2_5(896, 4864, 24, 14, 2, 151936, True, 32768),
    "Qwen/Qwen2.5-1.5B": _qwen2_5(1536, 8960, 28, 12, 2, 151936, True, 131072),
    "Qwen/Qwen2.5-3B": _qwen2_5(2048, 11008, 36, 16, 2, 151936, True, 32768),
    "Qwen/Qwen2.5-7B": _qwen2_5(3584, 18944, 28, 28, 4, 152064, False, 131072),
    "Qwen/Qwen2.5-14B": _qwen2_5(5120, 13824, 48, 40, 8, 152064, False, 131072),
    "Qwen/Qwen2.5-32B": _qwen2_5(5120, 27648, 64, 40, 8, 152064, False, 131072),
}
"""Name on the hub -> ``config.json`` in what decides its size, for plans and simulations of models that are not here:
https://huggingface.co/Qwen/Qwen2.5-7B/blob/main/config.json and its sisters, which litgpt's ``litgpt/config.py``
repeats."""


def shape_config(name: str, *, layers: int | None = None, vocab_size: int | None = None) -> dict[str, Any]:
    """Return the ``config.json`` of a public model, with fewer layers or a smaller vocabulary if asked for.

    Raises:
        UserError: no such shape, or a number out of bounds.
    """
    if name not in PUBLIC_SHAPES:
        raise UserError(f"no shape {name!r}", "--shape", f"take one of {', '.join(sorted(PUBLIC_SHAPES))}")
    config = dict(PUBLIC_SHAPES[name])
    for key, option, value in (("num_hidden_layers", "--layers", layers), ("vocab_size", "--vocab", vocab_size)):
        if value is None:
            continue
        if not 1 <= value <= config[key]:
            what = f"{key} is {value}, must be from 1 to {config[key]}, as {name} has"
            raise UserError(what, option, f"leave {option} out for the model's own {config[key]}")
        config[key] = value
    return config
