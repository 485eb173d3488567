"""This project's own answer to a step, from the same functions that train."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.grpo.advantages import DELTAS, deltas_per_group
from harness.grpo.aggregate import loss_denominator, prompt_tokens
from harness.grpo.loss import surrogate_loss
from harness.grpo.tokens import TokenBatch
from harness.oracle.peers.common import gradient_of
from harness.oracle.step import Step


@dataclass(frozen=True)
class Own:
    """Loss, its gradient for each token in the loss (then for each entropy), and the advantage of each rollout.

    Advantages are None where the delta is a user's own.
    """

    loss: float
    gradient: Tensor
    advantages: Tensor | None


def ours(step: Step) -> Own:
    """Compute loss and gradient from the recorded advantages in float64 (token weights are float32, as in training),
    and the advantages from the rewards."""
    tensors, options = step.tensors, step.header.loss
    mask_BT, rows_B = tensors["mask"].bool(), tensors["rows"]
    group_B = torch.unique(tensors["group"][rows_B], return_inverse=True)[1]
    denominator = loss_denominator(mask_BT, options.aggregation, options.constant, group_B)
    weights_BT = denominator.token_weights(mask_BT, prompt_tokens(mask_BT, group_B))
    log_probs = tensors["log_probs"].double().requires_grad_(True)
    entropy = tensors["entropy"].double().requires_grad_(True) if "entropy" in tensors else None
    further = {name: tensors[name].double() for name in ("reference_log_probs", "engine_log_probs") if name in tensors}
    tokens = TokenBatch(
        log_probs,
        mask_BT,
        raw_rewards=tensors["rewards"].double()[rows_B][:, None],
        advantages=tensors["advantages"].double()[rows_B][:, None],
        old_log_probs=tensors["old_log_probs"].double(),
        entropy=entropy,
        **further,
    )
    loss, _ = surrogate_loss(tokens, weights_BT, options.settings())
    gradient = gradient_of(loss, log_probs, entropy, mask_BT)
    return Own(float(loss.detach()), gradient, advantages(step))


def advantages(step: Step) -> Tensor | None:
    """Return the advantage of each rollout, (N,) float64, from the rewards of its group."""
    options, groups = step.header.advantage, dict[int, list[float]]()
    if options.delta not in DELTAS:
        return None
    for group, reward in zip(step.tensors["group"].tolist(), step.tensors["rewards"].tolist(), strict=True):
        groups.setdefault(group, []).append(reward)
    return deltas_per_group(list(groups.values()), options.delta, options.eps).double()
