"""What each task teaches a preset before GRPO begins, and how long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from harness.core.errors import UserError
from harness.core.protocols import Task
from harness.core.seeds import derive_seed
from harness.learner.warm_start import maths_text
from harness.models.config import VOCABULARY
from harness.models.tokenizer import train_tokenizer
from harness.tasks import arithmetic, grammar, keywords, words
from harness.tasks.grammar import Demonstration, KeepRates, demonstrations
from harness.tasks.maths.prompts import prompt_template
from harness.tasks.maths.reward import STOP_STRINGS

Example = Demonstration | arithmetic.Example

LOOSE_RATES = KeepRates(keep_all=0.4, keep_none=0.1)
MATHS_TEXTS = 3000
SLIP_RATE = 0.35
TOKENIZER_DEMONSTRATIONS = 6000
"""Their byte-pair merges end near 1285 entries; then nearly every word of the grammar is one token."""
MOST_TRAINED_KEYWORDS = 4


@dataclass(frozen=True, slots=True)
class Recipe:
    """Supervised training of one preset: on right examples, then on careless ones, each ended by an evaluation.

    Attributes:
        learning_rate: of AdamW, constant after ``warmup_steps``.
        taught_reward: the right examples end at the first evaluation that reaches it; in the keyword task with prompts
            of two keywords, see ``keyword_lessons`` for more.
        start_reward: the careless examples end at the first evaluation that is not above it.
        loose_rates: how many keywords the keyword task's careless examples keep.
        precision: bfloat16 means autocast, where the processor has bfloat16 arithmetic.
        share_beginning: compute what all prompts of a batch begin with once.
        average_decay: the policy that is evaluated and kept is the exponential average of the weights.
        evaluate_from: first step at which the policy may be evaluated.
        evaluate_every: steps between evaluations, on right and on careless examples.
        evaluation_prompts: held-out prompts of one evaluation, one sampled response each.
        max_tokens: longest response of an evaluation.
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

    @property
    def dtype(self) -> torch.dtype:
        """The precision that this processor has."""
        narrow = self.precision == "bfloat16" and torch.cpu._is_avx512_bf16_supported()
        return torch.bfloat16 if narrow else torch.float32


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


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a task teaches.

    Right examples come first, until the policy is good; then careless ones, until its reward has come down into the
    range where GRPO is to begin. What is left to learn then is care, not the task: stopped at the same reward on right
    examples, the policy does not know some sums at all (docs/arithmetic.md), or finds it easier to write ever longer
    strings of words.

    Attributes:
        right, careless: examples without end, by seed.
        task: whose held-out prompts, as many as it is given, and reward measure the policy.
        train_tokenizer: on texts of its own; it is the same for every preset and seed.
        stop: strings that end a response of an evaluation.
        or_else: what helps where the policy does not learn.
        key, sources: numbers and modules that the policy depends on, for the key of the cache.
    """

    right: Callable[[int], Iterator[Example]]
    careless: Callable[[int], Iterator[Example]]
    taught_reward: float
    task: Callable[[int], Task]
    train_tokenizer: Callable[[], PreTrainedTokenizerBase]
    stop: tuple[str, ...]
    or_else: str
    key: dict[str, Any]
    sources: tuple[ModuleType, ...]


def stream_seed(name: str, *parts: int) -> int:
    """Return the seed of one of the warm start's independent random streams."""
    return derive_seed("warm start", name, *parts)


def lessons_of(preset: str, recipe: Recipe | None = None, keywords_per_prompt: int = 2) -> Lessons:
    """Return what a preset is taught: arithmetic for ``maths``, sentences with given words for the others.

    ``keywords_per_prompt`` is of the prompts that the policy is to begin on; arithmetic has none.

    Raises:
        UserError: there is no such preset, or ``keywords_per_prompt`` is out of its bounds.
    """
    if preset not in RECIPES:
        what = f"there is no preset {preset!r}; the presets are {', '.join(RECIPES)}"
        raise UserError(what, "model.preset", "set model.preset to small")
    recipe = recipe or RECIPES[preset]
    return arithmetic_lessons(recipe) if preset == "maths" else keyword_lessons(recipe, keywords_per_prompt)


def keyword_lessons(recipe: Recipe, keywords_per_prompt: int) -> Lessons:
    """Right examples use every keyword; careless ones leave some out.

    Prompts of more keywords than are asked for teach copying sooner: there is more to copy in each. Every keyword
    beyond the second is one more that may be missed, so the recipe's ``taught_reward`` takes the power n - 1 for n.
    """
    keywords.check_keyword_count(keywords_per_prompt)
    counts = trained_keyword_counts(keywords_per_prompt)

    def tokenizer() -> PreTrainedTokenizerBase:
        examples = itertools.islice(
            demonstrations(stream_seed("tokenizer"), trained_keyword_counts(2)), TOKENIZER_DEMONSTRATIONS
        )
        return train_tokenizer((text for one in examples for text in (one.prompt, one.response)), VOCABULARY["small"])

    return Lessons(
        right=lambda seed: demonstrations(stream_seed("taught", seed), counts),
        careless=lambda seed: demonstrations(stream_seed("loose", seed), counts, recipe.loose_rates),
        taught_reward=float(recipe.taught_reward ** (keywords_per_prompt - 1)),
        task=partial(keywords.KeywordTask, keywords_per_prompt, 1),
        train_tokenizer=tokenizer,
        stop=(),
        or_else="Set task.keywords_per_prompt to 2, or choose another model.preset",
        key={"keywords": [keywords_per_prompt, counts]},
        sources=(words, keywords, grammar),
    )


def trained_keyword_counts(keywords_per_prompt: int) -> tuple[int, ...]:
    """Return how many keywords the demonstrations' prompts have."""
    return tuple(range(2, max(MOST_TRAINED_KEYWORDS, keywords_per_prompt) + 1))


def arithmetic_lessons(recipe: Recipe) -> Lessons:
    """Right examples work sums out by columns; in careless ones some columns are off by one."""

    def tokenizer() -> PreTrainedTokenizerBase:  # every digit is a token of its own
        texts = itertools.islice(maths_text.maths_texts(stream_seed("maths tokenizer")), MATHS_TEXTS)
        return train_tokenizer(texts, VOCABULARY["maths"], split_digits=True)

    return Lessons(
        right=lambda seed: arithmetic.worked_examples(stream_seed("worked", seed)),
        careless=lambda seed: arithmetic.worked_examples(stream_seed("careless", seed), SLIP_RATE),
        taught_reward=recipe.taught_reward,
        task=partial(arithmetic.ArithmeticTask, 1),
        train_tokenizer=tokenizer,
        stop=STOP_STRINGS["r1_zero"],
        or_else="Choose another model.preset",
        key={"prompt": prompt_template(arithmetic.PROMPT).render("")},
        sources=(words, arithmetic, maths_text),
    )
