"""A small grammar that writes the demonstrations of the warm start.

A sentence has one or more clauses, and a clause has one of four forms, each a row of slots: ``subject verb object``,
the same with a place behind it or before it, and ``subject was adjective``. Every noun has a determiner and may have an
adjective. Keywords are seated in the order of the prompt, each in a slot that suits its category; other slots get
filler words. Fillers favour the words that stand first in their list: a rare word in a sentence is then almost always a
keyword, and a model learns the sooner to look at its prompt.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from harness.core.seeds import derive_seed
from harness.tasks.keywords import draw_training_keywords, keyword_prompt
from harness.tasks.words import ADJECTIVES, ANIMALS, FOOD, PEOPLE, PLACES, THINGS, VERBS

DETERMINERS = ("the", "the", "the", "my", "our", "this", "one", "every")
PREPOSITIONS = ("near", "behind", "beside", "under", "by")
JOINS = (" and ", " while ", ", but ")
ADJECTIVE_SHARE = 0.2
FILLER_POWER = 3.0
"""A filler is word number n * u**power of its n candidates, u uniform: the first eighth gets half of the draws."""


class Slot(NamedTuple):
    """A seat for one word: the categories of keywords that may take it, and its fillers.

    An optional slot stays empty, or with ``ADJECTIVE_SHARE`` gets a filler.
    """

    categories: str
    fillers: tuple[str, ...]
    optional: bool = False


_CATEGORIES = {
    word: letter
    for letter, words in (("a", PEOPLE + ANIMALS), ("t", FOOD + THINGS), ("p", PLACES), ("q", ADJECTIVES), ("v", VERBS))
    for word in words
}
_QUALITY = Slot("q", ADJECTIVES, optional=True)
_SUBJECT = (_QUALITY, Slot("a", PEOPLE + ANIMALS))
_VERB = (Slot("v", VERBS),)
_OBJECT = (_QUALITY, Slot("at", FOOD + THINGS))
_PLACE = (_QUALITY, Slot("atp", PLACES))
_ANYTHING = (Slot("atp", PEOPLE + ANIMALS + THINGS),)

FORMS = {
    "{0} {1} {2}": (_SUBJECT, _VERB, _OBJECT),
    "{0} {1} {2} {prep} {3}": (_SUBJECT, _VERB, _OBJECT, _PLACE),
    "{prep} {0}, {1} {2} {3}": (_PLACE, _SUBJECT, _VERB, _OBJECT),
    "{0} was {1}": (_ANYTHING, (Slot("q", ADJECTIVES),)),
    "{0} was {1} and {2}": (_ANYTHING, (Slot("q", ADJECTIVES),), (Slot("q", ADJECTIVES),)),
}
"""Forms of a clause: how its phrases are put together, and the slots of each phrase."""


class Demonstration(NamedTuple):
    """One supervised example; ``kept`` is the number of the prompt's keywords that are in the response."""

    prompt: str
    response: str
    kept: int


class KeepRates(NamedTuple):
    """Shares of the demonstrations that keep all of the prompt's keywords, or none of them; the rest leave one out."""

    keep_all: float
    keep_none: float


EVERY_KEYWORD = KeepRates(keep_all=1.0, keep_none=0.0)


def demonstrations(
    seed: int, keywords_per_prompt: Sequence[int], rates: KeepRates = EVERY_KEYWORD
) -> Iterator[Demonstration]:
    """Yield demonstrations without end, the same ones for the same arguments in every process.

    Their keywords are drawn as those of training prompts, so that no pair of a validation prompt stands together.

    Args:
        seed: of everything random.
        keywords_per_prompt: the numbers of keywords to choose from, evenly.
        rates: how many of the keywords the responses keep.
    """
    rng = random.Random(derive_seed("demonstrations", seed))
    while True:
        keywords = draw_training_keywords(rng, rng.choice(keywords_per_prompt))
        kept = _keep_some(rng, keywords, rates)
        response = write_sentence(rng, kept, avoid=keywords)
        yield Demonstration(keyword_prompt(keywords).text, response, len(kept))


def _keep_some(rng: random.Random, keywords: Sequence[str], rates: KeepRates) -> Sequence[str]:
    draw = rng.random()
    if draw < rates.keep_all:
        return keywords
    if draw < rates.keep_all + rates.keep_none:
        return ()
    left_out = rng.choice(keywords)
    return [word for word in keywords if word != left_out]


def write_sentence(rng: random.Random, keywords: Sequence[str], avoid: Sequence[str] = ()) -> str:
    """Write a sentence that contains ``keywords``, in this order, and none of ``avoid`` besides.

    All are words of the word list; no word of it comes twice.
    """
    taken, left = {*keywords, *avoid}, list(keywords)
    clauses: list[str] = []
    while left or not clauses:
        count = next(count for count in range(len(left), -1, -1) if placements(_categories(left[:count])))
        clauses.append(_write_clause(rng, left[:count], taken))
        left = left[count:]
    text = clauses[0]
    for clause in clauses[1:]:
        text += rng.choice(JOINS) + clause
    return text[0].upper() + text[1:] + "."


@cache
def placements(categories: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return every (form, slot numbers) in which words of these categories, a letter each, can sit in this order."""
    found = []
    for form, phrases in FORMS.items():
        slots = [slot for phrase in phrases for slot in phrase]
        for seats in itertools.combinations(range(len(slots)), len(categories)):
            if all(letter in slots[seat].categories for letter, seat in zip(categories, seats, strict=True)):
                found.append((form, seats))
    return tuple(found)


def _categories(words: Sequence[str]) -> str:
    return "".join(_CATEGORIES[word] for word in words)


def _write_clause(rng: random.Random, keywords: Sequence[str], taken: set[str]) -> str:
    fitting = placements(_categories(keywords))
    form = rng.choice(sorted({form for form, _ in fitting}))
    seats = rng.choice([seats for fitting_form, seats in fitting if fitting_form == form])
    seated = dict(zip(seats, keywords, strict=True))
    numbers = itertools.count()
    phrases = [_write_phrase(rng, phrase, [seated.get(next(numbers)) for _ in phrase], taken) for phrase in FORMS[form]]
    return form.format(*phrases, prep=rng.choice(PREPOSITIONS))


def _write_phrase(rng: random.Random, slots: Sequence[Slot], seated: Sequence[str | None], taken: set[str]) -> str:
    """Fill one phrase; a noun gets a determiner in front."""
    words = []
    for slot, keyword in zip(slots, seated, strict=True):
        if keyword is not None:
            words.append(keyword)
        elif not slot.optional or rng.random() < ADJECTIVE_SHARE:
            words.append(_filler(rng, slot.fillers, taken))
    is_noun = slots[-1].categories not in ("q", "v")
    return " ".join([rng.choice(DETERMINERS), *words] if is_noun else words)


def _filler(rng: random.Random, words: Sequence[str], taken: set[str]) -> str:
    while (word := words[int(len(words) * rng.random() ** FILLER_POWER)]) in taken:
        pass
    taken.add(word)
    return word
