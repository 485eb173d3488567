"""What a warm start teaches: the contract between the training and the tasks it prepares for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from harness.core.protocols import Task
from harness.core.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.learner.warm_start.recipe import Recipe


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
