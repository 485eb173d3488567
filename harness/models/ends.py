"""With which tokens a policy's responses end, and what else its folder says of generation beside the model's shape.

A response ends with any of the tokens that the tokenizer, ``config.json`` and ``generation_config.json`` call
``eos_token_id``. Engines, the Learner's ban within ``min_tokens``, manifest and evaluation all take ``end_tokens``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from harness.core.errors import UserError

if TYPE_CHECKING:
    from torch import nn

CONFIG, GENERATION = "config.json", "generation_config.json"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""What configs call the tokens that begin, end and pad."""


@dataclass(frozen=True)
class FolderDefaults:
    """``config.json`` and ``generation_config.json`` of a folder, parsed; None: the folder has no such file."""

    config: Mapping[str, Any]
    generation: Mapping[str, Any] | None


FOLDER_DEFAULTS: WeakKeyDictionary[nn.Module, FolderDefaults] = WeakKeyDictionary()
"""Of each model that came from a folder."""


def end_tokens(model: nn.Module | None, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end a response, the tokenizer's first.

    Ids outside of the model's vocabulary are left out: no response can hold them.

    Args:
        model: the policy; of one that was made in memory, the configs that transformers gave it count. None: nothing
            is known beside the tokenizer.
        tokenizer: its tokenizer.

    Raises:
        UserError: an ``eos_token_id`` is neither an id, nor a list of ids, nor null.
    """
    sources: list[tuple[str, Any]] = [("the tokenizer", {"eos_token_id": tokenizer.eos_token_id})]
    if model is not None and (defaults := FOLDER_DEFAULTS.get(model)):
        text = defaults.config.get("text_config")
        sources += [(GENERATION, defaults.generation or {}), (CONFIG, defaults.config)]
        sources += [(CONFIG, text)] if isinstance(text, Mapping) else []
    else:
        made = ((GENERATION, getattr(model, "generation_config", None)), (CONFIG, getattr(model, "config", None)))
        sources += [(name, vars(config)) for name, config in made if hasattr(config, "__dict__")]
    named: list[int] = []
    for where, config in sources:
        value = config.get("eos_token_id")
        ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            what = f"eos_token_id is {value!r}, must be a token id, a list of token ids or null"
            raise UserError(what, where, "write the token's id, or remove eos_token_id")
        named += ids
    return known_tokens(model, named)


def known_tokens(model: nn.Module | None, tokens: Iterable[int]) -> tuple[int, ...]:
    """Return the tokens, each once, that the model has a row for; without a model all of them."""
    size = _vocab_size(model)
    return tuple(dict.fromkeys(token for token in tokens if 0 <= token < size))


def padding_token(model: nn.Module | None, tokenizer: Any) -> int:
    """Return the tokenizer's padding token, or 0 where it has none that the model knows."""
    token = tokenizer.pad_token_id
    return 0 if token is None or token >= _vocab_size(model) else int(token)


def _vocab_size(model: nn.Module | None) -> float:
    """Tokens that the model knows; infinity where that is not known."""
    config: Any = getattr(model, "config", model)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return float(getattr(config, "vocab_size", None) or inf)


def texts_of(ends: Sequence[int], tokenizer: Any) -> dict[str, str]:
    """Return the tokens' texts by their ids: ``{"2": "<|im_end|>"}``."""
    return {str(token): str(tokenizer.decode([token], skip_special_tokens=False)) for token in ends}
