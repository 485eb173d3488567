"""Refusing a generation request that cannot be served, and finding where a stop string ends.

No torch.
"""

from __future__ import annotations

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
