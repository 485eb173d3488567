"""Finding the token that completes a stop string, without decoding every response at every step."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import UserError
from harness.core.protocols import Tokenizer

_REPLACEMENT = "\ufffd"


def decode_text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of a response, special tokens left out."""
    return tokenizer.decode(token_ids, skip_special_tokens=True)


class StopStrings:
    """Tells whether a row's newest token completes a stop string.

    A token can complete one only if its own text holds the last character of a stop string, or is an incomplete
    character, which decodes to U+FFFD. Only then is the whole response decoded, so that characters of several bytes and
    strings of several tokens come out right. Whitespace at the start of a text is dropped by some tokenizers, so a stop
    string that ends in whitespace makes every token a suspect.

    Args:
        tokenizer: decodes token ids.
        stop: the strings; special tokens are not part of the text, so their names are never found.
        min_tokens: a stop string completed within so many tokens is ignored, for good.

    Raises:
        UserError: a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], min_tokens: int = 0) -> None:
        if "" in stop:
            raise UserError("a stop string is empty: it would end every response at once", "sampling.stop", "remove it")
        self._tokenizer, self._stop, self._min_tokens = tokenizer, tuple(stop), min_tokens
        self._last_characters = {text[-1] for text in stop}
        self._always_suspect = any(character.isspace() for character in self._last_characters)
        self._suspects: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._stop)

    def is_suspect(self, token_id: int) -> bool:
        """Whether this token could complete a stop string."""
        known = self._suspects.get(token_id)
        if known is None:
            text = self._tokenizer.decode([token_id], skip_special_tokens=True)
            known = self._always_suspect or _REPLACEMENT in text or not self._last_characters.isdisjoint(text)
            self._suspects[token_id] = known
        return known

    def completed_by_last(self, token_ids: Sequence[int]) -> bool:
        """Whether a response, in which no stop string was complete one token ago, now holds one."""
        text = decode_text(self._tokenizer, token_ids)
        ignored = self._ignored_length(token_ids)
        return any(text.find(stop, max(0, ignored - len(stop) + 1)) >= 0 for stop in self._stop)

    def _ignored_length(self, token_ids: Sequence[int]) -> int:
        """Characters of the first ``min_tokens`` tokens: a stop string must end behind them."""
        if not self._min_tokens:
            return 0
        return len(decode_text(self._tokenizer, token_ids[: self._min_tokens]).rstrip(_REPLACEMENT))
