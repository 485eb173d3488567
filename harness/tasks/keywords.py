"""Keyword inclusion: write a sentence in which every given word occurs.

What is held out is the combination of words, by a rule that no seed can break. The word list is dealt once and for all
into blocks of eight. A validation prompt takes its words from one block, a training prompt and a demonstration of the
warm start take each word from a different block. So no two words that stand together in a validation prompt ever stand
together in training, whatever the seeds and however many keywords a prompt has, while every single word is trained on.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import cache

from harness.core.errors import UserError
from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.core.seeds import derive_seed
from harness.core.types import Prompt
from harness.tasks.drawn import distinct_prompts
from harness.tasks.words import WORDS

BLOCK_SIZE = 8
PROMPT_BEGIN = "Write a sentence that includes the words: "


def keyword_reward(response: str, ground_truth: str) -> dict[str, float]:
    """Reward in the form of a ``reward_fn``; ``ground_truth`` is the comma-separated list of keywords.

    The task asks for no format, so the format part is always earned.
    """
    reward = keyword_inclusion_reward_fn(response, ground_truth)
    return {"reward": reward, "format_reward": 1.0, "answer_reward": reward}


def keyword_prompt(keywords: Sequence[str]) -> Prompt:
    """Return the prompt that asks for these keywords, in this order."""
    listed = ", ".join(keywords)
    return Prompt(text=f"{PROMPT_BEGIN}{listed}.", ground_truth=listed)


@cache
def keyword_blocks() -> tuple[tuple[str, ...], ...]:
    """Return the word list dealt into blocks of ``BLOCK_SIZE``, the same in every process and for every seed."""
    dealt = list(WORDS)
    random.Random(derive_seed("keyword blocks")).shuffle(dealt)
    return tuple(tuple(dealt[start : start + BLOCK_SIZE]) for start in range(0, len(dealt), BLOCK_SIZE))


def draw_training_keywords(rng: random.Random, count: int) -> tuple[str, ...]:
    """Draw ``count`` keywords from as many different blocks, in random order."""
    return tuple(rng.choice(block) for block in rng.sample(keyword_blocks(), count))


def draw_held_out_keywords(rng: random.Random, count: int) -> tuple[str, ...]:
    """Draw ``count`` different keywords from one block, in random order."""
    return tuple(rng.sample(rng.choice(keyword_blocks()), count))


class KeywordTask:
    """Prompts that ask for a sentence with given words; see the module's text for what is held out.

    No two prompts of a split ask for the same set of words.

    Args:
        keywords_per_prompt: words to include, 2 to ``BLOCK_SIZE``.
        train_prompts: number of training prompts.
        validation_prompts: number of held-out prompts.
        seed: draws both splits. The validation prompts do not depend on ``train_prompts``, nor the other way round.

    Raises:
        UserError: a number is out of its bounds, or more prompts are asked for than there are sets of words.
    """

    reward = staticmethod(keyword_reward)

    def __init__(
        self,
        keywords_per_prompt: int = 2,
        train_prompts: int = 4096,
        validation_prompts: int = 256,
        seed: int = 0,
    ) -> None:
        check_keyword_count(keywords_per_prompt)

        def draw(name: str, count: int, most: int, draw_keywords: _Draw) -> tuple[Prompt, ...]:
            split = name.removesuffix("_prompts")
            rng = random.Random(derive_seed("keyword task", split, keywords_per_prompt, seed))
            sets = (draw_keywords(rng, keywords_per_prompt) for _ in itertools.repeat(None))
            draws = ((frozenset(keywords), keyword_prompt(keywords)) for keywords in sets)
            return distinct_prompts(name, count, most, draws, ", the number of different sets of words for this split")

        blocks, words = len(keyword_blocks()), keywords_per_prompt
        most = math.comb(blocks, words) * BLOCK_SIZE**words
        self.train_prompts = draw("train_prompts", train_prompts, most, draw_training_keywords)
        most = blocks * math.comb(BLOCK_SIZE, words)
        self.validation_prompts = draw("validation_prompts", validation_prompts, most, draw_held_out_keywords)


_Draw = Callable[[random.Random, int], tuple[str, ...]]


def check_keyword_count(keywords_per_prompt: int) -> None:
    """Raise UserError unless a held-out prompt of so many keywords can be made."""
    if not 2 <= keywords_per_prompt <= BLOCK_SIZE:
        raise UserError(
            f"keywords_per_prompt is {keywords_per_prompt}; it must be 2 to {BLOCK_SIZE}: what is held out for "
            "validation is which words stand together",
            where="task.keywords_per_prompt",
            fix="set task.keywords_per_prompt to 2",
        )
