"""OpenRLHF: ``ActorPPOTrainer.training_step`` on a stand-in for the trainer, which calls ``PolicyLoss`` and adds KL and
entropy; ``RemoteExperienceMaker.compute_advantages_and_returns`` on another."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .common import NO_CLIP, Absent, Advantages, Because, NoCounterpart, Options, Peer, Step, named, none_but

MODES = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
ESTIMATORS = {
    "normalized_rewards": "group_norm",
    "centered_rewards": "dr_grpo",
    "leave_one_out_rewards": "rloo",
    "batch_whitened_rewards": "reinforce_baseline",
}
CORRECTIONS = {
    "tis of level token": ("token", "clip"),
    "icepop of level token": ("token", "mask"),
    "seq-mask-tis of level token": ("seq", "mask"),
}
"""Level and mode of its correction."""


def words(loss: Options) -> Options:
    """Return a step's loss as arguments of its command line."""
    none_but(loss, "sequence ratio", "kl", "weighted kl", "importance", "entropy")
    mode, kl, importance = named(loss["aggregation"], MODES, "aggregation"), loss["kl"], loss["importance"]
    made: Options = {"actor.loss_agg_mode": mode, "actor.eps_clip_low_high": [loss["clip_low"], loss["clip_high"]]}
    made["actor.dual_clip"] = loss["dual_clip"]
    further = kl["coefficient"] or loss["entropy_coefficient"]
    if further and mode != "token-mean":
        raise NoCounterpart("KL and entropy averaged over responses, they are averaged over tokens")
    if loss["ratio_level"] == "sequence":
        if mode == "token-mean":
            raise NoCounterpart("sequence ratio with a mean over tokens")
        if importance["mode"] != "off":
            raise NoCounterpart("sequence ratio with importance weights")
        made["actor.policy_loss_type"] = "gspo"
    if kl["coefficient"]:
        if kl["weighted_by_ratio"] and kl["estimator"] != "k3":
            raise NoCounterpart(f"{kl['estimator']} times the ratio")
        made |= {"algo.kl.use_loss": True, "algo.kl.init_coef": kl["coefficient"], "algo.kl.estimator": kl["estimator"]}
        made["algo.kl.unbiased_gradient"] = kl["weighted_by_ratio"]
    if importance["mode"] != "off":
        asked = f"{importance['mode']} of level {importance['level']}"
        level, how = named(asked, CORRECTIONS, "importance weights")
        made |= {"algo.advantage.is_correction_level": level, "algo.advantage.is_correction_mode": how}
        bounds = [importance["floor"] or 0.0, NO_CLIP if importance["cap"] is None else importance["cap"]]
        made["algo.advantage.is_correction_threshold"] = bounds
    if loss["entropy_coefficient"]:
        made["actor.entropy_coef"] = loss["entropy_coefficient"]
    return made


def load() -> Peer:
    """Import OpenRLHF."""
    Absent("flash_attn", "vllm", "deepspeed", "ring_flash_attn")
    import openrlhf
    from openrlhf.models.loss import PolicyLoss
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
    from openrlhf.utils.loss_utils import _optimizer_step_loss_norm

    usual = _defaults(Path(openrlhf.__file__).parent / "cli/train_ppo_ray.py")

    def policy_loss(args: SimpleNamespace) -> Tensor:
        low, high = args.actor.eps_clip_low_high or [args.actor.eps_clip] * 2  # cli/train_ppo_ray.py:633
        correction = {name: value for name, value in vars(args.algo.advantage).items() if name.startswith("is_corr")}
        made: Tensor = PolicyLoss(  # as trainer/ray/ppo_actor.py:83
            clip_eps_low=low,
            clip_eps_high=high,
            dual_clip=args.actor.dual_clip,
            token_level_loss=args.actor.loss_agg_mode == "token-mean",
            policy_loss_type=args.actor.policy_loss_type,
            **correction,
        )
        return made

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.packed:
            raise NoCounterpart("packed rows in the loss, they are padded again before it")
        args = _nested(usual | options)
        parts = step.parts()
        # Of an optimizer step's microbatches of all ranks: trainer/ray/ppo_actor.py:190, utils/loss_utils.py:60.
        masks = [step.mask_bool[rows] for rank in parts for rows in rank]
        normalizers = _optimizer_step_loss_norm(masks, None, step.ranks, step.microbatches)
        losses: list[Tensor] = []

        def of_rows(rows: slice) -> None:
            def part(tensor: Tensor | None) -> Tensor | None:
                return None if tensor is None else tensor[rows]

            strategy = SimpleNamespace(
                ring_attn_group=None,
                backward=lambda loss, *_: losses.append(loss),
                optimizer_step=lambda *all, **more: None,
                get_grad_norm=lambda model: 0.0,
            )
            output = SimpleNamespace(entropy=part(step.entropy))
            actor = _Model(lambda *all, **more: (log_probs[rows], output))
            trainer = SimpleNamespace(
                actor=actor, args=args, strategy=strategy, actor_loss_fn=policy_loss(args), aux_loss=False,
                actor_optim=None, ema_model=None, actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
            )  # fmt: skip
            experience = Experience(
                action_mask=step.mask_bool[rows], action_log_probs=step.old[rows], advantages=step.advantages_BT[rows],
                base_action_log_probs=part(step.reference), rollout_log_probs=part(step.engine),
            )  # fmt: skip
            ActorPPOTrainer.training_step(trainer, experience, args.algo.kl.init_coef, 0, normalizers)

        for rank in parts:
            for rows in rank:
                of_rows(rows)
        # DeepSpeed divides each loss by the microbatches, and gradients by the ranks: utils/loss_utils.py:66.
        made: Tensor = torch.stack(losses).sum() / step.microbatches / step.ranks
        return made

    def advantages(step: Step, options: Options) -> Tensor:
        args = _nested(usual | options)
        args.rollout.n_samples_per_prompt = step.group_size
        mask = step.mask_of_rollouts()
        maker = SimpleNamespace(
            strategy=SimpleNamespace(args=args),
            advantage_estimator=args.algo.advantage.estimator,
            kl_ctl=SimpleNamespace(value=0.0),
            get_cumulative_returns=lambda *all: RemoteExperienceMaker.get_cumulative_returns(None, *all),
        )
        rollouts = Experience(
            index=list(range(len(mask))), rewards=step.rewards, action_mask=mask, kl=torch.zeros_like(mask)
        )
        made = RemoteExperienceMaker.compute_advantages_and_returns(maker, [rollouts])[0].advantages
        of_rollouts: Tensor = (made * mask).sum(dim=1) / mask.sum(dim=1)  # the same at each token
        return of_rollouts

    def estimator(step: Step) -> Options:
        return {"algo.advantage.estimator": named(step.advantage["delta"], ESTIMATORS, "advantage")}

    names = (
        "actor.loss_agg_mode", "actor.eps_clip", "actor.eps_clip_low_high", "actor.dual_clip",
        "actor.policy_loss_type", "algo.advantage.is_correction_level", "algo.kl.use_loss", "actor.entropy_coef",
    )  # fmt: skip
    return Peer(
        loss=loss,
        defaults={name: usual[name] for name in names},
        advantages=(Advantages("advantages", estimator, advantages),),
        entry=PolicyLoss.forward,
        because=BECAUSE,
    )


class _Model:
    """What a loss asks of a model."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def train(self) -> None:
        """Nothing."""

    def __call__(self, *all: Any, **more: Any) -> Any:
        return self.forward(*all, **more)


def _defaults(command: Path) -> Options:
    """Return the defaults of the arguments of its command, which cannot be asked: they stand where it is run."""
    calls = (node for node in ast.walk(ast.parse(command.read_text())) if isinstance(node, ast.Call))
    made: Options = {}
    for call in calls:
        if getattr(call.func, "attr", "") == "add_argument" and isinstance(call.args[0], ast.Constant):
            said = {word.arg: word.value for word in call.keywords}
            with suppress(ValueError):  # a default that is computed, which no loss needs
                made[str(call.args[0].value).lstrip("-")] = ast.literal_eval(said.get("default", ast.Constant(None)))
    return made


def _nested(options: Options) -> SimpleNamespace:
    """Return options as objects in each other, ``a.b.c``."""
    made = SimpleNamespace()
    for name, value in options.items():
        *path, last = name.split(".")
        at = made
        for part in path:
            at.__dict__.setdefault(part, SimpleNamespace())
            at = getattr(at, part)
        setattr(at, last, value)
    return made


_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
_NORM = "rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)"
BECAUSE = (
    Because(
        "the same, responses' means",
        "responses without tokens are not counted in the mean over responses",
        "openrlhf.utils.loss_utils",
        "num_samples += (mask.reshape(mask.shape[0], -1).sum(dim=-1) > 0).sum()",
    ),
    *(
        Because(
            option,
            "the estimate is cut at 10, where it has no gradient",
            "openrlhf.models.utils",
            "value = value.clamp(min=-10, max=10)",
        )
        for option in ("KL k1", "KL k2", "KL k3")
    ),
    Because(
        "KL k3 times the ratio",
        "only its gradient is multiplied by the ratio, of at most 10, and not its value",
        "openrlhf.models.utils",
        "return value.detach() + grad_surrogate - grad_surrogate.detach()",
    ),
    Because(
        "whitened over the batch",
        "its mean and deviation are over the batch's tokens, of which long responses have more, and the deviation is "
        "the biased one",
        _MAKER,
        "var = ((all_advantages - mean).pow(2) * all_action_masks).sum() / num_actions",
    ),
    Because("deviation of the group", "1e-9 is added to the deviation, which no setting changes", _MAKER, _NORM),
    Because(
        "equal rewards",
        "the mean is float32, and its rounding is divided by a deviation that is as small or 0, plus 1e-9",
        _MAKER,
        _NORM,
        is_defect=True,
    ),
)
