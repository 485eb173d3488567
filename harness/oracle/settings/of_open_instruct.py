"""open-instruct's ``grpo_fast.py``, by its published source: not checked by its code. Lines are of
``open_instruct/grpo_utils.py`` where no other file is named."""

from __future__ import annotations

from typing import Any

from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, same

LOSSES: dict[str, Ours] = {"dapo": {"loss.type": "grpo_clip"}, "cispo": {"loss.type": "cispo", "loss.cliprange": 1.0}}


def _denominator(v: Theirs) -> Ours:
    if v["loss_denominator"] == "token":
        return {"loss.aggregation": "token_mean"}
    size = v["num_unique_prompts_rollout"] * v["num_samples_per_prompt_rollout"] // v["num_mini_batches"]
    constant = float(v["loss_denominator"]) / size
    if constant != int(constant) or constant < 1:
        nearest = {"loss.aggregation": "constant", "loss.constant": max(1, round(constant))}
        raise NoCounterpart("it divides the sum of a batch; here a whole number times its responses does", nearest)
    return {"loss.aggregation": "constant", "loss.constant": int(constant)}


def _denominator_back(s: Ours) -> Theirs:
    if s["loss.aggregation"] == "constant":
        size = s["rollout_batch_size"] // s["minibatches_per_epoch"]
        return {"loss_denominator": s["loss.constant"] * size}
    return {"loss_denominator": "token"}


ESTIMATORS = {1: ("k2", False), 2: ("k3", False), 3: ("k1", True), 0: ("k1", False)}  # model_utils.py 811


def _kl(v: Theirs) -> Ours:
    if not v["beta"] or not v["load_ref_policy"]:
        return {"loss.kl.coefficient": 0.0}
    estimator, weighted = ESTIMATORS[v["kl_estimator"]]
    made = {"loss.kl.coefficient": v["beta"], "loss.kl.estimator": estimator}
    return made | ({"loss.kl.weighted_by_ratio": True} if weighted else {})


def _kl_back(s: Ours) -> Theirs:
    if not s["loss.kl.coefficient"]:
        return {"beta": 0.0, "load_ref_policy": False}
    kind = s["loss.kl.estimator"], s["loss.kl.weighted_by_ratio"]
    word = [word for word, own in ESTIMATORS.items() if own == kind][:1] or [2]
    return {"beta": s["loss.kl.coefficient"], "load_ref_policy": True, "kl_estimator": word[0]}


def _reference(v: Theirs) -> Ours:
    every, alpha = v["ref_policy_update_freq"], v["alpha"]
    if every is None or not v["beta"] or not v["load_ref_policy"] or not alpha:
        return {}
    if alpha == 1:
        return {"loss.kl.reference": "reclone", "loss.kl.reclone_every": every}
    if every != 1:
        raise NoCounterpart("it is averaged every so many training steps; here after each")
    return {"loss.kl.reference": "polyak", "loss.kl.alpha": alpha}


def _reference_back(s: Ours) -> Theirs:
    match s["loss.kl.reference"]:
        case "polyak":
            return {"ref_policy_update_freq": 1, "alpha": s["loss.kl.alpha"]}
        case "reclone":
            return {"ref_policy_update_freq": s["loss.kl.reclone_every"], "alpha": 1.0}
    return {}


def _rho(v: Theirs) -> Ours:
    if v["use_vllm_logprobs"]:  # 318: not with a correction
        return {"loss.proximal": "engine", "loss.importance.mode": "off"}
    made: dict[str, Any] = {"loss.proximal": "recompute"}
    if not v["use_rho_correction"]:
        return made | {"loss.importance.mode": "off"}
    low, high = v["rho_mask_lower_bound"], v["rho_mask_upper_bound"]
    cut = v["rho_clamp_upper_bound"] or 1e30
    masks = {"loss.importance.mode": "icepop", "loss.importance.floor": low, "loss.importance.cap": high or 1e30}
    made |= masks if low or high else {"loss.importance.mode": "tis", "loss.importance.cap": cut}
    if v["rho_clamp_lower_bound"] or v["rho_mask_sequence_level"] or v["rho_mask_tv_divergence"]:  # 391, 397
        raise NoCounterpart("weights are cut from above or masked by their own bounds here", made)
    if (low or high) and cut < (high or 1e30):
        raise NoCounterpart("rho_clamp_upper_bound cuts what the mask keeps; here weights are cut or masked", made)
    return made


def _rho_back(s: Ours) -> Theirs:
    cap, floor = s["loss.importance.cap"], s["loss.importance.floor"]
    match s["loss.importance.mode"]:
        case "tis":
            return {"use_rho_correction": True, "rho_clamp_upper_bound": cap if cap < 1e30 else 0.0}
        case "icepop":
            return {"use_rho_correction": True, "rho_clamp_upper_bound": 0.0, "rho_mask_lower_bound": floor,
                    "rho_mask_upper_bound": cap if cap < 1e30 else 0.0}  # fmt: skip
    return {"use_rho_correction": False, "use_vllm_logprobs": s["loss.proximal"] == "engine"}


def _advantage(v: Theirs) -> Ours:
    if v["advantage_normalization_type"] == "centered":  # data_loader.py 1479
        return {"advantage.delta": "centered_rewards"}
    made = {"advantage.delta": "normalized_rewards", "advantage.eps": 1e-8}
    why = "its deviation is without Bessel's correction: advantages are sqrt(G / (G - 1)) times those here"
    raise NoCounterpart(why, made if v["advantage_normalization_type"] == "standard" else {})


def _steps(v: Theirs) -> Ours:  # grpo_fast.py 1032
    size = v["num_unique_prompts_rollout"] * v["num_samples_per_prompt_rollout"]
    return {"steps": max(1, v["total_episodes"] // size)}


def _lag(v: Theirs) -> Ours:
    if v["async_steps"] < 1:  # data_loader.py 523: refused there
        raise ValueError
    control = "in_flight" if v["inflight_updates"] else "wait"
    return {"max_lag": v["async_steps"], "lag_control": control, "placement.colocated": False}


def _schedule(v: Theirs) -> Ours:  # grpo_fast.py 376; the names are those of transformers
    name = v["lr_scheduler_type"]
    warmup = {"optimizer.warmup_ratio": v["warmup_ratio"]} if v["warmup_ratio"] and name != "constant" else {}
    words = {"constant_with_warmup": "constant", "constant": "constant", "linear": "linear", "cosine": "cosine"}
    return {"optimizer.schedule": words[name], **warmup}


def _schedule_back(s: Ours) -> Theirs:
    name = s["optimizer.schedule"]
    return {"lr_scheduler_type": "constant_with_warmup" if name == "constant" else name,
            "warmup_ratio": s["optimizer.warmup_ratio"]}  # fmt: skip


ROWS = (
    # the loss
    means("loss_fn", "dapo", LOSSES),  # 77, 492
    same("clip_lower", 0.2, "loss.cliprange", when=lambda v: v["loss_fn"] == "dapo"),  # 113
    same("clip_higher", 0.272, "loss.cliprange_high"),
    Row(theirs={"loss_denominator": "token"}, ours=("loss.aggregation", "loss.constant"), to=_denominator,
        back=_denominator_back),  # grpo_fast.py 654, 719
    Row(theirs={"beta": 0.05, "kl_estimator": 2, "load_ref_policy": True}, to=_kl, back=_kl_back,
        ours=("loss.kl.coefficient", "loss.kl.estimator", "loss.kl.weighted_by_ratio")),
    Row(theirs={"alpha": 0.6, "ref_policy_update_freq": None}, to=_reference, back=_reference_back,
        ours=("loss.kl.reference", "loss.kl.alpha", "loss.kl.reclone_every")),
    Row(theirs={"use_rho_correction": True, "use_vllm_logprobs": False, "rho_clamp_lower_bound": 0.0,
                "rho_clamp_upper_bound": 2.0, "rho_mask_lower_bound": 0.0, "rho_mask_upper_bound": 0.0,
                "rho_mask_sequence_level": False, "rho_mask_tv_divergence": False},
        ours=("loss.proximal", "loss.importance.mode", "loss.importance.floor", "loss.importance.cap"),
        to=_rho, back=_rho_back),  # 372
    Row(theirs={"advantage_normalization_type": "centered"}, ours=("advantage.delta", "advantage.eps"), to=_advantage),
    absent("filter_zero_std_samples", True, "groups of equal rewards leave the loss's mean; here they stay in it",
           off=False),  # data_loader.py 419
    absent("active_sampling", False, "other groups take their place; dynamic_sampling samples again", loss=False),
    absent("mask_truncated_completions", False, "truncated responses are dropped before the means of groups are taken"),
    # the step
    same("num_samples_per_prompt_rollout", 4, "group_size"),
    Row(theirs={"num_unique_prompts_rollout": 16}, ours=("rollout_batch_size",),
        to=lambda v: {"rollout_batch_size": v["num_unique_prompts_rollout"] * v["num_samples_per_prompt_rollout"]},
        back=lambda s: {"num_unique_prompts_rollout": s["rollout_batch_size"] // s["group_size"]}),
    same("num_mini_batches", 1, "minibatches_per_epoch"),
    same("num_epochs", 1, "epochs_per_batch"),
    Row(theirs={"total_episodes": 100_000}, ours=("steps",), to=_steps, loss=False,
        back=lambda s: {"total_episodes": s["steps"] * s["rollout_batch_size"]}),
    Row(theirs={"async_steps": 8, "inflight_updates": True}, ours=("max_lag", "lag_control"), to=_lag,
        back=lambda s: {"async_steps": max(1, s["max_lag"]), "inflight_updates": s["lag_control"] == "in_flight"}),
    same("seed", 42, "seed"),
    # sampling
    same("response_length", 256, "sampling.max_tokens"),
    same("temperature", 1.0, "sampling.temperature"),
    same("vllm_top_p", 1.0, "sampling.top_p"),
    Row(theirs={"stop_strings": None}, ours=("sampling.stop",),
        to=lambda v: {"sampling.stop": [v["stop_strings"]] if isinstance(v["stop_strings"], str)
                      else list(v["stop_strings"] or ())},
        back=lambda s: {"stop_strings": list(s["sampling.stop"])} if s["sampling.stop"] else {}),
    # the optimizer: torch.optim.AdamW (grpo_fast.py 375)
    same("learning_rate", 2e-5, "optimizer.learning_rate"),
    Row(theirs={}, ours=("optimizer.betas",), to=lambda v: {"optimizer.betas": [0.9, 0.999]}),
    same("weight_decay", 0.0, "optimizer.weight_decay"),
    same("max_grad_norm", None, "optimizer.max_grad_norm"),
    Row(theirs={"lr_scheduler_type": "linear", "warmup_ratio": 0.1}, to=_schedule, back=_schedule_back, loss=False,
        ours=("optimizer.schedule", "optimizer.warmup_ratio")),
    # the model: weights are loaded in bfloat16 (grpo_fast.py 356)
    Row(theirs={"model_name_or_path": None}, ours=("model.path",), loss=False,
        to=lambda v: {"model.type": "folder", "model.path": v["model_name_or_path"] or "MODEL",
                      "model.precision": "bfloat16", "engine.type": "vllm"},
        back=lambda s: {"model_name_or_path": s["model.path"]} if s["model.path"] else {}),
)  # fmt: skip

BESIDE = """
exp_name run_name output_dir dataset_* system_prompt_* max_prompt_token_length pack_length max_token_length
per_device_train_batch_size gradient_* deepspeed_* num_learners_per_node num_nodes single_gpu_mode
sequence_parallel_size vllm_* local_eval_* save_* checkpoint_* keep_last_* eval_* oe_eval_* try_* push_to_hub hf_*
wandb_* with_tracking report_to send_slack_alerts gs_* verbose chat_template* add_bos tokenizer_* model_* attn_*
apply_* verification_reward r1_style_* additive_format_reward reward_aggregator non_stop_penalty* llm_judge_* code_*
remap_verifier tool* max_tool_calls mask_tool_use no_resampling_pass_rate backend_timeout record_entropy
rollouts_save_path fsdp_* compile_model activation_* gather_* enable_queue_* queue_* resume_* dtype fused_optimizer
"""
OPEN_INSTRUCT = Table(
    name="open-instruct",
    version="e6c3044aa620",
    checked=False,
    style="flags",
    rows=ROWS,
    renamed={
        "truncated_importance_sampling_ratio_cap": "rho_clamp_upper_bound",
        "top_p": "vllm_top_p",
        "ppo_epochs": "num_epochs",
    },
    beside=BESIDE,
)
