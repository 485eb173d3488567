"""Which tokens end a response, where a stop string ends, and what text a response has. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.core.errors import UserError
from harness.core.protocols import Tokenizer

_REPLACEMENT = "\ufffd"


def decode_text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of a response, special tokens left out."""
    return tokenizer.decode(token_ids, skip_special_tokens=True)


def split_stop(tokenizer: Tokenizer, stop: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return which tokens end a response by themselves, and which texts are looked for.

    A stop string that is a special or an added token of the tokenizer is that token. Special tokens have no text; the
    text of another added token, and that of a token of the vocabulary, may also come of other tokens.

    Raises:
        UserError: a stop string is empty, or holds a special token and something beside it.
    """
    added: dict[str, int] = tokenizer.get_added_vocab() if hasattr(tokenizer, "get_added_vocab") else {}
    if "" in stop:
        raise UserError("a stop string is empty: it would end every response at once", "sampling.stop", "remove it")
    named = [name for name in added if any(name in text for text in stop)]
    special = sorted((name for name in named if not decode_text(tokenizer, [added[name]])), key=len, reverse=True)
    for text in stop:
        inside = [name for name in special if name in text]
        if inside and text not in added:
            raise UserError(
                f"the stop string {text!r} is never found: the special token {inside[0]!r} is no part of a text",
                "sampling.stop",
                f"write that token alone, [{json.dumps(inside[0])}]: a response ends with it",
            )
    return tuple(added[text] for text in stop if text in added), tuple(text for text in stop if text not in special)


class SpecialTokens:
    """The special tokens of a tokenizer that may stand within a response: all but those that end it."""

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int]) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._tokenizer, self._ends = tokenizer, frozenset(ends)
        self._within = frozenset(token_id for token_id, token in added.items() if token.special) - self._ends

    def are_in(self, token_ids: Sequence[int]) -> bool:
        """Whether a response holds one, which its text leaves out."""
        return not self._within.isdisjoint(token_ids)

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of a response with them; those that end it are left out."""
        return self._tokenizer.decode([each for each in token_ids if each not in self._ends], skip_special_tokens=False)


class StopStrings:
    """Tells which tokens end a response, and whether a row's newest token completes a stop string.

    A token can complete one only if its own text holds the last character of a stop string, or is an incomplete
    character, which decodes to U+FFFD. Only then is the whole response decoded, so that characters of several bytes and
    strings of several tokens come out right. Whitespace at the start of a text is dropped by some tokenizers, so a stop
    string that ends in whitespace makes every token a suspect.

    Args:
        stop: the strings.
        min_tokens: a stop string completed within so many tokens is ignored, for good.
        ends: the end tokens of the policy.
        vocab_size: tokens that the model knows, where it may be fewer than the tokenizer does.

    Attributes:
        ends: the tokens that end a response: those of the policy, and the stop strings that are one token.
        texts: the stop strings that are looked for in the text.

    Raises:
        UserError: see ``split_stop``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        min_tokens: int = 0,
        ends: Sequence[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        tokens, self.texts = split_stop(tokenizer, stop)
        known = (token for token in (*ends, *tokens) if vocab_size is None or token < vocab_size)
        self.ends = tuple(dict.fromkeys(known))
        self._tokenizer, self._min_tokens = tokenizer, min_tokens
        self._last_characters = {text[-1] for text in self.texts}
        self._always_suspect = any(character.isspace() for character in self._last_characters)
        self._suspects: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.texts)

    def is_suspect(self, token_id: int) -> bool:
        """Whether this token could complete a stop string."""
        known = self._suspects.get(token_id)
        if known is None:
            text = self._tokenizer.decode([token_id], skip_special_tokens=True)
            known = self._always_suspect or _REPLACEMENT in text or not self._last_characters.isdisjoint(text)
            self._suspects[token_id] = known
        return known

    def is_completed_by_last(self, token_ids: Sequence[int]) -> bool:
        """As ``completed_by_last``, at the cost of decoding only where the last token could complete one."""
        return bool(self.texts) and self.is_suspect(token_ids[-1]) and self.completed_by_last(token_ids)

    def completed_by_last(self, token_ids: Sequence[int]) -> bool:
        """Whether a response, in which no stop string was complete one token ago, now holds one."""
        text, ignored = decode_text(self._tokenizer, token_ids), 0
        if self._min_tokens:  # it must end behind the characters of so many tokens
            ignored = len(decode_text(self._tokenizer, token_ids[: self._min_tokens]).rstrip(_REPLACEMENT))
        return any(text.find(stop, max(0, ignored - len(stop) + 1)) >= 0 for stop in self.texts)
