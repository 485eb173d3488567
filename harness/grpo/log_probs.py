"""Log-probabilities and entropies of tokens under a model's logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.masking import at_least_float32, shape_of


def compute_entropy(logits: Tensor) -> Tensor:
    """Return the entropy, in nats, of the distribution the logits stand for: -sum(p * log p), p = softmax(logits).

    log p is logits - logsumexp(logits), taken after subtracting the largest logit, so that large ones lose no digits.
    A logit of minus infinity, a token that cannot be sampled, adds nothing.

    Args:
        logits: (..., V), any float type.

    Returns:
        (...), float32 at least.
    """
    return entropy_of(log_softmax(logits))


def get_response_log_probs(
    model: Callable[[Tensor], Any],
    input_ids: Tensor,
    labels: Tensor,
    return_token_entropy: bool = False,
    *,
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """Return the log-probability that the model gives each label.

    Runs the model as the caller set it up: gradient mode, autocast and train/eval mode are the caller's. Prompt and
    padding positions are filled too; the response mask leaves them out later.

    Args:
        model: called as ``model(input_ids)``, returns an object with ``.logits`` (B, T, V).
        input_ids: (B, T), from ``tokenize_prompt_and_output``, right-padded: a causal model needs no attention mask.
        labels: (B, T), the next token at each position.
        return_token_entropy: whether to return the entropy of each position's distribution too.
        temperature: above 0, the one that the tokens were sampled with; the entropy is that of this distribution.

    Returns:
        ``log_probs`` (B, T) and, if asked for, ``token_entropy`` (B, T), both float32 at least. Detach the entropy
        unless it is part of the loss.

    Raises:
        UserError: the shapes do not match, or the temperature is not above 0.
    """
    log_probs = log_softmax(model(input_ids).logits, temperature)
    result = {"log_probs": select(log_probs, labels)}
    if return_token_entropy:
        result["token_entropy"] = entropy_of(log_probs)
    return result


def log_softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits / temperature), (..., V), float32 at least.

    Its backward pass keeps one tensor of this size. It is not the logits themselves, so they may be freed.

    Raises:
        UserError: the temperature is not above 0.
    """
    if not temperature > 0:
        raise UserError(
            f"temperature is {temperature}, it must be above 0: greedy sampling has no log-probabilities to train on",
            where="temperature",
            fix="set the sampling temperature to 1.0",
        )
    logits = at_least_float32(logits)
    return (logits if temperature == 1 else logits / temperature).log_softmax(dim=-1)


def select(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability (...) of each label among those of all tokens (..., V).

    Raises:
        UserError: the shapes do not match.
    """
    if log_probs.shape[:-1] != labels.shape:
        raise UserError(
            f"logits {shape_of(log_probs)} need labels {tuple(log_probs.shape[:-1])}, got {shape_of(labels)}"
        )
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def entropy_of(log_probs: Tensor) -> Tensor:
    """Return the entropy (...) of distributions given by the log-probabilities of all tokens (..., V)."""
    entropy: Tensor = _Entropy.apply(log_probs)  # type: ignore[no-untyped-call]
    return entropy


class _Entropy(torch.autograd.Function):
    """H with dH / dlog p = -p (1 + log p); keeps the log-probs only, which log-softmax does too."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor) -> Tensor:
        ctx.save_for_backward(log_probs)
        return log_probs.exp().mul_(_finite(log_probs)).sum(-1).neg_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        log_probs: Tensor = ctx.saved_tensors[0]
        return log_probs.exp().mul_(_finite(log_probs).add_(1)).mul_(-gradient[..., None])


def _finite(log_probs: Tensor) -> Tensor:
    """A token of probability 0 adds nothing, where 0 * -inf would be NaN."""
    return log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
