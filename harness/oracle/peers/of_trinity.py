"""Trinity: ``PPOPolicyLossFn``. Its ``seq-mean-token-sum-norm`` does not divide by the number of responses."""

from __future__ import annotations

from torch import Tensor

from .common import NO_CLIP, NoCounterpart, Options, Peer, Step, named, none_but

MODES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean", "sequence_sum": "seq-mean-token-sum"}


def words(loss: Options) -> Options:
    """Return a step's loss as arguments of ``PPOPolicyLossFn``."""
    none_but(loss)
    mode = named(loss["aggregation"], MODES, "aggregation")
    clip = {"clip_range_low": loss["clip_low"], "clip_range_high": loss["clip_high"]}
    return {"loss_agg_mode": mode, **clip, "clip_ratio_c": loss["dual_clip"] or NO_CLIP}


def load() -> Peer:
    """Import Trinity."""
    from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.ranks * step.microbatches > 1 or step.packed:
            raise NoCounterpart("microbatches")
        made: Tensor = PPOPolicyLossFn(**options)(
            logprob=log_probs, old_logprob=step.old, action_mask=step.mask, advantages=step.advantages_BT
        )[0]
        return made

    usual = PPOPolicyLossFn.default_args()
    defaults = {name: usual[name] for name in ("loss_agg_mode", "clip_range", "clip_ratio_c")}
    return Peer(loss=loss, defaults=defaults, entry=PPOPolicyLossFn.__call__)
