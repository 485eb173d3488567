"""ms-swift: ``compute_advantages``."""

from __future__ import annotations

import torch
from torch import Tensor

from .common import Advantages, NoCounterpart, Options, Peer, Step, named
from .of_trl import SCALES


def words(loss: Options) -> Options:
    """Refuse: there is no loss to call."""
    raise NoCounterpart("the loss")


def load() -> Peer:
    """Import ms-swift."""
    from swift.rl_core.advantage import compute_advantages

    def advantages(step: Step, options: Options) -> Tensor:
        made: Tensor = compute_advantages(step.rewards[:, None], torch.ones(1), step.group_size, **options)[0]
        return made

    def scale(step: Step) -> Options:
        return {"scale_rewards": named(step.advantage["delta"], SCALES, "advantage")}

    of = Advantages("advantages", scale, advantages)
    return Peer(no_loss="its loss is a part of its trainer", advantages=(of,))
