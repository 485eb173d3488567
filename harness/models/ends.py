"""With which tokens a policy's responses end, and what else its folder says of generation beside the model's shape.

A response ends with any of the tokens that the tokenizer, ``config.json`` and ``generation_config.json`` call
``eos_token_id``. Engines, the Learner's ban within ``min_tokens``, manifest and evaluation all take ``end_tokens``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from harness.core.errors import UserError

if TYPE_CHECKING:
    from torch import nn

CONFIG, GENERATION = "config.json", "generation_config.json"
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class FolderDefaults:
    """``config.json`` and ``generation_config.json`` of a folder, parsed; None: the folder has no such file."""

    config: Mapping[str, Any]
    generation: Mapping[str, Any] | None


FOLDER_DEFAULTS: WeakKeyDictionary[nn.Module, FolderDefaults] = WeakKeyDictionary()
"""Of each model that came from a folder."""


def write_folder_defaults(model: nn.Module, folder: Path) -> None:
    """Give a folder that this model was saved into the ids and sampling defaults of the one that it came from.

    A model that came from none keeps what its folder has.
    """
    defaults = FOLDER_DEFAULTS.get(model)
    if defaults is None:
        return
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    for name in _SPECIAL_IDS:
        if name in defaults.config:
            config[name] = defaults.config[name]
        else:
            config.pop(name, None)
    _write(folder / CONFIG, config)
    if defaults.generation is None:
        (folder / GENERATION).unlink(missing_ok=True)
    else:
        _write(folder / GENERATION, defaults.generation)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


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
    named = [*_ids(tokenizer.eos_token_id, "the tokenizer")]
    for where, config in _configs(model):
        named += _ids(config.get("eos_token_id"), where)
    size = _vocab_size(model)
    return tuple(dict.fromkeys(token for token in named if token >= 0 and (size is None or token < size)))


def _configs(model: nn.Module | None) -> list[tuple[str, Mapping[str, Any]]]:
    defaults = None if model is None else FOLDER_DEFAULTS.get(model)
    if defaults is not None:
        text = defaults.config.get("text_config")
        of_text = text if isinstance(text, Mapping) else {}
        return [(GENERATION, defaults.generation or {}), (CONFIG, defaults.config), (CONFIG, of_text)]
    made = (getattr(model, "generation_config", None), getattr(model, "config", None))
    names = (GENERATION, CONFIG)
    return [(name, vars(config)) for name, config in zip(names, made, strict=True) if hasattr(config, "__dict__")]


def _ids(value: Any, where: str) -> list[int]:
    ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        what = f"eos_token_id is {value!r}, must be a token id, a list of token ids or null"
        raise UserError(what, where, "write the token's id, or remove eos_token_id")
    return list(ids)


def padding_token(model: nn.Module | None, tokenizer: Any) -> int:
    """Return the tokenizer's padding token, or 0 where it has none that the model knows."""
    token, size = tokenizer.pad_token_id, _vocab_size(model)
    return 0 if token is None or (size is not None and token >= size) else int(token)


def _vocab_size(model: nn.Module | None) -> int | None:
    config: Any = getattr(model, "config", model)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    size = getattr(config, "vocab_size", None)
    return None if size is None else int(size)


_CHAT = {"user": "What is 1 + 1?", "assistant": "The answer is 2."}


def turn_end(tokenizer: Any) -> int | None:
    """Return the token that the chat template writes behind an assistant's turn; None where it writes no such token."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    answer = _CHAT["assistant"]
    for content in (str, lambda text: [{"type": "text", "text": text}]):  # some templates take contents in parts alone
        turns = [{"role": role, "content": content(text)} for role, text in _CHAT.items()]
        try:
            text: str = tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception:  # whatever a template makes of a chat that it was not made for
            continue
        if answer in text:
            behind, added = text.rpartition(answer)[2].lstrip(), tokenizer.get_added_vocab()
            names = [name for name in added if behind.startswith(name)]
            return int(added[max(names, key=len)]) if names else None
    return None


def texts_of(ends: Sequence[int], tokenizer: Any) -> dict[str, str]:
    """Return the tokens' texts by their ids: ``{"2": "<|im_end|>"}``."""
    return {str(token): str(tokenizer.decode([token], skip_special_tokens=False)) for token in ends}
