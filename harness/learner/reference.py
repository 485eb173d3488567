"""The reference policy that KL is measured against: frozen, re-cloned, or averaged towards the policy."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from harness.settings.loss import KlSettings

Held = Callable[[Tensor], Tensor]
"""Returns the part of a parameter that this rank holds; see ``Ranks.held``."""


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy without gradients; tied weights stay tied."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def copy_weights(policy: nn.Module, into: nn.Module, held: Held) -> None:
    """Copy what this rank holds of a policy's parameters into another one, by name."""
    current = dict(policy.named_parameters())
    for name, parameter in into.named_parameters():
        held(parameter).copy_(held(current[name]))


class ReferencePolicy:
    """A copy of the policy that follows it by Polyak averaging (Polyak and Juditsky 1992; TR-DPO, arXiv:2404.09656).

    After every so many training steps, parameter by parameter, paired by name, tied ones once:

        reference <- (1 - alpha) * reference + alpha * policy

    in float32 at least. Where the parameters are bfloat16, in which a step of less than 1/512 of a weight is lost, the
    averages are kept beside them, and the model that scores is their rounding, of the policy's own type.

    A policy that is cut over ranks is averaged piece by piece, without the other ranks: both are cut alike.

    Args:
        model: a ``frozen_copy`` of the policy, cut over ranks as the policy is.
        kl: when and how far it follows: never, after each ``reclone_every`` training steps, or by its ``alpha`` after
            every one.
        held: what this rank holds of a parameter.

    Attributes:
        averages: by name, of the parameters whose type is too narrow for an average; what this rank holds.
        moves: whether it ever follows; else it stays the initial policy.
    """

    def __init__(self, model: nn.Module, kl: KlSettings, held: Held = lambda parameter: parameter) -> None:
        self.model, self._held = model, held
        self._every, self._alpha = kl.reclone_every, 1.0
        if kl.reference == "polyak":
            assert kl.alpha is not None  # a rule of the scenario
            self._every, self._alpha = 1, kl.alpha
        self.averages: dict[str, Tensor] = {}
        self.moves = self._every is not None
        if self.moves and self._alpha < 1:
            self.averages = {
                name: held(parameter).float()
                for name, parameter in self.model.named_parameters()
                if parameter.dtype in (torch.bfloat16, torch.float16)
            }

    def is_due(self, step: int) -> bool:
        """Whether the reference is updated after this training step, counted from 0."""
        return self._every is not None and (step + 1) % self._every == 0

    @torch.no_grad()
    def follow(self, policy: nn.Module, step: int) -> None:
        """Update the reference if it is due after this training step, counted from 0."""
        if not self.is_due(step):
            return
        current = dict(policy.named_parameters())
        for name, whole in self.model.named_parameters():
            parameter = self._held(whole)
            average = self.averages.get(name, parameter)
            average.lerp_(self._held(current[name]).to(average.dtype), self._alpha)
            if average is not parameter:
                parameter.copy_(average)
