"""Log-probabilities and entropies of tokens under a model's logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from harness.core.errors import UserError
from harness.grpo.masking import at_least_float32, shape_of


class ModelOutput(Protocol):
    """What a causal language model returns, as in transformers."""

    @property
    def logits(self) -> Tensor: ...


def compute_entropy(logits: Tensor) -> Tensor:
    """Return the entropy, in nats, of the distribution the logits stand for: -sum(p * log p), p = softmax(logits).

    log p is logits - logsumexp(logits), taken after subtracting the largest logit, so that large ones lose no digits.
    A logit of minus infinity, a token that cannot be sampled, adds nothing.

    Args:
        logits: (..., V), any float type.

    Returns:
        (...), float32 at least.
    """
    return _entropy(_log_softmax(logits, 1.0))


def log_probs_from_logits(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log softmax(logits / temperature) at the labels.

    The backward pass keeps one tensor of the logits' size. It is not the logits themselves, so they may be freed.

    Args:
        logits: (..., V), any float type.
        labels: (...), token ids, int64.
        temperature: above 0, the one that the tokens were sampled with.

    Returns:
        (...), float32 at least.

    Raises:
        UserError: the shapes do not match, or the temperature is not above 0.
    """
    return _select(_log_softmax(logits, temperature), labels)


def log_probs_and_entropy(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return ``log_probs_from_logits`` and, from the same softmax, the entropy (...) as a figure without gradient."""
    log_softmax = _log_softmax(logits, temperature)
    return _select(log_softmax, labels), _entropy(log_softmax.detach())


def get_response_log_probs(
    model: Callable[[Tensor], ModelOutput],
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
    log_softmax = _log_softmax(model(input_ids).logits, temperature)
    result = {"log_probs": _select(log_softmax, labels)}
    if return_token_entropy:
        result["token_entropy"] = _entropy(log_softmax)
    return result


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise UserError(
            f"temperature is {temperature}, it must be above 0: greedy sampling has no log-probabilities to train on",
            where="temperature",
            fix="set the sampling temperature to 1.0",
        )
    logits = at_least_float32(logits)
    return (logits if temperature == 1 else logits / temperature).log_softmax(dim=-1)


def _select(log_softmax: Tensor, labels: Tensor) -> Tensor:
    if log_softmax.shape[:-1] != labels.shape:
        raise UserError(
            f"logits {shape_of(log_softmax)} need labels {tuple(log_softmax.shape[:-1])}, got {shape_of(labels)}"
        )
    return log_softmax.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def _entropy(log_softmax: Tensor) -> Tensor:
    finite = log_softmax.clamp(min=torch.finfo(log_softmax.dtype).min)  # 0 * -inf would be NaN
    return -(log_softmax.exp() * finite).sum(dim=-1)
