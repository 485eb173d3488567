"""Refusing a generation request that cannot be served, and finding where a stop string ends.

No torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.core.errors import UserError
from harness.core.protocols import Tokenizer
from harness.core.types import SamplingParams


def check_sampling(sampling: SamplingParams, num_samples: int) -> None:
    """Refuse sampling parameters outside their bounds.

    Raises:
        UserError: with the value, the bound and the key.
    """
    rules = (
        (num_samples >= 1, f"num_samples is {num_samples}, must be at least 1", "group_size"),
        (
            0 <= sampling.temperature < float("inf"),
            f"temperature is {sampling.temperature}, must be 0 (greedy) or more",
            "sampling.temperature",
        ),
        (0 < sampling.top_p <= 1, f"top_p is {sampling.top_p}, must be above 0 and at most 1", "sampling.top_p"),
        (sampling.max_tokens >= 1, f"max_tokens is {sampling.max_tokens}, must be at least 1", "sampling.max_tokens"),
        (
            0 <= sampling.min_tokens <= sampling.max_tokens,
            f"min_tokens is {sampling.min_tokens}, must be from 0 to max_tokens, which is {sampling.max_tokens}",
            "sampling.min_tokens",
        ),
        (
            sampling.pinned_lengths is None or 1 <= sampling.pinned_lengths[0] <= sampling.pinned_lengths[1],
            f"pinned_lengths is {sampling.pinned_lengths}, must be two numbers from 1, the smaller one first",
            "sampling.pinned_lengths",
        ),
        (
            sampling.pinned_lengths is None or sampling.pinned_lengths[1] <= sampling.max_tokens,
            f"pinned_lengths is {sampling.pinned_lengths}, must end at most at max_tokens, which is "
            f"{sampling.max_tokens}",
            "sampling.pinned_lengths",
        ),
    )
    for holds, what, key in rules:
        if not holds:
            raise UserError(what, key, f"set {key} within its bounds")


def check_request(
    prompts: Sequence[Sequence[int]],
    num_samples: int,
    sampling: SamplingParams,
    vocab_size: int,
    context_length: int | None,
) -> None:
    """Refuse bad sampling parameters and prompts that are empty, hold unknown tokens, or leave no room to answer.

    Raises:
        UserError: names the prompt by its index, and gives the numbers.
    """
    check_sampling(sampling, num_samples)
    for index, prompt in enumerate(prompts):
        where = f"prompt {index} of the request"
        if not len(prompt):
            raise UserError("the prompt has no tokens", where, "give it at least one token to continue from")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise UserError(
                f"token ids from {min(prompt)} to {max(prompt)}, the model knows 0 to {vocab_size - 1}",
                where,
                "encode it with the model's own tokenizer, without added tokens that the model has no row for",
            )
        if context_length is not None and len(prompt) + sampling.max_tokens > context_length:
            raise UserError(
                f"{len(prompt)} prompt tokens and max_tokens {sampling.max_tokens} make "
                f"{len(prompt) + sampling.max_tokens}, the model's context holds {context_length}",
                where,
                f"shorten the prompt, or set sampling.max_tokens to at most {max(0, context_length - len(prompt))}",
            )


def check_scored(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    vocab_size: int,
    context_length: int | None,
    room: int = 0,
) -> None:
    """Refuse to score responses that are empty, hold unknown tokens, or are too long with their prompts.

    Args:
        prompts, responses: token ids.
        vocab_size: of the model.
        context_length: most tokens together; None: not known.
        room: tokens that the engine samples behind them.

    Raises:
        UserError: names the response by its index, and gives the numbers.
    """
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        where = f"response {index} of those to score"
        tokens = [*prompt, *response]
        if not len(prompt) or not len(response):
            raise UserError("the prompt or the response has no tokens", where, "give each at least one token")
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise UserError(
                f"token ids from {min(tokens)} to {max(tokens)}, the model knows 0 to {vocab_size - 1}",
                where,
                "encode it with the model's own tokenizer",
            )
        if context_length is not None and len(tokens) + room > context_length:
            behind = f" and {room} behind them" if room else ""
            raise UserError(
                f"{len(tokens)} tokens with its prompt{behind}, the model's context holds {context_length}",
                where,
                f"shorten it to at most {max(0, context_length - room - len(prompt))} tokens",
            )


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
    """The special tokens of a tokenizer that may stand within a response: all but those that end it.

    Args:
        tokenizer: names its special tokens, if it has any, in ``added_tokens_decoder``.
        ends: the tokens that end a response.
    """

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
        tokenizer: decodes token ids.
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
        text = decode_text(self._tokenizer, token_ids)
        ignored = self._ignored_length(token_ids)
        return any(text.find(stop, max(0, ignored - len(stop) + 1)) >= 0 for stop in self.texts)

    def _ignored_length(self, token_ids: Sequence[int]) -> int:
        """Characters of the first ``min_tokens`` tokens: a stop string must end behind them."""
        if not self._min_tokens:
            return 0
        return len(decode_text(self._tokenizer, token_ids[: self._min_tokens]).rstrip(_REPLACEMENT))
