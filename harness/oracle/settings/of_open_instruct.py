"""open-instruct's ``grpo_fast.py``, by its published source: not checked by its code. Lines are of
``open_instruct/grpo_utils.py`` where no other file is named."""

from __future__ import annotations

from typing import Any

from harness.oracle.peers.common import NO_CLIP
from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, model, same

LOSSES: dict[str, Ours] = {"dapo": {"loss.type": "grpo_clip"}, "cispo": {"loss.type": "cispo", "loss.cliprange": 1.0}}
ESTIMATORS = {1: ("k2", False), 2: ("k3", False), 3: ("k1", True), 0: ("k1", False)}
"""model_utils.py 811: our estimator, and whether it is weighted by the ratio."""

SCHEDULES = {word: {"optimizer.schedule": word.partition("_")[0]} for word in (
    "constant_with_warmup", "constant", "linear", "cosine")}  # fmt: skip


def _kl(v: Theirs) -> Ours:
    if not v["beta"] or not v["load_ref_policy"]:
        return {"loss.kl.coefficient": 0.0}
    estimator, weighted = ESTIMATORS[v["kl_estimator"]]
    return {"loss.kl.coefficient": v["beta"], "loss.kl.estimator": estimator, "loss.kl.weighted_by_ratio": weighted}


def _kl_back(s: Ours) -> Theirs:
    if not s["loss.kl.coefficient"]:
        return {"beta": 0.0, "load_ref_policy": False}
    kind = s["loss.kl.estimator"], s["loss.kl.weighted_by_ratio"]
    words = {own: word for word, own in ESTIMATORS.items()}
    return {"beta": s["loss.kl.coefficient"], "load_ref_policy": True, "kl_estimator": words.get(kind, 2)}


def _rho(v: Theirs) -> Ours:
    if v["use_vllm_logprobs"]:  # 318: not with a correction
        return {"loss.proximal": "engine", "loss.importance.mode": "off"}
    made: dict[str, Any] = {"loss.proximal": "recompute", "loss.importance.mode": "off"}
    low, high, cut = (v[f"rho_{name}"] for name in ("mask_lower_bound", "mask_upper_bound", "clamp_upper_bound"))
    if not v["use_rho_correction"]:
        return made
    if not low and not high:
        return made | {"loss.importance.mode": "tis", "loss.importance.cap": cut or NO_CLIP}
    made |= {"loss.importance.mode": "icepop", "loss.importance.floor": low, "loss.importance.cap": high or NO_CLIP}
    if cut and cut < (high or NO_CLIP):
        raise NoCounterpart("rho_clamp_upper_bound cuts what the mask keeps; here weights are cut or masked", made)
    return made


def _rho_back(s: Ours) -> Theirs:
    cap = s["loss.importance.cap"] if s["loss.importance.cap"] < NO_CLIP else 0.0
    match s["loss.importance.mode"]:
        case "tis":
            return {"use_rho_correction": True, "rho_clamp_upper_bound": cap}
        case "icepop":
            masks = {"rho_mask_lower_bound": s["loss.importance.floor"], "rho_mask_upper_bound": cap}
            return {"use_rho_correction": True, "rho_clamp_upper_bound": 0.0, **masks}
    return {"use_rho_correction": False, "use_vllm_logprobs": s["loss.proximal"] == "engine"}


def _advantage(v: Theirs) -> Ours:
    if v["advantage_normalization_type"] == "centered":  # data_loader.py 1479
        return {"advantage.delta": "centered_rewards"}
    made = {"advantage.delta": "normalized_rewards", "advantage.eps": 1e-8}
    raise NoCounterpart("its deviation is without Bessel's correction: sqrt(G / (G - 1)) times advantages here", made)


def _lag(v: Theirs) -> Ours:
    if v["async_steps"] < 1:  # data_loader.py 523: refused there
        raise ValueError
    control = "in_flight" if v["inflight_updates"] else "wait"
    return {"max_lag": v["async_steps"], "lag_control": control, "placement.colocated": False}


def _rollouts(v: Theirs) -> int:
    return int(v["num_unique_prompts_rollout"]) * int(v["num_samples_per_prompt_rollout"])


ROWS = (
    # the loss
    means("loss_fn", "dapo", LOSSES),  # 77, 492
    same("clip_lower", 0.2, "loss.cliprange", when=lambda v: v["loss_fn"] == "dapo"),  # 113
    same("clip_higher", 0.272, "loss.cliprange_high"),
    means("loss_denominator", "token", {"token": {"loss.aggregation": "token_mean"}}),  # grpo_fast.py 654, 719
    Row({"beta": 0.05, "kl_estimator": 2, "load_ref_policy": True}, _kl, _kl_back),
    absent("ref_policy_update_freq", None, "the reference stays as it is: see loss.kl.reference"),
    Row({"use_rho_correction": True, "use_vllm_logprobs": False, "rho_clamp_upper_bound": 2.0,
         "rho_mask_lower_bound": 0.0, "rho_mask_upper_bound": 0.0}, _rho, _rho_back),  # 372
    absent("rho_clamp_lower_bound", 0.0, "weights are cut from above only"),  # 391
    absent("rho_mask_sequence_level", False, "a weight is masked by its own bounds"),  # 397
    absent("rho_mask_tv_divergence", False, "a weight is masked by its own bounds"),
    Row({"advantage_normalization_type": "centered"}, _advantage),
    absent("filter_zero_std_samples", True, "groups of equal rewards leave the loss's mean; here they stay in it",
           off=False),  # data_loader.py 419
    absent("active_sampling", False, "other groups take their place; dynamic_sampling samples again", loss=False),
    absent("mask_truncated_completions", False, "truncated responses are dropped before the means of groups are taken"),
    # the step
    same("num_samples_per_prompt_rollout", 4, "group_size"),
    Row({"num_unique_prompts_rollout": 16}, lambda v: {"rollout_batch_size": _rollouts(v)},
        lambda s: {"num_unique_prompts_rollout": s["rollout_batch_size"] // s["group_size"]}),
    same("num_mini_batches", 1, "minibatches_per_epoch"),
    same("num_epochs", 1, "epochs_per_batch"),
    Row({"total_episodes": 100_000}, lambda v: {"steps": max(1, v["total_episodes"] // _rollouts(v))},
        lambda s: {"total_episodes": s["steps"] * s["rollout_batch_size"]}, loss=False),  # grpo_fast.py 1032
    Row({"async_steps": 8, "inflight_updates": True}, _lag,
        lambda s: {"async_steps": max(1, s["max_lag"]), "inflight_updates": s["lag_control"] == "in_flight"}),
    same("seed", 42, "seed"),
    # sampling
    same("response_length", 256, "sampling.max_tokens"),
    same("temperature", 1.0, "sampling.temperature"),
    same("vllm_top_p", 1.0, "sampling.top_p"),
    absent("stop_strings", None, "set sampling.stop", loss=False),
    # the optimizer: torch.optim.AdamW (grpo_fast.py 375)
    same("learning_rate", 2e-5, "optimizer.learning_rate"),
    same("weight_decay", 0.0, "optimizer.weight_decay"),
    same("max_grad_norm", None, "optimizer.max_grad_norm", off=None),
    means("lr_scheduler_type", "linear", SCHEDULES, loss=False),  # grpo_fast.py 376
    same("warmup_ratio", 0.1, "optimizer.warmup_ratio", when=lambda v: v["lr_scheduler_type"] != "constant"),
    # the model: weights are loaded in bfloat16 (grpo_fast.py 356)
    model("model_name_or_path", None),
    Row({}, lambda v: {"optimizer.betas": [0.9, 0.999], "model.precision": "bfloat16", "engine.type": "vllm"}),
)  # fmt: skip

BESIDE = """
exp_name run_name output_dir dataset_* system_prompt_* max_prompt_token_length pack_length max_token_length
per_device_train_batch_size gradient_* deepspeed_* num_learners_per_node num_nodes single_gpu_mode
sequence_parallel_size vllm_* local_eval_* save_* checkpoint_* keep_last_* eval_* oe_eval_* try_* push_to_hub hf_*
wandb_* with_tracking report_to send_slack_alerts gs_* verbose chat_template* add_bos tokenizer_* model_* attn_*
apply_* verification_reward r1_style_* additive_format_reward reward_aggregator non_stop_penalty* llm_judge_* code_*
remap_verifier tool* max_tool_calls mask_tool_use no_resampling_pass_rate backend_timeout record_entropy
rollouts_save_path fsdp_* compile_model activation_* gather_* enable_queue_* queue_* resume_* dtype fused_optimizer
alpha
"""
OPEN_INSTRUCT = Table(
    name="open-instruct",
    version="e6c3044aa620",
    style="flags",
    rows=ROWS,
    renamed={
        "truncated_importance_sampling_ratio_cap": "rho_clamp_upper_bound",
        "top_p": "vllm_top_p",
        "ppo_epochs": "num_epochs",
    },
    beside=BESIDE,
)
