"""The word list: its size, and that no word hides in another."""

from harness.tasks import words
from harness.tasks.grammar import DETERMINERS, FORMS, JOINS, PREPOSITIONS
from harness.tasks.words import ADJECTIVES, NOUNS, VERBS, WORDS


def test_there_are_400_words() -> None:
    sizes = [len(getattr(words, name)) for name in ("PEOPLE", "ANIMALS", "FOOD", "THINGS", "PLACES")]
    assert sizes == [32, 40, 48, 80, 40]
    assert (len(NOUNS), len(ADJECTIVES), len(VERBS), len(WORDS), len(set(WORDS))) == (240, 96, 64, 400, 400)


def test_words_are_plain_lower_case_and_occur_in_no_other_word() -> None:
    assert [word for word in WORDS if not (word.isascii() and word.isalpha() and word.islower())] == []
    assert [(short, long) for short in WORDS for long in WORDS if short != long and short in long] == []
    between = " ".join([*DETERMINERS, *PREPOSITIONS, *JOINS, *FORMS])
    assert [word for word in WORDS if word in between] == []
