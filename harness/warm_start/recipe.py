"""How each preset is warm-started, and the key under which the result is kept."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from harness.errors import UserError
from harness.models.config import PRESETS, ModelConfig
from harness.seeds import derive_seed
from harness.tasks import grammar, keywords, words
from harness.tasks.grammar import KeepRates

VERSION = 1
"""Part of the cache key: raise it when a change outside the hashed sources changes the result."""
VOCABULARY_SIZE = 1280
"""The byte-pair merges of the grammar end near 1285 entries; then nearly every word of the list is one token."""
TOKENIZER_DEMONSTRATIONS = 6000
MOST_TRAINED_KEYWORDS = 4
LOOSE_RATES = KeepRates(keep_all=0.4, keep_none=0.1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Supervised training of one preset, in two parts, each ended by an evaluation.

    The first part's demonstrations keep every keyword, until the policy is good at copying. The second part's leave
    some out, until the reward has come down into the range where GRPO is to begin: what is left to learn then is to use
    the keywords, not how. Trained to the same reward by the first part alone, GRPO finds it easier to write ever longer
    strings of words.

    Args:
        learning_rate: of AdamW, constant after ``warmup_steps``.
        taught_reward: the first part ends at the first evaluation that reaches it, with prompts of two keywords; see
            ``taught_reward`` for more.
        start_reward: the second part ends at the first evaluation that is not above it.
        loose_rates: how many keywords the second part's demonstrations keep.
        precision: bfloat16 means autocast, where the processor has bfloat16 arithmetic.
        batch_size: demonstrations of one step.
        average_decay: the policy that is evaluated and kept is the exponential average of the weights.
        evaluate_from: first step at which the policy may be evaluated.
        evaluate_every: steps between evaluations, of the first and of the second part.
        evaluation_prompts: held-out prompts of one evaluation, one sampled response each.
        max_tokens: longest response of an evaluation.
        max_steps: giving up.
    """

    learning_rate: float
    taught_reward: float
    start_reward: float = 0.35
    loose_rates: KeepRates = LOOSE_RATES
    precision: Literal["float32", "bfloat16"] = "float32"
    batch_size: int = 32
    warmup_steps: int = 20
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    average_decay: float = 0.95
    evaluate_from: int = 60
    evaluate_every: tuple[int, int] = (20, 10)
    evaluation_prompts: int = 256
    max_tokens: int = 32
    max_steps: int = 1000


RECIPES = {
    "tiny": Recipe(learning_rate=3e-3, taught_reward=0.45),
    "small": Recipe(learning_rate=1.5e-3, taught_reward=0.55, precision="bfloat16"),
    "course": Recipe(learning_rate=1e-3, taught_reward=0.55, precision="bfloat16"),
}


def preset_config(preset: str) -> ModelConfig:
    """Return the preset's shape with the vocabulary of the grammar's tokenizer.

    Raises:
        UserError: there is no such preset.
    """
    if preset not in RECIPES:
        raise UserError(
            f"there is no preset {preset!r}; the presets are {', '.join(RECIPES)}",
            where="model.preset",
            fix="set model.preset to small",
        )
    return replace(PRESETS[preset], vocab_size=VOCABULARY_SIZE)


def trained_keyword_counts(keywords_per_prompt: int) -> tuple[int, ...]:
    """Return how many keywords the demonstrations' prompts have.

    Prompts of more keywords than are asked for teach copying sooner: there is more to copy in each.
    """
    return tuple(range(2, max(MOST_TRAINED_KEYWORDS, keywords_per_prompt) + 1))


def taught_reward(recipe: Recipe, keywords_per_prompt: int) -> float:
    """Return the reward that ends the first part: the recipe's for two keywords, and its power n - 1 for n of them.

    Every further keyword is one more that may be missed.
    """
    return float(recipe.taught_reward ** (keywords_per_prompt - 1))


def content_key(preset: str, recipe: Recipe, seed: int, keywords_per_prompt: int) -> str:
    """Return 16 hex digits that change with anything the warm-started policy depends on."""
    from harness.warm_start import training

    parts = {
        "version": VERSION,
        "torch": torch.__version__,
        "model": asdict(preset_config(preset)),
        "recipe": asdict(recipe),
        "precision": str(training_precision(recipe)),
        "seed": seed,
        "keywords_per_prompt": keywords_per_prompt,
        "vocabulary": [VOCABULARY_SIZE, TOKENIZER_DEMONSTRATIONS, trained_keyword_counts(keywords_per_prompt)],
        "sources": [inspect.getsource(module) for module in (words, keywords, grammar, training)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def training_precision(recipe: Recipe) -> torch.dtype:
    """Return bfloat16 where the recipe wants it and the processor computes in it, else float32."""
    if recipe.precision == "bfloat16" and torch.cpu._is_avx512_bf16_supported():
        return torch.bfloat16
    return torch.float32


def stream_seed(name: str, *parts: int) -> int:
    """Return the seed of one of the warm start's independent random streams."""
    return derive_seed("warm start", name, *parts)
