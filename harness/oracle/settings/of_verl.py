"""verl's PPO trainer with FSDP, 0.9.1. Lines up to 999 are of ``trainer/config/_generated_ppo_trainer.yaml``, others of
``trainer/ppo/core_algos.py``."""

from __future__ import annotations

from typing import Any

from harness.oracle.peers.common import NO_CLIP
from harness.oracle.peers.of_verl import KINDS, MODES, words
from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, model, same, steps

ACTOR, ROLLOUT, OPTIM = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.optim."
CORRECTION, LOSS_MODE = "algorithm.rollout_correction.", f"{ACTOR}policy_loss.loss_mode"
LOSSES = {word: {"loss.type": kind, "loss.ratio_level": level} for (kind, level), word in KINDS.items()}
GPG = {"loss.type": "naive", "allow_uncorrected": True}
ESTIMATORS = {"low_var_kl": "k3", "kl": "k1", "mse": "k2"} | {kind: kind for kind in ("k3", "k2", "k1")}
"""2188"""
SCALED = {True: "normalized_rewards", False: "centered_rewards"}
BYPASS = "the ratio divides by the engine's log-probs here only with lag"


def _loss(loss: dict[str, Any]) -> Theirs:
    """Return a loss's options in verl's words, by their places in its configuration."""
    if loss["type"] == "naive":
        made = words(loss | {"type": "grpo_clip", "ratio_level": "token"}) | {"policy_loss.loss_mode": "gpg"}
    else:
        made = {"policy_loss.loss_mode": "vanilla", "use_kl_loss": False} | words(loss)
    return {f"{'algorithm.' if 'correction' in key else ACTOR}{key}": value for key, value in made.items()}


def _clip(v: Theirs) -> Ours:
    """Bounds of the ratio, which is above 0; ``clip_ratio`` counts only where one is null (1314)."""
    if v[LOSS_MODE] not in KINDS.values():
        return {}
    usual, low, high = (v[f"{ACTOR}clip_ratio{name}"] for name in ("", "_low", "_high"))
    low, high = min(1.0, float(usual if low is None else low)), float(usual if high is None else high)
    return {"loss.cliprange": low, "loss.cliprange_high": high}


def _ignored_clip(v: Theirs) -> Ours:
    if v[f"{ACTOR}clip_ratio"] != 0.2 and None not in (v[f"{ACTOR}clip_ratio_low"], v[f"{ACTOR}clip_ratio_high"]):
        raise NoCounterpart("verl does not read it while clip_ratio_low and clip_ratio_high are set: 0.2 by default")
    return {}


def _constant(v: Theirs) -> Ours:
    if v[f"{ACTOR}loss_agg_mode"] != MODES["constant"]:
        return {}
    if v[f"{ACTOR}loss_scale_factor"] is None:  # 1191, and workers/utils/padding.py 119
        longest = {"loss.constant": v["data.max_response_length"]}
        raise NoCounterpart("without it verl divides by the longest response of each microbatch", longest)
    return {"loss.constant": v[f"{ACTOR}loss_scale_factor"]}


def _kl(v: Theirs) -> Ours:
    kind, value_only = v[f"{ACTOR}kl_loss_type"].removesuffix("+"), v[f"{ACTOR}kl_loss_type"].endswith("+")
    if not v[f"{ACTOR}use_kl_loss"] or not v[f"{ACTOR}kl_loss_coef"]:
        return {"loss.kl.coefficient": 0.0}
    if kind not in ESTIMATORS:
        raise NoCounterpart(f"known are {', '.join(ESTIMATORS)}, each also with a plus")
    estimator = "k2" if value_only else ESTIMATORS[kind]  # 2216: with a plus, the value of its own, the gradient of k2
    return {"loss.kl.coefficient": v[f"{ACTOR}kl_loss_coef"], "loss.kl.estimator": estimator}


def _importance(v: Theirs) -> Ours:
    level = v[f"{CORRECTION}rollout_is"]
    if level is None:
        return {"loss.importance.mode": "off"}
    floor, _, cap = str(v[f"{CORRECTION}rollout_is_threshold"]).rpartition("_")  # rollout_corr_helper.py 85
    made = {"loss.importance.level": level, "loss.importance.cap": float(cap)}
    made |= {"loss.importance.mode": "tis"}
    if floor:
        made |= {"loss.importance.mode": "icepop", "loss.importance.floor": float(floor)}
    if v[LOSS_MODE] == "gspo" and level == "token":
        raise NoCounterpart("a token's weight meets its own gradient; here that of the whole response's ratio", made)
    return made


def _advantage(v: Theirs) -> Ours:
    kind = v["algorithm.adv_estimator"].removesuffix("_vectorized")
    if kind == "grpo":  # 267, 334
        return {"advantage.delta": SCALED[v["algorithm.norm_adv_by_std_in_grpo"]], "advantage.eps": 1e-6}
    if kind == "rloo":  # 587, 833
        return {"advantage.delta": "leave_one_out_rewards"}
    if kind == "reinforce_plus_plus_baseline":  # 536
        nearest = {"advantage.delta": "batch_whitened_rewards"}
        raise NoCounterpart("its mean and deviation of the batch count every token; here every response", nearest)
    raise NoCounterpart("known are grpo, grpo_vectorized, rloo, rloo_vectorized; gae has a critic")


def _advantage_back(s: Ours) -> Theirs:
    if s["advantage.delta"] == "leave_one_out_rewards":
        return {"algorithm.adv_estimator": "rloo"}
    scaled = s["advantage.delta"] != "centered_rewards"
    return {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": scaled}


def _warmup(v: Theirs) -> Ours:
    made = {"optimizer.warmup_ratio": v[f"{OPTIM}lr_warmup_steps_ratio"]}
    is_one_step = v["data.train_batch_size"] == v[f"{ACTOR}ppo_mini_batch_size"] and v[f"{ACTOR}ppo_epochs"] == 1
    if v[f"{OPTIM}lr_warmup_steps_ratio"] and not is_one_step:  # engine_workers.py 305
        raise NoCounterpart("the rate changes once a training step; here at each optimizer step", made)
    return made


def _prompts(s: Ours) -> int:
    return int(s["rollout_batch_size"] // s["group_size"])


ROWS = (
    # the loss; ``words`` is the way back
    means(LOSS_MODE, "vanilla", {**LOSSES, "gpg": GPG}, {"bypass_mode": BYPASS}),  # 93, 1285 to 2047
    means(f"{ACTOR}loss_agg_mode", "token-mean", {word: {"loss.aggregation": ours} for ours, word in MODES.items()},
          {"token-sum": "a sum over the batch is divided by nothing"}),  # 101, 1140
    Row({f"{ACTOR}loss_scale_factor": None}, _constant),
    Row({f"{ACTOR}clip_ratio_low": 0.2, f"{ACTOR}clip_ratio_high": 0.2}, _clip),  # 86
    Row({f"{ACTOR}clip_ratio": 0.2}, _ignored_clip, loss=False),  # 85
    same(f"{ACTOR}clip_ratio_c", 3.0, "loss.dual_clip", off=NO_CLIP,  # 100, 1344; 1558: none for the others
         when=lambda v: v[LOSS_MODE] == "vanilla"),
    Row({f"{ACTOR}use_kl_loss": False, f"{ACTOR}kl_loss_coef": 0.001, f"{ACTOR}kl_loss_type": "low_var_kl"}, _kl),
    absent("algorithm.use_kl_in_reward", False, "no KL in the reward, only in the loss"),
    same(f"{ACTOR}entropy_coeff", 0, "loss.entropy_coefficient"),  # 103
    Row({f"{CORRECTION}rollout_is": None, f"{CORRECTION}rollout_is_threshold": "2.0"}, _importance),
    absent(f"{CORRECTION}rollout_rs", None, "not translated: see loss.importance.mode seq-mask-tis"),
    absent(f"{CORRECTION}rollout_is_batch_normalize", False, "weights are not normalized"),
    absent(f"{CORRECTION}bypass_mode", False, BYPASS),
    Row({"algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": True}, _advantage, _advantage_back),
    absent("algorithm.use_pf_ppo", False, "rollouts are not reweighted"),
    absent("algorithm.filter_groups.enable", False, "dynamic_sampling replaces a group; there a batch is filled up",
           loss=False),
    absent("reward_model.reward_kwargs.overlong_buffer_cfg.enable", False, "rewards come from `task` as they are"),
    absent("distillation.enabled", False, "no distillation"),
    absent("actor_rollout_ref.model.lora_rank", 0, "no adapters: all weights are trained", loss=False),
    # the step
    same(f"{ROLLOUT}n", 1, "group_size"),  # 329
    Row({"data.train_batch_size": 1024},  # 506: in prompts
        lambda v: {"rollout_batch_size": int(v["data.train_batch_size"]) * int(v[f"{ROLLOUT}n"])},
        lambda s: {"data.train_batch_size": _prompts(s)}),
    Row({f"{ACTOR}ppo_mini_batch_size": 256},  # 80
        lambda v: {"minibatches_per_epoch": v["data.train_batch_size"] // v[f"{ACTOR}ppo_mini_batch_size"]},
        lambda s: {f"{ACTOR}ppo_mini_batch_size": _prompts(s) // s["minibatches_per_epoch"]}),
    same(f"{ACTOR}ppo_epochs", 1, "epochs_per_batch"),
    same(f"{ACTOR}shuffle", False, "shuffle_minibatches"),
    steps("trainer.total_training_steps"),
    absent("trainer.v1.trainer_mode", "sync", "set max_lag and lag_control as its sampler bounds it"),
    # sampling
    same("data.max_response_length", 512, "sampling.max_tokens"),
    same(f"{ROLLOUT}temperature", 1.0, "sampling.temperature"),
    same(f"{ROLLOUT}top_p", 1.0, "sampling.top_p"),
    absent(f"{ROLLOUT}top_k", -1, "all tokens may be sampled", loss=False),
    absent(f"{ROLLOUT}name", "vllm", "vllm takes its place, which samples from the same distribution", loss=False),
    Row({}, lambda v: {"engine.type": "vllm"}),
    absent(f"{ROLLOUT}multi_turn.enable", False, "a rollout is one response to one prompt"),
    # the optimizer
    same(f"{OPTIM}lr", 1e-6, "optimizer.learning_rate"),
    same(f"{OPTIM}betas", [0.9, 0.999], "optimizer.betas"),
    same(f"{OPTIM}weight_decay", 0.01, "optimizer.weight_decay"),
    same(f"{OPTIM}clip_grad", 1.0, "optimizer.max_grad_norm"),
    means(f"{OPTIM}lr_scheduler_type", "constant",
          {word: {"optimizer.schedule": word} for word in ("constant", "cosine")}, loss=False),
    same(f"{OPTIM}min_lr_ratio", 0.0, "optimizer.min_learning_rate_ratio"),
    Row({f"{OPTIM}lr_warmup_steps_ratio": 0.0}, _warmup,
        lambda s: {f"{OPTIM}lr_warmup_steps_ratio": s["optimizer.warmup_ratio"]}, loss=False),
    absent(f"{OPTIM}lr_warmup_steps", -1, "it counts training steps: see optimizer.warmup_steps", loss=False),
    # the model
    model("actor_rollout_ref.model.path", "~/models/deepseek-llm-7b-chat"),
    same(f"{ACTOR}fsdp_config.dtype", "bfloat16", "model.precision", loss=False),  # 51: of mixed precision
)  # fmt: skip

BESIDE = """
data.* trainer.* critic.* reward* custom_reward_* global_profiler.* ray_* transfer_queue.* sandbox_fusion.* hydra*
defaults* algorithm.kl_* algorithm.gamma algorithm.lam algorithm.*.* actor_rollout_ref.rollout.*
actor_rollout_ref.model.* actor_rollout_ref.ref.* actor_rollout_ref.hybrid_engine actor_rollout_ref.nccl_timeout
actor_rollout_ref.actor.*micro_batch* actor_rollout_ref.actor.*token_len* actor_rollout_ref.actor.use_dynamic_bsz
actor_rollout_ref.actor.fsdp_config.* actor_rollout_ref.actor.megatron.* actor_rollout_ref.actor.strategy
actor_rollout_ref.actor.ulysses_* actor_rollout_ref.actor.entropy_* actor_rollout_ref.actor.use_torch_compile
actor_rollout_ref.actor.checkpoint.* actor_rollout_ref.actor.profiler.* actor_rollout_ref.actor.grad_clip
actor_rollout_ref.actor.use_remove_padding actor_rollout_ref.actor.optim.*optimizer*
actor_rollout_ref.actor.data_loader_seed actor_rollout_ref.actor.tau_* actor_rollout_ref.actor.policy_loss.*
"""
"""Whole sections but ``actor`` and ``algorithm``, which decide the loss; ``tau_*`` is of one without a counterpart."""
VERL = Table(
    name="verl",
    version="0.9.1",
    style="hydra",
    rows=ROWS,
    loss=_loss,
    renamed={
        f"{ROLLOUT}response_length": "data.max_response_length",
        f"{OPTIM}warmup_style": f"{OPTIM}lr_scheduler_type",
    },
    beside=BESIDE,
)
