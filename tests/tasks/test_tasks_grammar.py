"""The demonstrations: their keywords, their form and their shares."""

import itertools
import random
import re
from collections import Counter

import pytest

from harness.tasks.grammar import EVERY_KEYWORD, KeepRates, demonstrations, placements, write_sentence
from harness.tasks.keywords import PROMPT_BEGIN
from harness.tasks.words import WORDS

PLACE_FIRST = "{prep} {0}, {1} {2} {3}"
PLACE_LAST = "{0} {1} {2} {prep} {3}"


def first(count: int, seed: int, keywords: tuple[int, ...], rates: KeepRates = EVERY_KEYWORD) -> list:
    return list(itertools.islice(demonstrations(seed, keywords, rates), count))


def keywords_of(prompt: str) -> list[str]:
    return prompt.removeprefix(PROMPT_BEGIN).removesuffix(".").split(", ")


def listed_words(sentence: str) -> list[str]:
    return [word for word in re.findall("[a-z]+", sentence.lower()) if word in WORDS]


def test_first_demonstrations_are_these() -> None:
    # written down from the first run: a change here changes every warm start
    assert [(keywords_of(one.prompt), one.response) for one in first(3, 0, (2,))] == [
        (["shovel", "barn"], "Every lawyer smelled every shovel behind one barn."),
        (["poor", "shiny"], "Near the poor temple, my dancer bought the shiny mango."),
        (["mirror", "suitcase"], "The kitten bought every mirror near one red suitcase."),
    ]


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_sentences_hold_all_keywords_in_their_order_and_no_word_twice(count: int) -> None:
    for prompt, response, kept in first(300, 1, (count,)):
        keywords, words = keywords_of(prompt), listed_words(response)
        assert kept == len(keywords) == count
        assert [word for word in words if word in keywords] == keywords
        assert len(set(words)) == len(words)
        assert re.fullmatch(r"[A-Z][a-z, ]*\.", response)


def test_shares_are_the_rates_and_left_out_keywords_are_not_in_the_sentence() -> None:
    made = first(4000, 3, (2,), KeepRates(keep_all=0.4, keep_none=0.1))
    kept = Counter(one.kept for one in made)
    # standard errors of the shares: sqrt(.4 * .6 / 4000) = 0.008, sqrt(.1 * .9 / 4000) = 0.005
    assert kept[2] / 4000 == pytest.approx(0.4, abs=0.03)
    assert kept[0] / 4000 == pytest.approx(0.1, abs=0.02)
    assert kept[0] + kept[1] + kept[2] == 4000
    assert all(sum(word in response.lower() for word in keywords_of(prompt)) == here for prompt, response, here in made)


def test_prompts_have_all_the_asked_numbers_of_keywords() -> None:
    counts = Counter(len(keywords_of(one.prompt)) for one in first(3000, 4, (2, 3, 4)))
    assert set(counts) == {2, 3, 4}
    assert min(counts.values()) > 900  # 1000 expected each, standard deviation sqrt(3000 * 1/3 * 2/3) = 26


def test_sentences_are_short_and_varied() -> None:
    responses = [one.response for one in first(2000, 5, (2,))]
    lengths = [len(response.split()) for response in responses]
    assert min(lengths) == 4  # "The lamp was red."
    assert 7.5 < sum(lengths) / 2000 < 9
    assert len(set(responses)) > 1990
    assert [one.response for one in first(20, 6, (2,))] != responses[:20]  # another seed


def test_placements_of_one_verb() -> None:
    # the three forms with a verb; slots: (adjective, noun), verb, (adjective, noun), and a place before or after
    assert placements("v") == (("{0} {1} {2}", (2,)), (PLACE_LAST, (2,)), (PLACE_FIRST, (4,)))
    assert placements("pv") == ((PLACE_FIRST, (1, 4)),)  # a place before a verb

    assert placements("vv") == ()  # which need two clauses
    sentence = write_sentence(random.Random(0), ["found", "washed"])
    assert any(join in sentence for join in (" and ", " while ", ", but "))


def test_without_keywords_a_sentence_is_written_all_the_same() -> None:
    sentence = write_sentence(random.Random(1), (), avoid=["farmer"])
    assert listed_words(sentence) != []
    assert "farmer" not in sentence
