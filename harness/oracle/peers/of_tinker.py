"""tinker-cookbook: ``compute_advantages``, which subtracts the mean.

Its losses are computed by a service: ``tinker.types.loss_fn_type`` has only their names, a custom loss is one's own.
The one loss that it ships as code is ``reverse_kl_custom_loss``, of a teacher's top tokens, which has no advantages.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from .common import Advantages, NoCounterpart, Options, Peer, Step, named


def words(loss: Options) -> Options:
    """Refuse: there is no loss to call."""
    raise NoCounterpart("the loss, which a remote service computes")


def load() -> Peer:
    """Import the cookbook."""
    from tinker_cookbook.rl.data_processing import compute_advantages

    def advantages(step: Step, _: Options) -> Tensor:
        groups = step.rewards.reshape(-1, step.group_size).tolist()
        return torch.cat(compute_advantages([SimpleNamespace(get_total_rewards=lambda r=r: r) for r in groups]))

    def mean_only(step: Step) -> Options:
        return dict(named(step.advantage["delta"], {"centered_rewards": {}}, "advantage"))

    of = Advantages("advantages", mean_only, advantages)
    return Peer(
        no_loss="its losses are computed by a remote service, and only their names are shipped", advantages=(of,)
    )
