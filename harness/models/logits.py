"""Log-probabilities from hidden states, without ever holding the logits of all tokens at once.

With a vocabulary of 151,936 the logits of 4,096 tokens are 2.5 GB in float32, and log-softmax and its gradient make
several of them. So tokens are scored piece by piece, and each piece's logits are computed again on the way back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from harness.models.activations import MAX_LOGITS
from harness.models.scoring import score_tokens

PLAIN_HEADS = ("llama", "mistral", "qwen2", "qwen3")
"""Model types of transformers whose logits are the output matrix times the last hidden states, and nothing else."""


def score_hidden(
    hidden_MC: Tensor,
    weight_VC: Tensor,
    token_ids_M: Tensor,
    temperature: float,
    with_entropy: bool,
    *,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor | None]:
    """Score tokens as ``scoring.score_tokens`` does, from hidden states and the output matrix.

    Tokens that fit into ``max_logits`` are scored at once and nothing is computed twice.

    Args:
        hidden_MC: the last layer's normed output where each token is predicted.
        weight_VC: turns it into logits.
        token_ids_M: the tokens.
        temperature: divides the logits.
        with_entropy: also return the entropies.
        max_logits: most logits held at a time.

    Returns:
        Log-probabilities (M,), and entropies (M,) or None.
    """
    rows = max(1, max_logits // weight_VC.shape[0])
    if len(token_ids_M) <= rows:
        return score_tokens(F.linear(hidden_MC, weight_VC), token_ids_M, temperature, with_entropy)
    scores = [
        checkpoint(_score, hidden, weight_VC, token_ids, temperature, with_entropy, use_reentrant=False)
        for hidden, token_ids in zip(hidden_MC.split(rows), token_ids_M.split(rows), strict=True)
    ]
    log_probs_M = torch.cat([log_probs for log_probs, _ in scores])
    return log_probs_M, torch.cat([entropy for _, entropy in scores]) if with_entropy else None


def _score(
    hidden: Tensor, weight_VC: Tensor, token_ids: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    return score_tokens(F.linear(hidden, weight_VC), token_ids, temperature, with_entropy)


def has_plain_head(model: nn.Module) -> bool:
    """Whether a model of transformers makes its logits of the last hidden states and its output matrix alone.

    Others scale or cap their logits, or add a bias to them.
    """
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind in PLAIN_HEADS and head is not None and getattr(head, "bias", None) is None
