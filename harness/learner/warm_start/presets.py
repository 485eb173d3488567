"""From a preset's name to its shape and its curriculum, and the key under which what it was taught is kept."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict

import torch

from harness.learner.warm_start import training
from harness.learner.warm_start.arithmetic_curriculum import ArithmeticCurriculum
from harness.learner.warm_start.curriculum import Curriculum, Recipe, check_preset, training_precision
from harness.learner.warm_start.keyword_curriculum import KeywordCurriculum
from harness.models.config import ModelConfig, preset_shape

VERSION = 1
"""Part of the cache key: raise it when a change outside the hashed sources changes the result."""


def preset_config(preset: str) -> ModelConfig:
    """Return the preset's shape with the vocabulary of its curriculum's tokenizer.

    Raises:
        UserError: there is no such preset.
    """
    return preset_shape(check_preset(preset))


def preset_curriculum(preset: str, keywords_per_prompt: int = 2) -> Curriculum:
    """Return what the preset is taught: arithmetic for ``maths``, sentences with given words for the others.

    Args:
        preset: its name.
        keywords_per_prompt: keywords of the prompts that the policy is to begin on; arithmetic has none.

    Raises:
        UserError: there is no such preset, or ``keywords_per_prompt`` is out of its bounds.
    """
    is_maths = check_preset(preset) == "maths"
    return ArithmeticCurriculum() if is_maths else KeywordCurriculum(keywords_per_prompt)


def content_key(preset: str, recipe: Recipe, seed: int, curriculum: Curriculum) -> str:
    """Return 16 hex digits that change with anything the warm-started policy depends on."""
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
