"""What no engine can serve, and why. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import UserError
from harness.core.types import SamplingParams


def check_sampling(sampling: SamplingParams, num_samples: int) -> None:
    """Refuse sampling parameters outside their bounds.

    Raises:
        UserError: with the value, the bound and the key.
    """
    most, fewest, pinned = sampling.max_tokens, sampling.min_tokens, sampling.pinned_lengths
    in_order = f"two numbers from 1 to max_tokens, which is {most}, the smaller one first"
    rules = (
        ("num_samples", num_samples, num_samples >= 1, "at least 1"),
        ("temperature", sampling.temperature, 0 <= sampling.temperature < float("inf"), "0 (greedy) or more"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("max_tokens", most, most >= 1, "at least 1"),
        ("min_tokens", fewest, 0 <= fewest <= most, f"from 0 to max_tokens, which is {most}"),
        ("pinned_lengths", pinned, pinned is None or 1 <= pinned[0] <= pinned[1] <= most, in_order),
    )
    for name, value, holds, bound in rules:
        if not holds:
            key = "group_size" if name == "num_samples" else f"sampling.{name}"
            raise UserError(f"{name} is {value}, must be {bound}", key, f"set {key} within its bounds")


def _check_known(tokens: Sequence[int], vocab_size: int, where: str, more: str = "") -> None:
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        what = f"token ids from {min(tokens)} to {max(tokens)}, the model knows 0 to {vocab_size - 1}"
        raise UserError(what, where, f"encode it with the model's own tokenizer{more}")


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
        _check_known(prompt, vocab_size, where, ", without added tokens that the model has no row for")
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

    ``room`` is for tokens that the engine samples behind them.

    Raises:
        UserError: names the response by its index, and gives the numbers.
    """
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        where, tokens = f"response {index} of those to score", [*prompt, *response]
        if not len(prompt) or not len(response):
            raise UserError("the prompt or the response has no tokens", where, "give each at least one token")
        _check_known(tokens, vocab_size, where)
        if context_length is not None and len(tokens) + room > context_length:
            behind = f" and {room} behind them" if room else ""
            raise UserError(
                f"{len(tokens)} tokens with its prompt{behind}, the model's context holds {context_length}",
                where,
                f"shorten it to at most {max(0, context_length - room - len(prompt))} tokens",
            )
