"""What a warm start teaches, and how each preset is warm-started.

The curriculum is the contract between the training and the tasks it prepares for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from harness.core.errors import UserError
from harness.core.protocols import Task
from harness.core.seeds import derive_seed
from harness.tasks.grammar import KeepRates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Example(Protocol):
    """A prompt and the response that is taught."""

    @property
    def prompt(self) -> str:
        """The prompt."""

    @property
    def response(self) -> str:
        """What is written after it."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Examples to train on until an evaluation's reward is as wanted.

    Args:
        examples: without end.
        every: steps between two evaluations.
        goal: the reward that ends the lesson.
        from_below: whether it is to be reached from below, or else come down to.
    """

    examples: Iterator[Example]
    every: int
    goal: float
    from_below: bool = True

    @property
    def wanted(self) -> str:
        """The goal in words."""
        return f"at {'least' if self.from_below else 'most'} {self.goal:.3f}"

    def is_reached(self, reward: float) -> bool:
        """Whether this reward ends the lesson."""
        return reward >= self.goal if self.from_below else reward <= self.goal


class Curriculum(Protocol):
    """What a preset is taught, and how it is told that it has learnt it."""

    vocabulary_size: int
    """Entries of the tokenizer."""
    stop: tuple[str, ...]
    """Strings that end a response of an evaluation."""
    or_else: str
    """End of a sentence that begins "Set model.warm_start_seed to another number": what else may help."""

    def train_tokenizer(self) -> PreTrainedTokenizerBase:
        """Train the tokenizer on texts of the curriculum's own; it is the same for every preset and seed."""

    def lessons(self, recipe: Recipe, seed: int) -> tuple[Lesson, ...]:
        """Return the lessons in their order, with fresh examples."""

    def task(self, validation_prompts: int) -> Task:
        """Return the task whose held-out prompts and reward measure the policy."""

    def key_parts(self) -> dict[str, Any]:
        """Return the numbers that the policy depends on, for the key of the cache."""

    def sources(self) -> tuple[ModuleType, ...]:
        """Return the modules that the policy depends on, for the key of the cache."""


def stream_seed(name: str, *parts: int) -> int:
    """Return the seed of one of the warm start's independent random streams."""
    return derive_seed("warm start", name, *parts)


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


def training_precision(recipe: Recipe) -> torch.dtype:
    """Return bfloat16 where the recipe wants it and the processor computes in it, else float32."""
    if recipe.precision == "bfloat16" and torch.cpu._is_avx512_bf16_supported():
        return torch.bfloat16
    return torch.float32
