"""The curriculum of the arithmetic task: first problems worked out by columns, then the same with slips."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

from transformers import PreTrainedTokenizerBase

from harness.learner.warm_start import maths_text
from harness.learner.warm_start.curriculum import Lesson, Recipe, stream_seed
from harness.models.tokenizer import train_tokenizer
from harness.tasks import arithmetic, words
from harness.tasks.arithmetic import PROMPT, ArithmeticTask, worked_examples
from harness.tasks.maths import STOP_STRINGS, prompt_template

VOCABULARY_SIZE = 1024
TOKENIZER_TEXTS = 3000


SLIP_RATE = 0.35


class ArithmeticCurriculum:
    """Two lessons, each of worked problems.

    Those of the first are right, until the policy is right mostly. Those of the second are careless: in some of their
    columns the result is off by one, until the reward has come down into the range where GRPO is to begin. What is left
    to learn then is care, not arithmetic. Stopped at the same reward in the first lesson, the policy does not know some
    sums at all, and GRPO hardly gets further in the same number of steps (docs/arithmetic.md).
    """

    vocabulary_size = VOCABULARY_SIZE
    stop = STOP_STRINGS["r1_zero"]
    or_else = ""

    def train_tokenizer(self) -> PreTrainedTokenizerBase:
        """See ``Curriculum``; every digit is a token of its own."""
        texts = itertools.islice(maths_text.maths_texts(stream_seed("maths tokenizer")), TOKENIZER_TEXTS)
        return train_tokenizer(texts, VOCABULARY_SIZE, split_digits=True)

    def lessons(self, recipe: Recipe, seed: int) -> tuple[Lesson, ...]:
        """See ``Curriculum``."""
        right, every = worked_examples(stream_seed("worked", seed)), recipe.evaluate_every
        careless = worked_examples(stream_seed("careless", seed), SLIP_RATE)
        return (
            Lesson(right, every[0], recipe.taught_reward),
            Lesson(careless, every[1], recipe.start_reward, from_below=False),
        )

    def task(self, validation_prompts: int) -> ArithmeticTask:
        """See ``Curriculum``."""
        return ArithmeticTask(train_prompts=1, validation_prompts=validation_prompts)

    def key_parts(self) -> dict[str, Any]:
        """See ``Curriculum``."""
        return {
            "vocabulary": [VOCABULARY_SIZE, TOKENIZER_TEXTS],
            "slip_rate": SLIP_RATE,
            "prompt": prompt_template(PROMPT).render(""),
        }

    def sources(self) -> tuple[ModuleType, ...]:
        """See ``Curriculum``."""
        return (words, arithmetic, maths_text, sys.modules[__name__])
