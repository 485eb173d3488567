"""The curriculum of the keyword task: first to use every word that the prompt asks for, then to leave some out."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

from transformers import PreTrainedTokenizerBase

from harness.learner.warm_start.curriculum import Lesson, Recipe, stream_seed
from harness.models.tokenizer import train_tokenizer
from harness.tasks import grammar, keywords, words
from harness.tasks.grammar import demonstrations
from harness.tasks.keywords import KeywordTask, check_keyword_count

VOCABULARY_SIZE = 1280
"""The byte-pair merges of the grammar end near 1285 entries; then nearly every word of the list is one token."""
TOKENIZER_DEMONSTRATIONS = 6000
MOST_TRAINED_KEYWORDS = 4


class KeywordCurriculum:
    """Two lessons, each of the grammar's demonstrations.

    Those of the first keep every keyword, until the policy is good at copying. Those of the second leave some out,
    until the reward has come down into the range where GRPO is to begin: what is left to learn then is to use the
    keywords, not how. Taught the same reward by the first lesson alone, GRPO finds it easier to write ever longer
    strings of words.

    Args:
        keywords_per_prompt: keywords of the prompts that the policy is to begin on.

    Raises:
        UserError: ``keywords_per_prompt`` is out of its bounds.
    """

    vocabulary_size = VOCABULARY_SIZE
    stop: tuple[str, ...] = ()
    or_else = ", or task.keywords_per_prompt to 2"

    def __init__(self, keywords_per_prompt: int = 2) -> None:
        check_keyword_count(keywords_per_prompt)
        self._keywords_per_prompt = keywords_per_prompt

    def train_tokenizer(self) -> PreTrainedTokenizerBase:
        """See ``Curriculum``."""
        examples = demonstrations(stream_seed("tokenizer"), trained_keyword_counts(2))
        texts = ((one.prompt, one.response) for one in itertools.islice(examples, TOKENIZER_DEMONSTRATIONS))
        return train_tokenizer(itertools.chain.from_iterable(texts), VOCABULARY_SIZE)

    def lessons(self, recipe: Recipe, seed: int) -> tuple[Lesson, ...]:
        """See ``Curriculum``; the first lesson's goal falls with the number of keywords (``taught_reward``)."""
        counts, every = trained_keyword_counts(self._keywords_per_prompt), recipe.evaluate_every
        keep_all = demonstrations(stream_seed("taught", seed), counts)
        keep_some = demonstrations(stream_seed("loose", seed), counts, recipe.loose_rates)
        return (
            Lesson(keep_all, every[0], taught_reward(recipe, self._keywords_per_prompt)),
            Lesson(keep_some, every[1], recipe.start_reward, from_below=False),
        )

    def task(self, validation_prompts: int) -> KeywordTask:
        """See ``Curriculum``."""
        return KeywordTask(self._keywords_per_prompt, train_prompts=1, validation_prompts=validation_prompts)

    def key_parts(self) -> dict[str, Any]:
        """See ``Curriculum``."""
        return {
            "keywords_per_prompt": self._keywords_per_prompt,
            "vocabulary": [
                VOCABULARY_SIZE,
                TOKENIZER_DEMONSTRATIONS,
                trained_keyword_counts(self._keywords_per_prompt),
            ],
        }

    def sources(self) -> tuple[ModuleType, ...]:
        """See ``Curriculum``."""
        return (words, keywords, grammar)


def trained_keyword_counts(keywords_per_prompt: int) -> tuple[int, ...]:
    """Return how many keywords the demonstrations' prompts have.

    Prompts of more keywords than are asked for teach copying sooner: there is more to copy in each.
    """
    return tuple(range(2, max(MOST_TRAINED_KEYWORDS, keywords_per_prompt) + 1))


def taught_reward(recipe: Recipe, keywords_per_prompt: int) -> float:
    """Return the reward that ends the first lesson: the recipe's for two keywords, and its power n - 1 for n of them.

    Every further keyword is one more that may be missed.
    """
    return float(recipe.taught_reward ** (keywords_per_prompt - 1))
