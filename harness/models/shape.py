"""The sizes of a model, from its ``config.json`` or the scenario that names it; nothing is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import UserError
from harness.core.regular_files import read_regular
from harness.models.config import PRESETS, PUBLISHED, ModelConfig, check_sizes
from harness.scenario.schema import Scenario

_ATTENTION_BIAS = {"qwen2": True}
"""Model types with biases on query, key and value that their ``config.json`` does not name."""
_HEAD_NORMS = ("qwen3",)
"""Model types with a norm on each query and key head."""
MOST_CONFIG_BYTES = 2**24
"""Of a ``config.json`` or an index of weights."""
VOCABULARY = {"tiny": 1280, "small": 1280, "course": 1280, "maths": 1024}
"""Tokens of a preset's tokenizer, as ``harness.learner.warm_start.presets`` has them; importing that needs torch."""
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class Shape:
    """A dense decoder-only model with rotary positions, RMSNorm, grouped-query attention and a gated MLP.

    ``runs_on`` says whose code runs it: the harness' own model, or transformers.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    context: int
    tied: bool = True
    attention_bias: bool = False
    head_norms: bool = False
    runs_on: Literal["own", "transformers"] = "own"

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all key heads together, which is also that of the values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        attention = 2 * self.hidden_size * (self.query_size + self.key_size)
        biases = (self.query_size + 2 * self.key_size) if self.attention_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.head_norms else 0)
        return attention + biases + 3 * self.hidden_size * self.intermediate_size + norms

    @property
    def embedding_parameters(self) -> int:
        """Weights of the embedding table, which are as many as those of the output matrix."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All trained weights; tied embeddings count once."""
        tables = self.embedding_parameters * (1 if self.tied else 2)
        return self.num_layers * self.layer_parameters + tables + self.hidden_size

    @property
    def key_values_per_token(self) -> int:
        """Numbers that a key/value cache keeps of one token."""
        return 2 * self.num_layers * self.key_size


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """Read a parsed ``config.json``; None where it is of no family that this plan knows (no gated dense decoder)."""
    kind = config.get("model_type")
    if kind not in ("llama", "mistral", "qwen2", "qwen3"):
        return None
    if any(not isinstance(config.get(name), int) for name in _SIZES):
        return None
    if any(not isinstance(config.get(name), int | None) for name in _OPTIONAL_SIZES):
        return None
    try:
        check_sizes(config, "config.json")
    except UserError:
        return None
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return Shape(
        vocab_size=config["vocab_size"],
        hidden_size=hidden,
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        context=config.get("max_position_embeddings") or 2048,
        tied=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", _ATTENTION_BIAS.get(kind, False))),
        head_norms=kind in _HEAD_NORMS,
        runs_on="own" if _is_own(config) else "transformers",
    )


def shape_of_own(config: ModelConfig) -> Shape:
    """Return the shape of one of the harness' own models."""
    return Shape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        context=config.max_position_embeddings,
        tied=config.tie_word_embeddings,
        attention_bias=config.attention_bias,
        head_norms=config.head_norms,
    )


def can_be_cut(shape: Shape, ranks: int) -> bool:
    """Whether so many tensor ranks can share the model; see ``check_divides``."""
    sizes = (shape.num_key_value_heads, shape.num_heads, shape.intermediate_size)
    return ranks == 1 or (shape.runs_on == "own" and not any(size % ranks for size in sizes))


def check_divides(shape: Shape, ranks: int, setting: str = "learner.mesh.tensor") -> None:
    """Refuse to cut a model over so many tensor ranks that heads or the MLP's width would have to be split unevenly.

    The vocabulary may have any size.

    Args:
        shape: of the model.
        ranks: the Learner's tensor ranks, or the workers of an engine.
        setting: the key that says how many.

    Raises:
        UserError: naming the first size that does not divide, and the number of ranks.
    """
    sizes = {
        "key/value heads": shape.num_key_value_heads,
        "query heads": shape.num_heads,
        "columns of the MLP": shape.intermediate_size,
    }
    for what, size in sizes.items():
        if size % ranks:
            fits = [fewer for fewer in range(1, ranks) if not any(size % fewer for size in sizes.values())]
            raise UserError(
                f"{size} {what} do not divide over {ranks} tensor ranks",
                setting,
                f"set it to {' or '.join(map(str, fits))}",
            )


def read_shape(folder: Path) -> Shape | None:
    """Return the shape of the model in a folder; None where there is no readable ``config.json`` of a known family."""
    try:
        config = json.loads(read_regular(folder / "config.json", MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return shape_of(config) if isinstance(config, dict) else None


def _is_own(config: Mapping[str, Any]) -> bool:
    """Whether the harness' own model runs this config, as ``models.storage.load_policy`` decides it."""
    try:
        ModelConfig.from_hf(config)
    except ValueError:
        return False
    return True


def shape_for(scenario: Scenario) -> tuple[Shape | None, str]:
    """Return the shape of the scenario's model, or None and why it is not known."""
    settings: Any = scenario.model
    if scenario.transport_sweep is not None:
        return None, "a transport sweep trains no model"
    if settings.type == "preset":
        return shape_of_own(replace(PRESETS[settings.preset], vocab_size=VOCABULARY[settings.preset])), ""
    if settings.type != "folder":
        return None, f"model.type {settings.type} has next to no weights"
    folder = _folder(settings.path)
    if folder is None and settings.path in PUBLISHED:
        return shape_of(PUBLISHED[settings.path]), ""
    if folder is None:
        return None, f"{settings.path} is not on this machine yet, and the plan reads its config.json"
    shape = read_shape(folder)
    return shape, "" if shape else f"the config.json of {settings.path} is of no family that the plan knows"


def _folder(name: str) -> Path | None:
    """The folder of that name, or where the hub's cache keeps a model of that name; nothing is fetched."""
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        return folder
    if name.startswith((".", "/", "~")):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:  # without the extra `train` no cache is looked into
        return None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no name that the hub could have
        return None
    return Path(found).parent if isinstance(found, str) else None
