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
from harness.tasks.grammar import KeepRates
from harness.warm_start.curriculum import Curriculum

VERSION = 1
"""Part of the cache key: raise it when a change outside the hashed sources changes the result."""
LOOSE_RATES = KeepRates(keep_all=0.4, keep_none=0.1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Supervised training of one preset, in the lessons of its curriculum, each ended by an evaluation.

    Args:
        learning_rate: of AdamW, constant after ``warmup_steps``.
        taught_reward: the first lesson ends at the first evaluation that reaches it; in the keyword task with prompts
            of two keywords, see ``keyword_curriculum.taught_reward`` for more.
        start_reward: the second lesson ends at the first evaluation that is not above it.
        loose_rates: how many keywords the demonstrations of the keyword task's second lesson keep.
        precision: bfloat16 means autocast, where the processor has bfloat16 arithmetic.
        batch_size: examples of one step.
        share_beginning: compute what all prompts of a batch begin with once.
        average_decay: the policy that is evaluated and kept is the exponential average of the weights.
        evaluate_from: first step at which the policy may be evaluated.
        evaluate_every: steps between evaluations, of the first and of the second lesson.
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
    share_beginning: bool = False
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
    "maths": Recipe(
        learning_rate=3e-3,
        taught_reward=0.7,
        start_reward=0.4,
        precision="bfloat16",
        share_beginning=True,
        evaluate_from=400,
        evaluate_every=(50, 10),
        evaluation_prompts=128,
        max_tokens=48,
        max_steps=4000,
    ),
}


def preset_config(preset: str) -> ModelConfig:
    """Return the preset's shape with the vocabulary of its curriculum's tokenizer.

    Raises:
        UserError: there is no such preset.
    """
    return replace(PRESETS[check_preset(preset)], vocab_size=preset_curriculum(preset).vocabulary_size)


def preset_curriculum(preset: str, keywords_per_prompt: int = 2) -> Curriculum:
    """Return what the preset is taught: arithmetic for ``maths``, sentences with given words for the others.

    Args:
        preset: its name.
        keywords_per_prompt: keywords of the prompts that the policy is to begin on; arithmetic has none.

    Raises:
        UserError: there is no such preset, or ``keywords_per_prompt`` is out of its bounds.
    """
    from harness.warm_start.arithmetic_curriculum import ArithmeticCurriculum
    from harness.warm_start.keyword_curriculum import KeywordCurriculum

    is_maths = check_preset(preset) == "maths"
    return ArithmeticCurriculum() if is_maths else KeywordCurriculum(keywords_per_prompt)


def check_preset(preset: str) -> str:
    """Return the name of a preset.

    Raises:
        UserError: there is none of this name.
    """
    if preset in RECIPES:
        return preset
    raise UserError(
        f"there is no preset {preset!r}; the presets are {', '.join(RECIPES)}",
        where="model.preset",
        fix="set model.preset to small",
    )


def content_key(preset: str, recipe: Recipe, seed: int, curriculum: Curriculum) -> str:
    """Return 16 hex digits that change with anything the warm-started policy depends on."""
    from harness.warm_start import training

    parts = {
        "version": VERSION,
        "torch": torch.__version__,
        "model": asdict(preset_config(preset)),
        "recipe": asdict(recipe),
        "precision": str(training_precision(recipe)),
        "seed": seed,
        **curriculum.key_parts(),
        "sources": [inspect.getsource(module) for module in (*curriculum.sources(), training)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def training_precision(recipe: Recipe) -> torch.dtype:
    """Return bfloat16 where the recipe wants it and the processor computes in it, else float32."""
    if recipe.precision == "bfloat16" and torch.cpu._is_avx512_bf16_supported():
        return torch.bfloat16
    return torch.float32
