"""AReaL: ``ppo_actor_loss_fn``."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from .common import Absent, NoCounterpart, Options, Peer, Step, named, none_but


def words(loss: Options) -> Options:
    """Return a step's loss as arguments of ``ppo_actor_loss_fn``."""
    none_but(loss)
    named(loss["aggregation"], {"token_mean": None}, "aggregation")
    return {"eps_clip": loss["clip_low"], "eps_clip_higher": loss["clip_high"], "c_clip": loss["dual_clip"]}


def load() -> Peer:
    """Import AReaL."""
    Absent("wandb", "swanlab", "trackio")
    from areal.api.cli_args import PPOActorConfig
    from areal.utils.functional.functional import ppo_actor_loss_fn

    usual = {field.name: field.default for field in dataclasses.fields(PPOActorConfig)}

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.ranks * step.microbatches > 1 or step.packed:
            raise NoCounterpart("microbatches")
        made: Tensor = ppo_actor_loss_fn(
            log_probs, step.old, step.old, step.advantages_BT, loss_mask=step.mask_bool, **options
        )[0]
        return made

    defaults = {name: usual[name] for name in ("eps_clip", "eps_clip_higher", "c_clip")}
    return Peer(loss=loss, defaults=defaults, entry=ppo_actor_loss_fn)
