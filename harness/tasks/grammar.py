"""A small grammar that writes the demonstrations of the warm start.

A sentence has one or more clauses. A clause is ``subject verb object``, with a place before or after it, or
``subject was adjective``; each noun has a determiner and sometimes an adjective. Given keywords are seated where they
fit, every other seat gets a random word. Those fillers favour the words that stand first in their list: a rare word in
a sentence is then almost always a keyword, and a model learns the sooner to look at its prompt.

Part of the demonstrations leave keywords out on purpose. A policy that imitates them perfectly therefore earns about
``keep_all`` as its reward, not 1: that is where GRPO begins.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.seeds import derive_seed
from harness.tasks.keywords import draw_training_keywords, keyword_prompt
from harness.tasks.words import ADJECTIVES, ANIMALS, FOOD, NOUNS, PEOPLE, PLACES, THINGS, VERBS

DETERMINERS = ("the", "the", "the", "my", "our", "this", "one", "every")
PREPOSITIONS = ("near", "behind", "beside", "under", "by")
JOINS = (" and ", " while ", ", but ")
NOUNS_PER_CLAUSE = 3
PLACE_SHARE = 0.35
PLACE_FIRST_SHARE = 0.3
ADJECTIVE_SHARE = 0.2
WAS_SHARE = 0.4
FILLER_POWER = 3.0
"""A filler is word number n * u**power of its n candidates, u uniform: the first eighth gets half of the draws."""

_SEATS = {
    **dict.fromkeys(PEOPLE + ANIMALS, ("subject", "object", "place")),
    **dict.fromkeys(FOOD + THINGS, ("object", "place", "subject")),
    **dict.fromkeys(PLACES, ("place", "object", "subject")),
}
_USUAL_NOUNS = {"subject": PEOPLE + ANIMALS, "object": FOOD + THINGS, "place": PLACES}


class Demonstration(NamedTuple):
    """One supervised example; ``kept`` is the number of the prompt's keywords that the response contains."""

    prompt: str
    response: str
    kept: int


@dataclass(frozen=True, slots=True)
class KeepRates:
    """Shares of the demonstrations by what they do with the prompt's keywords: all, none, else one left out."""

    keep_all: float = 0.4
    keep_none: float = 0.1


def demonstrations(seed: int, keywords_per_prompt: Sequence[int], rates: KeepRates) -> Iterator[Demonstration]:
    """Yield demonstrations without end, the same ones for the same arguments in every process.

    Their keywords are drawn as those of training prompts, so that no pair of a validation prompt stands together.

    Args:
        seed: of everything random.
        keywords_per_prompt: the numbers of keywords to choose from, evenly.
        rates: how many keywords the responses keep.
    """
    rng = random.Random(derive_seed("demonstrations", seed))
    while True:
        keywords = draw_training_keywords(rng, rng.choice(keywords_per_prompt))
        kept = _drop_some(rng, keywords, rates)
        response = write_sentence(rng, kept, avoid=set(keywords))
        yield Demonstration(keyword_prompt(keywords).text, response, len(kept))


def write_sentence(rng: random.Random, keywords: Sequence[str], avoid: Collection[str] = ()) -> str:
    """Write a sentence that contains ``keywords`` (words of the word list), and none of ``avoid`` besides."""
    nouns = [word for word in keywords if word in _SEATS]
    verbs = [word for word in keywords if word in VERBS]
    adjectives = [word for word in keywords if word not in nouns and word not in verbs]
    clauses = max(1, len(verbs), *(math.ceil(len(words) / NOUNS_PER_CLAUSE) for words in (nouns, adjectives)))
    clause = _Clause(rng, {*keywords, *avoid})
    written = [clause.write(nouns[i::clauses], verbs[i::clauses], adjectives[i::clauses]) for i in range(clauses)]
    text = written[0]
    for further in written[1:]:
        text += rng.choice(JOINS) + further
    return text[0].upper() + text[1:] + "."


def _drop_some(rng: random.Random, keywords: Sequence[str], rates: KeepRates) -> tuple[str, ...]:
    draw = rng.random()
    if draw < rates.keep_all:
        return tuple(keywords)
    if draw < rates.keep_all + rates.keep_none:
        return ()
    left_out = rng.randrange(len(keywords))
    return tuple(word for i, word in enumerate(keywords) if i != left_out)


class _Clause:
    """Writes clauses of up to three keyword nouns, one verb and three adjectives; no other word comes twice."""

    def __init__(self, rng: random.Random, taken: set[str]) -> None:
        self._rng, self._taken = rng, taken

    def write(self, nouns: Sequence[str], verbs: Sequence[str], adjectives: Sequence[str]) -> str:
        rng = self._rng
        if not verbs and len(nouns) <= 1 and 1 <= len(adjectives) <= 2 and rng.random() < WAS_SHARE:
            return self._noun_phrase(nouns[0] if nouns else self._word(NOUNS)) + " was " + " and ".join(adjectives)
        seated = self._seat(nouns)
        if "place" in seated or len(adjectives) == NOUNS_PER_CLAUSE or rng.random() < PLACE_SHARE:
            used = ["subject", "object", "place"]
        else:
            used = ["subject", "object"]
        described = dict(zip(rng.sample(used, len(adjectives)), adjectives, strict=True))
        phrases = {
            seat: self._noun_phrase(seated.get(seat) or self._word(_USUAL_NOUNS[seat]), described.get(seat))
            for seat in used
        }
        core = f"{phrases['subject']} {verbs[0] if verbs else self._word(VERBS)} {phrases['object']}"
        if "place" not in phrases:
            return core
        where = f"{rng.choice(PREPOSITIONS)} {phrases['place']}"
        return f"{where}, {core}" if rng.random() < PLACE_FIRST_SHARE else f"{core} {where}"

    def _seat(self, nouns: Sequence[str]) -> dict[str, str]:
        """Give each noun the first free seat that it likes."""
        seated: dict[str, str] = {}
        for noun in nouns:
            seated[next(seat for seat in _SEATS[noun] if seat not in seated)] = noun
        return seated

    def _noun_phrase(self, noun: str, adjective: str | None = None) -> str:
        if adjective is None and self._rng.random() < ADJECTIVE_SHARE:
            adjective = self._word(ADJECTIVES)
        words = (self._rng.choice(DETERMINERS), adjective, noun)
        return " ".join(word for word in words if word)

    def _word(self, words: Sequence[str]) -> str:
        while (word := words[int(len(words) * self._rng.random() ** FILLER_POWER)]) in self._taken:
            pass
        self._taken.add(word)
        return word
