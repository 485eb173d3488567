"""AReaL: ``grpo_loss_fn``, which calls ``ppo_actor_loss_fn``, scaled by its engine for FSDP; the advantages of
``PPOActor``."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .common import Absent, Advantages, Because, NoCounterpart, Options, Peer, Step, named, none_but

NORMS = {
    "normalized_rewards": {"mean_level": "group", "std_level": "group"},
    "centered_rewards": {"mean_level": "group", "std_level": None},
    "leave_one_out_rewards": {"mean_level": "group", "mean_leave1out": True, "std_level": None},
    "batch_whitened_rewards": {"mean_level": "group", "std_level": "batch"},
}
SAMPLING = {
    "tis of level token": {"level": "token", "action": "clamp"},
    "icepop of level token": {"level": "token", "action": "mask"},
    "seq-mask-tis of level token": {"level": "sequence", "action": "mask", "agg": "mean"},
    "tis of level sequence": {"level": "sequence", "action": "clamp", "agg": "mean"},
    "icepop of level sequence": {"level": "sequence", "action": "mask", "agg": "sum"},
}


def words(loss: Options) -> Options:
    """Return a step's loss as settings of ``PPOActorConfig``, and of a teacher: a KL in the loss is to that one."""
    none_but(loss, "sequence ratio", "kl", "importance")
    named(loss["aggregation"], {"token_mean": None}, "aggregation")
    made = {"eps_clip": loss["clip_low"], "eps_clip_higher": loss["clip_high"], "c_clip": loss["dual_clip"]}
    made["importance_sampling_level"] = loss["ratio_level"]
    kl, importance = loss["kl"], loss["importance"]
    if kl["coefficient"]:
        named(kl["estimator"], {"k1": None}, "KL in the loss, but for a teacher's k1:")
        made["teacher.distill_loss_weight"] = kl["coefficient"]
    if importance["mode"] != "off":
        asked = f"{importance['mode']} of level {importance['level']}"
        sampling = named(asked, SAMPLING, "importance weights")
        if importance["cap"] is None or importance["cap"] <= 1:
            raise NoCounterpart(f"importance weights bounded by {importance['cap']}, the bound is above 1")
        bounds = {"lower": importance["floor"], "upper": importance["cap"]}
        made |= {"use_decoupled_loss": True, "rejection_sampling": {**sampling, "metric": "ratio", **bounds}}
    return made


def load() -> Peer:
    """Import AReaL."""
    Absent("wandb", "swanlab", "trackio", "peft", "torchdata")
    from areal.api.cli_args import NormConfig, PPOActorConfig, RejectionSamplingConfig
    from areal.engine.core import train_engine
    from areal.engine.fsdp_engine import FSDPEngine, FSDPTrainContext
    from areal.trainer.ppo import actor
    from areal.utils.functional import ppo_actor_loss_fn

    usual = {field.name: field.default for field in dataclasses.fields(PPOActorConfig)}
    # Figures to log are in float32 only; the microbatches of all ranks are summed here, and not by a process group.
    unlogged = dict.fromkeys(("stat", "denominator", "scalar"), lambda *all, **more: None)
    actor.stats_tracker = SimpleNamespace(**unlogged, scope=nullcontext)
    train_engine.dist = SimpleNamespace(all_reduce=lambda *all, **more: None)

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        options = dict(options)
        distill = options.pop("teacher.distill_loss_weight", None)
        if "rejection_sampling" in options:
            options["rejection_sampling"] = RejectionSamplingConfig(**options["rejection_sampling"])
        behave = step.old if step.engine is None else step.engine

        def inputs(rows: slice) -> tuple[Tensor, Options]:
            """Return the log-probs of some rows and the data beside them, packed as its engine does."""
            beside = {"logprobs": behave, "prox_logp": step.old, "advantages": step.advantages_BT}
            beside |= {} if distill is None else {"teacher_logp": step.reference}
            made: Options = {name: tensor[rows] for name, tensor in beside.items()}
            made |= {"loss_mask": step.mask_bool[rows]}
            of_rows = log_probs[rows]
            if step.packed:
                ends = step.mask_bool[rows].flip(1).cumsum(1).flip(1) > 0  # up to each row's last token
                made = {name: tensor[ends] for name, tensor in made.items()}
                made["cu_seqlens"] = torch.cat([torch.zeros(1), ends.sum(1).cumsum(0)]).int()
                of_rows = of_rows[ends]
            return of_rows, made | ({} if distill is None else {"distill_loss_weight": distill})

        def of_part(logits: Tensor, data: Options) -> Tensor:
            engine = SimpleNamespace(
                config=SimpleNamespace(is_critic=False), enable_tree_training=False,
                _compute_logprobs_entropy=lambda *all: (logits, torch.zeros_like(logits)),
                _get_vocab_min_max_logits=lambda *all: (None, None),
            )  # fmt: skip
            made: Tensor = FSDPEngine._compute_logprobs_and_loss(
                engine,
                logits,
                FSDPTrainContext({}, data),
                partial(actor.grpo_loss_fn, **options),
                tokens,
                total,
                step.ranks,
            )
            return made

        def tokens(data: Options) -> Tensor:  # trainer/ppo/actor.py:353
            return data["loss_mask"].count_nonzero()  # type: ignore[no-any-return]

        parts = [inputs(rows) for rank in step.parts() for rows in rank]
        total = train_engine.compute_total_loss_weight(SimpleNamespace(mbs=[data for _, data in parts]), tokens, None)
        # Gradients of microbatches add up, those of ranks are averaged: engine/fsdp_engine.py:793.
        made: Tensor = torch.stack([of_part(*part) for part in parts]).sum() / step.ranks
        return made

    def advantages(setting: str, step: Step, options: Options) -> Tensor:
        config = PPOActorConfig(**{setting: NormConfig(**options, group_size=step.group_size)}, kl_ctl=0.0)
        lengths = step.mask_of_rollouts().sum(dim=1).long() + 1  # behind a prompt of one token
        at = torch.arange(int(lengths.max()))[None]
        attention = (at < lengths[:, None]).long()
        data: dict[str, Any] = {"input_ids": attention, "attention_mask": attention, "rewards": step.rewards.clone()}
        data |= {"loss_mask": attention * (at > 0), "logprobs": torch.zeros(attention.shape)}
        made: Tensor = actor.PPOActor(config, None)._compute_advantages(data)["advantages"][:, 0]
        return made

    def norm(setting: str, step: Step) -> Options:
        delta = step.advantage["delta"]
        if setting == "adv_norm" and delta == "leave_one_out_rewards":
            raise NoCounterpart("advantage leave_one_out_rewards")
        return {**named(delta, NORMS, "advantage"), "eps": step.advantage["eps"]}

    return Peer(
        loss=loss,
        defaults={name: usual[name] for name in ("eps_clip", "eps_clip_higher", "c_clip", "importance_sampling_level")},
        advantages=tuple(
            Advantages(f"advantages, {setting}", partial(norm, setting), partial(advantages, setting))
            for setting in ("reward_norm", "adv_norm")
        ),
        entry=ppo_actor_loss_fn,
        because=BECAUSE,
    )


_WEIGHT = "a response's weight is the geometric mean of its tokens' ratios, not "
BECAUSE = (
    *(
        Because(option, _WEIGHT + instead, "areal.utils.functional.functional", "behave_imp_weight = torch.exp(seq_log")
        for option, instead in (
            ("TIS of responses", "their product"),
            ("IcePop of responses", "their product, by which it is masked"),
            ("geometric mask", "each token's own"),
        )
    ),
    *(
        Because(
            option,
            "adv_norm takes means and deviations over tokens, of which long responses have more; reward_norm does not",
            "areal.trainer.ppo.actor",
            "advantages = self.adv_norm(advantages, loss_mask)",
        )
        for option in ("deviation of the group", "mean alone", "whitened over the batch")
    ),
)
