"""The keyword task: its reward, its prompts, and what is held out."""

import itertools

import pytest

from harness.core.errors import UserError
from harness.core.keyword_reward import keyword_inclusion_reward_fn
from harness.core.types import Prompt
from harness.settings.task import KEYWORD_BLOCKS, KEYWORDS_OF_A_BLOCK
from harness.tasks.grammar import demonstrations
from harness.tasks.keywords import PROMPT_BEGIN, KeywordTask, keyword_blocks, keyword_reward
from harness.tasks.words import WORDS


def keywords_of(prompt: Prompt) -> list[str]:
    return prompt.ground_truth.split(", ")


def pairs_of(prompts: tuple[Prompt, ...]) -> set[frozenset[str]]:
    return {frozenset(pair) for prompt in prompts for pair in itertools.combinations(keywords_of(prompt), 2)}


@pytest.mark.parametrize(
    ("response", "keywords", "reward"),
    [
        ("The red apple fell from the tree.", "apple, red", 1.0),
        ("The RED Apple fell.", ["apple", "Red"], 1.0),
        ("The apple fell.", "apple, red", 0.0),
        ("The red pear fell.", "apple, red", 0.0),
        ("", "apple, red", 0.0),
        ("Two apples, both reddish.", "apple,red", 1.0),  # a keyword may stand inside a longer word
        ("an apple", " apple ,, ", 1.0),  # blanks are no keywords
        ("an apple", ("apple",), 1.0),
        ("Die STRASSE war leer", "straße", 1.0),  # caseless matching, not only lower()
    ],
)
def test_reward(response: str, keywords: str | list[str], reward: float) -> None:
    assert keyword_inclusion_reward_fn(response, keywords) == reward
    if isinstance(keywords, str):
        assert keyword_reward(response, keywords) == {"reward": reward, "format_reward": 1.0, "answer_reward": reward}


def test_no_keyword_is_refused() -> None:
    for nothing in ("", " , ", [], [" "]):
        with pytest.raises(UserError, match="no word among them; at least 1 is needed"):
            keyword_inclusion_reward_fn("The red apple fell.", nothing)


def test_blocks_deal_every_word_once() -> None:
    assert [len(block) for block in keyword_blocks()] == [8] * 50
    assert (KEYWORD_BLOCKS, KEYWORDS_OF_A_BLOCK) == (50, 8)  # what a scenario's rule counts with
    assert sorted(itertools.chain.from_iterable(keyword_blocks())) == sorted(WORDS)


def test_prompt_and_ground_truth_are_these_texts() -> None:
    # written down from the first run: they must never change, or saved results are no longer comparable
    task = KeywordTask(2, 4, 2, seed=0)
    assert task.train_prompts[0] == Prompt("Write a sentence that includes the words: lazy, lonely.", "lazy, lonely")
    assert task.validation_prompts[0] == Prompt(
        "Write a sentence that includes the words: desert, rescued.", "desert, rescued"
    )
    three = KeywordTask(3, 1, 1, seed=7).train_prompts[0]
    assert three == Prompt("Write a sentence that includes the words: friend, shirt, curly.", "friend, shirt, curly")


def test_sizes_are_as_asked_and_sets_of_words_differ() -> None:
    task = KeywordTask(2, 4096, 256, seed=3)
    assert (len(task.train_prompts), len(task.validation_prompts)) == (4096, 256)
    assert len({frozenset(keywords_of(prompt)) for prompt in task.train_prompts}) == 4096
    assert len({frozenset(keywords_of(prompt)) for prompt in task.validation_prompts}) == 256
    assert {word for prompt in task.train_prompts for word in keywords_of(prompt)} == set(
        WORDS
    )  # each one is trained on


@pytest.mark.parametrize("count", [2, 3, 6])
def test_no_held_out_pair_is_trained_on_whatever_the_seeds(count: int) -> None:
    held_out = pairs_of(KeywordTask(count, 1, 256, seed=1).validation_prompts)
    assert len(held_out) > 250
    for seed in (1, 2):
        assert held_out & pairs_of(KeywordTask(count, 4096, 1, seed=seed).train_prompts) == set()


def test_no_held_out_pair_is_demonstrated() -> None:
    held_out = pairs_of(KeywordTask(2, 1, 1400, seed=0).validation_prompts)
    assert len(held_out) == 1400  # 50 blocks x 28 pairs: all there are
    shown = itertools.islice(demonstrations(0, (2, 3, 4)), 5000)
    assert held_out & pairs_of(tuple(Prompt(one.prompt, one.prompt[len(PROMPT_BEGIN) : -1]) for one in shown)) == set()


def test_one_split_does_not_depend_on_the_size_of_the_other() -> None:
    small, large = KeywordTask(2, 10, 20, seed=5), KeywordTask(2, 100, 200, seed=5)
    assert large.train_prompts[:10] == small.train_prompts
    assert large.validation_prompts[:20] == small.validation_prompts
    assert KeywordTask(2, 10, 20, seed=6).train_prompts != small.train_prompts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 10, 10), r"keywords_per_prompt is 1; it must be 2 to 8"),
        ((9, 10, 10), r"keywords_per_prompt is 9; it must be 2 to 8"),
        ((2, 0, 10), r"train_prompts is 0; it must be 1 to 78400"),  # 50 * 49 / 2 pairs of blocks x 8 x 8 words
        ((2, 10, 1401), r"validation_prompts is 1401; it must be 1 to 1400"),  # 50 blocks x 8 * 7 / 2 pairs
        ((8, 10, 51), r"validation_prompts is 51; it must be 1 to 50"),  # a block has one set of 8
    ],
)
def test_numbers_out_of_bounds_are_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        KeywordTask(*arguments)
