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
    most, pinned = sampling.max_tokens, sampling.pinned_lengths
    rules = (
        (num_samples >= 1, num_samples, "at least 1", "group_size"),
        (0 <= sampling.temperature < float("inf"), sampling.temperature, "0 (greedy) or more", "sampling.temperature"),
        (0 < sampling.top_p <= 1, sampling.top_p, "above 0 and at most 1", "sampling.top_p"),
        (most >= 1, most, "at least 1", "sampling.max_tokens"),
        (
            0 <= sampling.min_tokens <= most,
            sampling.min_tokens,
            f"from 0 to max_tokens, which is {most}",
            "sampling.min_tokens",
        ),
        (
            pinned is None or 1 <= pinned[0] <= pinned[1] <= most,
            pinned,
            f"two numbers from 1 to max_tokens, which is {most}, the smaller one first",
            "sampling.pinned_lengths",
        ),
    )
    for holds, value, bound, key in rules:
        if not holds:
            name = "num_samples" if key == "group_size" else key.removeprefix("sampling.")
            raise UserError(f"{name} is {value}, must be {bound}", key, f"set {key} within its bounds")


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

    ``room`` is for tokens that the engine samples behind them.

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
