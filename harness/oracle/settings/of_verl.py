"""verl's PPO trainer with FSDP, 0.9.1. Lines up to 999 are of ``trainer/config/_generated_ppo_trainer.yaml``, others of
``trainer/ppo/core_algos.py``."""

from __future__ import annotations

from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, same

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
CORRECTION, LOSS_MODE = "algorithm.rollout_correction.", f"{ACTOR}policy_loss.loss_mode"
MODES = {
    "vanilla": {"loss.type": "grpo_clip", "loss.ratio_level": "token"},  # 1285
    "gspo": {"loss.type": "grpo_clip", "loss.ratio_level": "sequence"},  # 1545
    "cispo": {"loss.type": "cispo", "loss.ratio_level": "token"},  # 2047
    "gpg": {"loss.type": "naive"},  # 1707
}
NO_CLIP = 1e9
"""Bound of the dual clip, which verl always has, where there is none here."""


def _bound(v: Theirs, name: str) -> float:
    """Return a bound; ``clip_ratio`` counts only where it is null, which it is not by default (1314)."""
    value = v[f"{ACTOR}{name}"]
    return float(v[f"{ACTOR}clip_ratio"] if value is None else value)


def _is_clipped(v: Theirs) -> bool:
    return bool(v[LOSS_MODE] != "gpg")


def _ignored_clip(v: Theirs) -> Ours:
    if v[f"{ACTOR}clip_ratio"] != 0.2 and None not in (v[f"{ACTOR}clip_ratio_low"], v[f"{ACTOR}clip_ratio_high"]):
        raise NoCounterpart(
            "verl 0.9.1 does not read it while clip_ratio_low and clip_ratio_high are set: 0.2 by default"
        )
    return {}


def _constant(v: Theirs) -> Ours:
    if v[f"{ACTOR}loss_agg_mode"] != "seq-mean-token-sum-norm":
        return {}
    if v[f"{ACTOR}loss_scale_factor"] is None:  # 1191, and workers/utils/padding.py 119
        longest = {"loss.constant": v["data.max_response_length"]}
        raise NoCounterpart("without it verl divides by the longest response of each microbatch", longest)
    return {"loss.constant": v[f"{ACTOR}loss_scale_factor"]}


KINDS = {"low_var_kl": "k3", "k3": "k3", "k2": "k2", "mse": "k2", "kl": "k1", "k1": "k1",
         "k3+": "k2", "low_var_kl+": "k2", "kl+": "k2", "k1+": "k2", "k2+": "k2", "mse+": "k2"}  # fmt: skip
"""2188, 2216: one with a plus has the value of its own and the gradient of k2."""


def _kl(v: Theirs) -> Ours:
    kind = v[f"{ACTOR}kl_loss_type"]
    if not v[f"{ACTOR}use_kl_loss"] or not v[f"{ACTOR}kl_loss_coef"]:
        return {"loss.kl.coefficient": 0.0}
    if kind not in KINDS:
        raise NoCounterpart(f"known are {', '.join(KINDS)}")
    return {"loss.kl.coefficient": v[f"{ACTOR}kl_loss_coef"], "loss.kl.estimator": KINDS[kind]}


def _kl_back(s: Ours) -> Theirs:
    if not s["loss.kl.coefficient"]:
        return {f"{ACTOR}use_kl_loss": False}
    kind = next(word for word, own in KINDS.items() if own == s["loss.kl.estimator"])
    return {f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_coef": s["loss.kl.coefficient"],
            f"{ACTOR}kl_loss_type": kind}  # fmt: skip


def _importance(v: Theirs) -> Ours:
    level, bounds = v[f"{CORRECTION}rollout_is"], str(v[f"{CORRECTION}rollout_is_threshold"])
    if level is None:
        return {"loss.importance.mode": "off"}
    floor, _, cap = bounds.rpartition("_")  # rollout_corr_helper.py 85
    made = {"loss.importance.mode": "icepop" if floor else "tis", "loss.importance.level": level}
    made |= {"loss.importance.cap": float(cap)} | ({"loss.importance.floor": float(floor)} if floor else {})
    if float(cap) < 1 or float(floor or 0) > 1:
        raise NoCounterpart("bounds lie on both sides of 1 here", {"loss.importance.mode": "off"})
    if v[LOSS_MODE] == "gspo" and level == "token":
        raise NoCounterpart("a token's weight meets its own gradient; here that of the whole response's ratio", made)
    return made


def _importance_back(s: Ours) -> Theirs:
    mode, cap, floor = (s[f"loss.importance.{name}"] for name in ("mode", "cap", "floor"))
    if mode not in ("tis", "icepop"):
        return {}
    bounds = cap if mode == "tis" else f"{floor!r}_{cap!r}"
    return {f"{CORRECTION}rollout_is": s["loss.importance.level"], f"{CORRECTION}rollout_is_threshold": bounds}


def _advantage(v: Theirs) -> Ours:
    kind, scaled = v["algorithm.adv_estimator"], v["algorithm.norm_adv_by_std_in_grpo"]
    if kind in ("grpo", "grpo_vectorized"):  # 267, 334
        normalized = {"advantage.delta": "normalized_rewards", "advantage.eps": 1e-6}
        return normalized if scaled else {"advantage.delta": "centered_rewards"}
    if kind in ("rloo", "rloo_vectorized"):  # 587, 833
        return {"advantage.delta": "leave_one_out_rewards"}
    if kind == "reinforce_plus_plus_baseline":  # 536
        nearest = {"advantage.delta": "batch_whitened_rewards"}
        raise NoCounterpart("its mean and deviation of the batch count every token; here every response", nearest)
    raise NoCounterpart("known are grpo, grpo_vectorized, rloo, rloo_vectorized; gae has a critic")


def _advantage_back(s: Ours) -> Theirs:
    match s["advantage.delta"]:
        case "normalized_rewards" | "centered_rewards" as delta:
            scaled = delta == "normalized_rewards"
            return {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": scaled}
        case "leave_one_out_rewards":
            return {"algorithm.adv_estimator": "rloo"}
    return {"algorithm.adv_estimator": "grpo"}


def _minibatches(v: Theirs) -> Ours:
    prompts, part = v["data.train_batch_size"], v[f"{ACTOR}ppo_mini_batch_size"]
    if part > prompts:  # workers/config/actor.py 220: refused there
        raise NoCounterpart("it must be at most data.train_batch_size", {"minibatches_per_epoch": 1})
    return {"minibatches_per_epoch": prompts // part}


def _prompts(s: Ours) -> int:
    return int(s["rollout_batch_size"] // s["group_size"])


def _steps(v: Theirs) -> Ours:
    if not v["trainer.total_training_steps"]:
        raise NoCounterpart("epochs take as many steps as the data set has; `steps` is left at its default")
    return {"steps": v["trainer.total_training_steps"]}


def _warmup(v: Theirs) -> Ours:
    optim = f"{ACTOR}optim."
    cosine = v[f"{optim}lr_scheduler_type"] == "cosine"
    made = {"optimizer.schedule": "cosine" if cosine else "constant"}
    if cosine and v[f"{optim}min_lr_ratio"]:
        made["optimizer.min_learning_rate_ratio"] = v[f"{optim}min_lr_ratio"]
    per_batch = v[f"{ACTOR}ppo_epochs"] * max(1, v["data.train_batch_size"] // v[f"{ACTOR}ppo_mini_batch_size"])
    if (v[f"{optim}lr_warmup_steps"] or 0) > 0:
        made["optimizer.warmup_steps"] = v[f"{optim}lr_warmup_steps"] * per_batch
    elif v[f"{optim}lr_warmup_steps_ratio"]:
        made["optimizer.warmup_ratio"] = v[f"{optim}lr_warmup_steps_ratio"]
    if per_batch > 1 and (cosine or len(made) > 1):  # engine_workers.py 305
        raise NoCounterpart("the rate changes once a training step; here at each optimizer step", made)
    return made


def _warmup_back(s: Ours) -> Theirs:
    optim, per_batch = f"{ACTOR}optim.", s["epochs_per_batch"] * s["minibatches_per_epoch"]
    made = {f"{optim}lr_scheduler_type": s["optimizer.schedule"]} if s["optimizer.schedule"] != "linear" else {}
    if s["optimizer.schedule"] == "cosine":
        made[f"{optim}min_lr_ratio"] = s["optimizer.min_learning_rate_ratio"]
    if s["optimizer.warmup_steps"]:
        return made | {f"{optim}lr_warmup_steps": -(-s["optimizer.warmup_steps"] // per_batch)}
    return made | {f"{optim}lr_warmup_steps_ratio": s["optimizer.warmup_ratio"]}


def _engine(v: Theirs) -> Ours:
    if v[f"{ROLLOUT}name"] != "vllm":
        raise NoCounterpart("vllm takes its place, which samples from the same distribution", {"engine.type": "vllm"})
    return {"engine.type": "vllm"}


ROWS = (
    # the loss
    means(LOSS_MODE, "vanilla", MODES, {  # 93
        "bypass_mode": "the ratio divides by the engine's log-probs here only with lag"}),
    means(f"{ACTOR}loss_agg_mode", "token-mean", {  # 101, 1140
        "token-mean": {"loss.aggregation": "token_mean"},
        "seq-mean-token-mean": {"loss.aggregation": "sequence_mean"},
        "seq-mean-token-sum": {"loss.aggregation": "sequence_sum"},
        "seq-mean-token-sum-norm": {"loss.aggregation": "constant"},
    }, {"token-sum": "a sum over the batch is divided by nothing"}),
    Row(theirs={f"{ACTOR}loss_scale_factor": None}, ours=("loss.constant",), to=_constant,
        back=lambda s: {f"{ACTOR}loss_scale_factor": s["loss.constant"]}),
    Row(theirs={f"{ACTOR}clip_ratio_low": 0.2}, ours=("loss.cliprange",),  # 86; a ratio is above 0
        to=lambda v: {"loss.cliprange": min(1.0, _bound(v, "clip_ratio_low"))} if _is_clipped(v) else {},
        back=lambda s: {f"{ACTOR}clip_ratio_low": 0.2 if s["loss.cliprange"] is None else s["loss.cliprange"]}),
    Row(theirs={f"{ACTOR}clip_ratio_high": 0.2}, ours=("loss.cliprange_high",),  # 87
        to=lambda v: {"loss.cliprange_high": _bound(v, "clip_ratio_high")} if _is_clipped(v) else {},
        back=lambda s: {f"{ACTOR}clip_ratio_high": 0.2 if s["loss.cliprange"] is None else s["loss.cliprange_high"]}),
    Row(theirs={f"{ACTOR}clip_ratio": 0.2}, to=_ignored_clip, loss=False),  # 85
    same(f"{ACTOR}clip_ratio_c", 3.0, "loss.dual_clip", {NO_CLIP: None},  # 100, 1344; 1558: none for the others
         when=lambda v: v[LOSS_MODE] == "vanilla"),
    Row(theirs={f"{ACTOR}use_kl_loss": False, f"{ACTOR}kl_loss_coef": 0.001, f"{ACTOR}kl_loss_type": "low_var_kl"},
        ours=("loss.kl.coefficient", "loss.kl.estimator"), to=_kl, back=_kl_back),  # 106, 109
    absent("algorithm.use_kl_in_reward", False, "no KL in the reward, only in the loss"),
    same(f"{ACTOR}entropy_coeff", 0, "loss.entropy_coefficient"),  # 103
    Row(theirs={f"{CORRECTION}rollout_is": None, f"{CORRECTION}rollout_is_threshold": "2.0"}, to=_importance,
        ours=tuple(f"loss.importance.{name}" for name in ("mode", "level", "cap", "floor")), back=_importance_back),
    absent(f"{CORRECTION}rollout_rs", None, "what is rejected leaves the loss's mean; here it stays in it"),
    absent(f"{CORRECTION}rollout_is_batch_normalize", False, "weights are not normalized"),
    absent(f"{CORRECTION}bypass_mode", False, "the ratio divides by the engine's log-probs here only with lag"),
    Row(theirs={"algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": True},
        ours=("advantage.delta", "advantage.eps"), to=_advantage, back=_advantage_back),
    absent("algorithm.use_pf_ppo", False, "rollouts are not reweighted"),
    absent("algorithm.filter_groups.enable", False, "dynamic_sampling replaces a group; there a batch is filled up",
           loss=False),
    absent("reward_model.reward_kwargs.overlong_buffer_cfg.enable", False, "rewards come from `task` as they are"),
    absent("distillation.enabled", False, "no distillation"),
    absent(f"{MODEL}lora_rank", 0, "no adapters: all weights are trained", loss=False),
    # the step
    same(f"{ROLLOUT}n", 1, "group_size"),  # 329
    Row(theirs={"data.train_batch_size": 1024}, ours=("rollout_batch_size",),  # 506: in prompts
        to=lambda v: {"rollout_batch_size": v["data.train_batch_size"] * v[f"{ROLLOUT}n"]},
        back=lambda s: {"data.train_batch_size": _prompts(s)}),
    Row(theirs={f"{ACTOR}ppo_mini_batch_size": 256}, ours=("minibatches_per_epoch",), to=_minibatches,  # 80
        back=lambda s: {f"{ACTOR}ppo_mini_batch_size": _prompts(s) // s["minibatches_per_epoch"]}),
    same(f"{ACTOR}ppo_epochs", 1, "epochs_per_batch"),
    same(f"{ACTOR}shuffle", False, "shuffle_minibatches"),
    Row(theirs={"trainer.total_training_steps": None}, ours=("steps",), loss=False, to=_steps,
        back=lambda s: {"trainer.total_training_steps": s["steps"]}),
    absent("trainer.v1.trainer_mode", "sync", "set max_lag and lag_control as its sampler bounds it"),
    # sampling
    same("data.max_response_length", 512, "sampling.max_tokens"),
    same(f"{ROLLOUT}temperature", 1.0, "sampling.temperature"),
    same(f"{ROLLOUT}top_p", 1.0, "sampling.top_p"),
    absent(f"{ROLLOUT}top_k", -1, "all tokens may be sampled", loss=False),
    Row(theirs={f"{ROLLOUT}name": "vllm"}, ours=("engine.type",), to=_engine, loss=False),
    absent(f"{ROLLOUT}multi_turn.enable", False, "a rollout is one response to one prompt"),
    # the optimizer
    same(f"{ACTOR}optim.lr", 1e-6, "optimizer.learning_rate"),
    same(f"{ACTOR}optim.betas", [0.9, 0.999], "optimizer.betas"),
    same(f"{ACTOR}optim.weight_decay", 0.01, "optimizer.weight_decay"),
    same(f"{ACTOR}optim.clip_grad", 1.0, "optimizer.max_grad_norm"),
    Row(theirs={f"{ACTOR}optim.lr_scheduler_type": "constant", f"{ACTOR}optim.lr_warmup_steps": -1,
                f"{ACTOR}optim.lr_warmup_steps_ratio": 0.0, f"{ACTOR}optim.min_lr_ratio": 0.0},
        ours=("optimizer.schedule", "optimizer.warmup_steps", "optimizer.warmup_ratio",
              "optimizer.min_learning_rate_ratio"), to=_warmup, back=_warmup_back, loss=False),
    # the model
    Row(theirs={f"{MODEL}path": "~/models/deepseek-llm-7b-chat"}, ours=("model.path",), loss=False,
        to=lambda v: {"model.type": "folder", "model.path": v[f"{MODEL}path"]},
        back=lambda s: {f"{MODEL}path": s["model.path"]} if s["model.path"] else {}),
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
    checked=True,
    style="hydra",
    rows=ROWS,
    renamed={
        f"{ROLLOUT}response_length": "data.max_response_length",
        f"{ACTOR}optim.warmup_style": f"{ACTOR}optim.lr_scheduler_type",
    },
    beside=BESIDE,
)
