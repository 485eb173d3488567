"""Reward functions that need nothing but text, so that the maths and the tasks can both offer them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import UserError


def keyword_inclusion_reward_fn(response: str, keywords: str | Sequence[str]) -> float:
    """Return 1.0 if every keyword occurs in the response, else 0.0.

    Upper and lower case count as the same. A keyword occurs wherever its letters do, also inside a longer word.

    Args:
        response: what the policy wrote.
        keywords: the words, in one text with commas between them, or as a list.

    Raises:
        UserError: no keyword is left once blanks are dropped; every response would be rewarded.
    """
    listed = keywords.split(",") if isinstance(keywords, str) else keywords
    wanted = [word.strip().casefold() for word in listed if word.strip()]
    if not wanted:
        raise UserError(
            f"the keywords are {keywords!r}: no word among them; at least 1 is needed",
            where="keyword_inclusion_reward_fn",
            fix="give the words as 'apple, red' or as ['apple', 'red']",
        )
    folded = response.casefold()
    return 1.0 if all(word in folded for word in wanted) else 0.0
