"""OpenRLHF: ``PolicyLoss``."""

from __future__ import annotations

import inspect

from torch import Tensor

from .common import Absent, NoCounterpart, Options, Peer, Step, named, none_but


def words(loss: Options) -> Options:
    """Return a step's loss as arguments of ``PolicyLoss``."""
    none_but(loss)
    by_token = named(loss["aggregation"], {"token_mean": True, "sequence_mean": False}, "aggregation")
    clip = {"clip_eps_low": loss["clip_low"], "clip_eps_high": loss["clip_high"], "dual_clip": loss["dual_clip"]}
    return {"token_level_loss": by_token, **clip}


def load() -> Peer:
    """Import OpenRLHF."""
    Absent("flash_attn", "vllm", "deepspeed", "ring_flash_attn")
    from openrlhf.models.loss import PolicyLoss

    usual = inspect.signature(PolicyLoss.__init__).parameters

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.ranks * step.microbatches > 1 or step.packed:
            raise NoCounterpart("microbatches")
        made: Tensor = PolicyLoss(**options)(
            log_probs, step.old, step.advantages_BT, step.mask, global_batch_size=len(step.mask)
        )[0]
        return made

    names = "token_level_loss", "clip_eps_low", "clip_eps_high", "dual_clip"
    defaults = {name: usual[name].default for name in names}
    return Peer(loss=loss, defaults=defaults, entry=PolicyLoss.forward)
