"""The sizes of a language model, as a ``config.json`` of Hugging Face says them, and the shipped ones. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from harness.core.errors import UserError

_OTHER_FOLDER = "point model.path at another folder, or let transformers run this one"
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Families that the harness' own model runs, with their class in transformers and vLLM."""
_DEFAULT_CONTEXT = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}
"""``max_position_embeddings`` where a ``config.json`` leaves it out."""
_MISTRAL_WINDOW = 4096
"""The sliding window of a Mistral whose ``config.json`` says nothing of it."""
_UNUSED: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False, "sliding_window": None},
    "qwen3": {"attention_bias": False, "use_sliding_window": False, "sliding_window": None},
}
"""What else a family's ``config.json`` can ask for, switched off."""
_LLAMA3_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_MOST_SIZE, _MOST_THETA = 2**24, 1e12
"""Far above every model there is, and far below what would keep a machine busy before it is found wrong."""
SIZES = {
    "vocab_size": _MOST_SIZE,
    "hidden_size": _MOST_SIZE,
    "intermediate_size": _MOST_SIZE,
    "num_hidden_layers": 1000,
    "num_attention_heads": _MOST_SIZE,
    "num_key_value_heads": _MOST_SIZE,
    "head_dim": _MOST_SIZE,
    "max_position_embeddings": 2**31,
}
"""Each size in a ``config.json``, with its upper bound."""
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")
MOST_CONFIG_BYTES = 2**24
"""Of a ``config.json`` or an index of weights."""


class UnsupportedModel(UserError):
    """A model that the harness' own code cannot run; transformers may."""


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


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes of a dense decoder-only language model: Llama, Mistral, Qwen2 (and 2.5) or Qwen3.

    RMSNorm before each sub-layer (Zhang and Sennrich 2019), rotary positions (Su et al. 2021), SwiGLU (Shazeer 2020),
    grouped-query attention (Ainslie et al. 2023). Qwen2 has biases on query, key and value (arXiv:2407.10671, section
    2.2), Qwen3 a norm on each query and key head (arXiv:2505.09388, section 2).

    Raises:
        UserError: a size is out of bounds, the heads do not divide into the key/value heads, or ``head_dim`` is odd.
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
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if not 0 < self.rope_theta < _MOST_THETA or not 0 <= self.rms_norm_eps < 1:
            what = f"rope_theta is {self.rope_theta} and rms_norm_eps {self.rms_norm_eps}"
            raise UserError(what, "ModelConfig", f"give a theta above 0 and below {_MOST_THETA:g}, an eps from 0 to 1")
        if heads % groups:
            what = f"num_attention_heads {heads} is no multiple of num_key_value_heads {groups}"
            raise UserError(what, "ModelConfig", "each key/value head serves a whole number of query heads")
        if self.head_dim % 2:
            raise UserError(f"head_dim {self.head_dim} is odd", "ModelConfig", "rotary positions turn pairs: use even")

    @property
    def runs_on(self) -> Literal["own", "transformers"]:
        """Whose code runs it."""
        return "own"

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
    def matrix_parameters(self) -> int:
        """Weights of one layer's matrices."""
        return self.hidden_size * (2 * (self.query_size + self.key_size) + 3 * self.intermediate_size)

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, with norms and biases."""
        biases = (self.query_size + 2 * self.key_size) * self.attention_bias
        return self.matrix_parameters + biases + 2 * self.hidden_size + 2 * self.head_dim * self.head_norms

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding table, which are as many as those of the output matrix."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Number of trained values; tied embeddings count once."""
        tables = self.embedding_parameters * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * self.layer_parameters + tables + self.hidden_size

    @property
    def key_values_per_token(self) -> int:
        """Numbers that a key/value cache keeps of one token."""
        return 2 * self.num_hidden_layers * self.key_size

    def to_hf(self, *, eos_token_id: int | None = None, pad_token_id: int | None = None) -> dict[str, Any]:
        """Return the ``config.json`` with which transformers and vLLM load the weights.

        What says how positions rotate stands there twice: ``rope_theta`` and ``rope_scaling`` for readers from before
        transformers 5, ``rope_parameters`` for those since.
        """
        scaling = {"rope_type": "default"} if self.rope_scaling is None else asdict(self.rope_scaling)
        if scaling["rope_type"] == "linear":
            scaling = {name: scaling[name] for name in ("rope_type", "factor")}
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
    def from_hf(cls, config: Mapping[str, Any], where: str = "config.json") -> Self:
        """Read the ``config.json`` of a model that the harness' own code runs.

        Args:
            config: the parsed file.
            where: its name, for the error.

        Raises:
            UnsupportedModel: another model type, or a feature this model lacks: biases elsewhere, other rope scalings,
                partial rotary, sliding windows, another activation, quantised weights.
            UserError: a size is missing or wrong.
        """
        try:
            _refuse_unsupported(config, where)
            kind, rope = config["model_type"], _rope(config)
            sizes: dict[str, Any] = {name: config.get(name) for name in SIZES}
            for name, value in sizes.items():
                is_left_out = value is None and name in _OPTIONAL_SIZES
                if not is_left_out and (not isinstance(value, int) or isinstance(value, bool)):
                    raise UserError(f"{name} is {value!r}, must be an integer", where, _OTHER_FOLDER)
            heads = sizes["num_attention_heads"]
            sizes["num_key_value_heads"] = sizes["num_key_value_heads"] or heads
            sizes["head_dim"] = sizes["head_dim"] or (128 if kind == "qwen3" else sizes["hidden_size"] // heads)
            if sizes["max_position_embeddings"] is None:
                sizes["max_position_embeddings"] = _DEFAULT_CONTEXT[kind]
            return cls(
                **sizes,
                rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
                rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
                model_type=kind,
                rope_scaling=_rope_scaling(rope, where),
            )
        except UserError:
            raise
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise UserError(f"a value is of the wrong kind: {error}", where, "save the model again") from error


@dataclass(frozen=True, slots=True)
class TransformersConfig(ModelConfig):
    """The sizes of a model of these families that transformers alone runs; what else it is made of is not read.

    Attributes:
        other_biases: query, key and value have biases though the family has none.
    """

    other_biases: bool = False

    @property
    def runs_on(self) -> Literal["own", "transformers"]:
        return "transformers"

    @property
    def attention_bias(self) -> bool:
        return self.model_type == "qwen2" or self.other_biases


def sizes_from_hf(config: Mapping[str, Any]) -> ModelConfig | None:
    """Return the sizes of a gated dense decoder from its ``config.json``, also of one that only transformers runs.

    None where it is of another family, or no model has such sizes.
    """
    kind = config.get("model_type")
    try:
        return ModelConfig.from_hf(config)
    except UnsupportedModel:
        if kind not in _ARCHITECTURES:
            return None
    except UserError:
        return None
    sizes = {name: config[name] for name in (*SIZES, "tie_word_embeddings") if name in config}
    try:
        known = TransformersConfig.from_hf({"model_type": kind, **_UNUSED[kind], **sizes})
    except UserError:
        return None
    return replace(known, other_biases=bool(config.get("attention_bias", False)))


def check_sizes(config: Mapping[str, Any], where: str) -> None:
    """Refuse sizes in a ``config.json`` that no model can have; those that are left out, or no numbers, may stay.

    Raises:
        UserError: naming the size and its bounds.
    """
    for name, most in SIZES.items():
        value = config.get(name)
        if isinstance(value, int | float) and not 1 <= value <= most:
            what = f"{name} is {str(value)[:40]}, must be from 1 to {most}"
            raise UserError(what, where, "save the model again")


def check_divides(config: ModelConfig, ranks: int, setting: str = "learner.mesh.tensor") -> None:
    """Refuse to cut a model over so many tensor ranks that heads or the MLP's width would have to be split unevenly.

    The vocabulary may have any size.

    Args:
        config: of the model.
        ranks: the Learner's tensor ranks, or the workers of an engine.
        setting: the key that says how many.

    Raises:
        UserError: naming the first size that does not divide, and the number of ranks.
    """
    sizes = _cut_sizes(config)
    fits = [str(fewer) for fewer in range(1, ranks) if not any(size % fewer for size in sizes.values())]
    for what, size in sizes.items():
        if size % ranks:
            message = f"{size} {what} do not divide over {ranks} tensor ranks"
            raise UserError(message, setting, f"set it to {' or '.join(fits)}")


def _cut_sizes(config: ModelConfig) -> dict[str, int]:
    return {
        "key/value heads": config.num_key_value_heads,
        "query heads": config.num_attention_heads,
        "columns of the MLP": config.intermediate_size,
    }


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


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rope_type(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def _rope_scaling(rope: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = _rope_type(rope)
    if kind == "default":
        return None
    values: dict[str, Any] = {name: rope.get(name) for name in (_LLAMA3_SCALING if kind == "llama3" else ("factor",))}
    for name, value in values.items():
        if not isinstance(value, int | float) or value <= 0:
            raise UserError(f"{name} of the rope scaling {kind} is {value!r}, must be above 0", where, _OTHER_FOLDER)
    scaling = RopeScaling(rope_type="llama3" if kind == "llama3" else "linear", **values)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if low >= high:
        what = f"low_freq_factor {low} of the rope scaling is not below high_freq_factor {high}"
        raise UserError(what, where, _OTHER_FOLDER)
    return scaling


def _refuse_unsupported(config: Mapping[str, Any], where: str) -> None:
    kind, rope = config.get("model_type"), _rope(config)
    if kind not in _ARCHITECTURES:
        what = f"model_type is {kind!r}, the harness' own model runs only {', '.join(_ARCHITECTURES)}"
        raise UnsupportedModel(what, where, _OTHER_FOLDER)
    has_window = kind == "mistral" or config.get("use_sliding_window", False)
    window = config.get("sliding_window", _MISTRAL_WINDOW if kind == "mistral" else None) if has_window else None
    rotary = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    features: tuple[tuple[str, Any, Any], ...] = (
        ("attention_bias", kind != "qwen2" and bool(config.get("attention_bias", False)), False),
        ("mlp_bias", bool(config.get("mlp_bias", False)), False),
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("sliding_window", window, None),
        ("partial_rotary_factor", rotary, 1.0),
        ("quantization_config", config.get("quantization_config"), None),
    )
    for name, value, supported in features:
        if value != supported:
            what = f"{name} is {value!r}, the harness' own model supports only {supported!r}"
            raise UnsupportedModel(what, where, _OTHER_FOLDER)
    if _rope_type(rope) not in ("default", "linear", "llama3"):
        what = f"rope_type is {_rope_type(rope)!r}, the harness' own model supports default, linear and llama3"
        raise UnsupportedModel(what, where, _OTHER_FOLDER)


PRESETS: dict[str, ModelConfig] = {  # vocabulary, width, MLP, layers, heads, key/value heads, head, context
    "tiny": ModelConfig(512, 128, 384, 2, 4, 2, 32, 256),
    "small": ModelConfig(1024, 256, 768, 4, 8, 4, 32, 256),
    "course": ModelConfig(1024, 512, 1344, 4, 16, 16, 32, 256, tie_word_embeddings=False),
    "maths": ModelConfig(1024, 128, 512, 3, 4, 4, 32, 2048),
}
"""The shipped shapes; ``preset_shape`` gives one the vocabulary of its tokenizer."""
VOCABULARY = {"tiny": 1280, "small": 1280, "course": 1280, "maths": 1024}
"""Tokens of each preset's tokenizer, which its warm start trains."""


def preset_shape(preset: str) -> ModelConfig:
    """Return the shape of a preset as it is trained."""
    return replace(PRESETS[preset], vocab_size=VOCABULARY[preset])
