"""TRL's ``GRPOConfig``. Lines are of ``trl/trainer/grpo_config.py`` and, after a comma, of ``grpo_trainer.py``, both of
1.16.0; "hf" is transformers 5.19's ``training_args.py``."""

from __future__ import annotations

import math
from typing import Any

from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, same

CLIPPED = {
    "dapo": {"loss.type": "grpo_clip", "loss.aggregation": "token_mean"},
    "grpo": {"loss.type": "grpo_clip", "loss.aggregation": "sequence_mean"},
    "dr_grpo": {"loss.type": "grpo_clip", "loss.aggregation": "constant"},
    "luspo": {"loss.type": "grpo_clip", "loss.aggregation": "sequence_sum"},
    "bnpo": {"loss.type": "grpo_clip", "loss.aggregation": "token_mean"},
}
LOSSES = {**CLIPPED, "cispo": {"loss.type": "cispo", "loss.aggregation": "token_mean"}}
EPS = 1e-4


def _high(v: Theirs) -> float:
    """Return ``epsilon_high``, which is ``epsilon`` where it is not set (944)."""
    return float(v["epsilon"] if v["epsilon_high"] is None else v["epsilon_high"])


def _low_of_ours(v: Theirs) -> Ours:
    if v["loss_type"] in CLIPPED:
        return {"loss.cliprange": v["epsilon"]}
    return {"loss.cliprange": 1.0} if v["loss_type"] == "cispo" and _high(v) >= 1 else {}  # 3119: no lower bound


def _high_of_ours(v: Theirs) -> Ours:
    if v["loss_type"] in CLIPPED:
        return {"loss.cliprange_high": _high(v)}
    if v["loss_type"] == "cispo" and _high(v) < 1:
        raise NoCounterpart(f"with cispo it is the weight's bound itself, {_high(v):g}; here that is at least 1")
    return {"loss.cliprange_high": _high(v) - 1} if v["loss_type"] == "cispo" else {}


def _high_of_theirs(s: Ours) -> Theirs:
    high = s["loss.cliprange_high"]
    return {} if high is None else {"epsilon_high": high + 1 if s["loss.type"] == "cispo" else high}


def _delta(v: Theirs) -> Ours:
    if v["delta"] is None or v["loss_type"] not in CLIPPED:
        return {}
    if v["delta"] < 1 + _high(v):
        raise NoCounterpart("below 1 + epsilon_high it bounds no negative advantage, and some positive ones")  # 3125
    return {"loss.dual_clip": v["delta"]}


def _kl(v: Theirs) -> Ours:
    if v["beta"] == 0:
        return {}
    made = {"loss.kl.coefficient": v["beta"], "loss.kl.estimator": "k3"}
    weighted = {"loss.kl.weighted_by_ratio": bool(v["use_bias_correction_kl"])}
    if v["use_bias_correction_kl"] and v["importance_sampling_level"] == "sequence":  # 3112
        raise NoCounterpart("it is weighted by the ratio of the response; here by that of the token", made | weighted)
    return made | weighted


def _kl_back(s: Ours) -> Theirs:
    weighted = {"use_bias_correction_kl": s["loss.kl.weighted_by_ratio"]} if s["loss.kl.coefficient"] else {}
    return {"beta": s["loss.kl.coefficient"], **weighted}


def _steps_per_batch(v: Theirs) -> tuple[int, int]:
    """Return the rollouts of one generation, and how many optimizer steps one pass over them makes."""
    per, accumulated, group = (
        v[key] for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")
    )
    if v["generation_batch_size"] is not None:
        parts = v["generation_batch_size"] // per
    else:
        parts = accumulated if v["steps_per_generation"] is None else v["steps_per_generation"]
    processes = group // math.gcd(group, per * parts)
    if parts % accumulated == 0:
        return per * parts * processes, parts // accumulated
    if accumulated % parts == 0:  # several generations make one optimizer step, all by one policy
        return per * accumulated * processes, 1
    raise NoCounterpart("an optimizer step ends within a generation", {"rollout_batch_size": per * parts * processes})


def _batch(v: Theirs) -> Ours:
    size, minibatches = _steps_per_batch(v)
    return {
        "rollout_batch_size": size,
        "minibatches_per_epoch": minibatches,
        "gradient_accumulation_steps": v["gradient_accumulation_steps"],
    }


def _batch_back(s: Ours) -> Theirs:
    accumulated, minibatches = s["gradient_accumulation_steps"], s["minibatches_per_epoch"]
    return {
        "per_device_train_batch_size": s["rollout_batch_size"] // (accumulated * minibatches),
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * minibatches,
    }


def _denominator(v: Theirs) -> Ours:
    minibatches = _steps_per_batch(v)[1]
    if LOSSES.get(v["loss_type"], {}).get("loss.aggregation") == "token_mean":
        if v["loss_type"] == "bnpo":  # 3160
            raise NoCounterpart("the mean of each microbatch's own mean of tokens; here one mean over all tokens")
        if minibatches > 1:  # 3170
            raise NoCounterpart("each optimizer step is divided by the mean tokens of all; here by its own tokens")
    return {}


def _steps(v: Theirs) -> Ours:
    if v["max_steps"] <= 0:
        raise NoCounterpart("epochs take as many steps as the data set has; `steps` is left at its default")
    per_batch = _steps_per_batch(v)[1] * v["num_iterations"]
    return {"steps": math.ceil(v["max_steps"] / per_batch)}


def _entropy(v: Theirs) -> Ours:
    made = {"loss.entropy_coefficient": v["entropy_coef"]} if v["entropy_coef"] else {}
    if made and LOSSES.get(v["loss_type"], {}).get("loss.aggregation") != "token_mean":  # 3195
        raise NoCounterpart("its mean is over all tokens; here it is aggregated as the loss is", made)
    return made


MODES = {
    "token_truncate": {"loss.importance.mode": "tis", "loss.importance.level": "token"},
    "sequence_truncate": {"loss.importance.mode": "tis", "loss.importance.level": "sequence"},
    "token_mask": {"loss.importance.mode": "icepop", "loss.importance.level": "token"},
    "sequence_mask": {"loss.importance.mode": "icepop", "loss.importance.level": "sequence"},
}


def _importance(v: Theirs) -> Ours:
    if not (v["use_vllm"] and v["vllm_importance_sampling_correction"]) or v["loss_type"] == "vespo":
        return {"loss.importance.mode": "off"}
    mode = MODES[v["vllm_importance_sampling_mode"]]
    floor, cap = v["vllm_importance_sampling_clip_min"], v["vllm_importance_sampling_clip_max"]
    made: dict[str, Any] = {**mode, "loss.importance.cap": 1e30 if cap is None else cap}
    if mode["loss.importance.mode"] == "icepop":
        made["loss.importance.floor"] = 0.0 if floor is None else floor
    elif floor:
        raise NoCounterpart("weights have no lower bound here with tis", made)
    if made["loss.importance.cap"] < 1 or (floor or 0) > 1:
        raise NoCounterpart("bounds lie on both sides of 1 here", {"loss.importance.mode": "off"})
    return made


def _importance_back(s: Ours) -> Theirs:
    mode = [word for word, meant in MODES.items() if meant.items() <= s.items()]
    if not mode:
        return {"vllm_importance_sampling_correction": False}
    bounds = {"vllm_importance_sampling_clip_max": s["loss.importance.cap"]}
    if s["loss.importance.mode"] == "icepop":
        bounds["vllm_importance_sampling_clip_min"] = s["loss.importance.floor"] or None
    return {"use_vllm": True, "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": mode[0], **bounds}  # fmt: skip


def _reference(v: Theirs) -> Ours:
    if not v["sync_ref_model"] or v["beta"] == 0:
        return {}
    every, per_batch = v["ref_model_sync_steps"], _steps_per_batch(v)[1] * v["num_iterations"]
    if v["ref_model_mixup_alpha"] == 1 and every % per_batch == 0:
        return {"loss.kl.reference": "reclone", "loss.kl.reclone_every": every // per_batch}
    if every != per_batch or not 0 < v["ref_model_mixup_alpha"] < 1:
        raise NoCounterpart("it is averaged every so many optimizer steps; here after each training step")
    return {"loss.kl.reference": "polyak", "loss.kl.alpha": v["ref_model_mixup_alpha"]}


def _reference_back(s: Ours) -> Theirs:
    per_batch = s["epochs_per_batch"] * s["minibatches_per_epoch"]
    match s["loss.kl.reference"]:
        case "polyak":
            alpha, every = s["loss.kl.alpha"], per_batch
        case "reclone":
            alpha, every = 1.0, s["loss.kl.reclone_every"] * per_batch
        case _:
            return {"sync_ref_model": False}
    return {"sync_ref_model": True, "ref_model_mixup_alpha": alpha, "ref_model_sync_steps": every}


SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant",
             "cosine_with_min_lr": "cosine"}  # fmt: skip


def _schedule(v: Theirs) -> Ours:
    name, more = v["lr_scheduler_type"], v["lr_scheduler_kwargs.min_lr_rate"]
    if name not in SCHEDULES:
        raise NoCounterpart(f"known are {', '.join(SCHEDULES)}")
    made = {"optimizer.schedule": SCHEDULES[name]}
    if name == "cosine_with_min_lr" and more is not None:
        made["optimizer.min_learning_rate_ratio"] = more
    steps = v["warmup_ratio"] or v["warmup_steps"]
    if name == "constant" or not steps:
        return made
    return made | {"optimizer.warmup_ratio" if steps < 1 else "optimizer.warmup_steps": steps}


def _schedule_back(s: Ours) -> Theirs:
    name, least = s["optimizer.schedule"], s["optimizer.min_learning_rate_ratio"]
    warmup = s["optimizer.warmup_steps"] or s["optimizer.warmup_ratio"]
    if name == "constant":
        return {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": warmup}
    if name == "cosine" and least:
        return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs.min_lr_rate": least,
                "warmup_steps": warmup}  # fmt: skip
    return {"lr_scheduler_type": name, "warmup_steps": warmup}


def _advantage(v: Theirs) -> Ours:
    words = {"group": "normalized_rewards", True: "normalized_rewards", "batch": "batch_normalized_rewards"}
    centered = v["scale_rewards"] in ("none", False)
    return {"advantage.delta": "centered_rewards" if centered else words[v["scale_rewards"]]} | (
        {} if centered else {"advantage.eps": EPS}  # 2788: fixed
    )


def _advantage_back(s: Ours) -> Theirs:
    words = {"normalized_rewards": "group", "batch_normalized_rewards": "batch", "centered_rewards": "none"}
    return {"scale_rewards": words[s["advantage.delta"]]} if s["advantage.delta"] in words else {}


def _dtype(v: Theirs) -> Ours:
    if v["model_name_or_path"] is None:
        return {}
    if v["dtype"] not in ("float32", "bfloat16"):
        raise NoCounterpart("weights are trained in float32 or bfloat16")
    return {"model.dtype": v["dtype"]}


ROWS = (
    # the loss
    means("loss_type", "dapo", LOSSES, {  # 621, 3117
        "sapo": "no soft gate of the ratio", "vespo": "no gamma weights of whole responses"}),
    Row(theirs={"max_completion_length": 512}, ours=("sampling.max_tokens", "loss.constant"),  # 229, 3166
        to=lambda v: {"sampling.max_tokens": v["max_completion_length"]}
        | ({"loss.constant": v["max_completion_length"]} if v["loss_type"] == "dr_grpo" else {}),
        back=lambda s: {"max_completion_length": s["sampling.max_tokens"]}),
    Row(theirs={"epsilon": 0.2}, ours=("loss.cliprange",), to=_low_of_ours,  # 491
        back=lambda s: {"epsilon": s["loss.cliprange"]} if s["loss.type"] == "grpo_clip" else {}),
    Row(theirs={"epsilon_high": None}, ours=("loss.cliprange_high",), to=_high_of_ours, back=_high_of_theirs),  # 510
    Row(theirs={"delta": None}, ours=("loss.dual_clip",), to=_delta, back=lambda s: {"delta": s["loss.dual_clip"]}),
    same("importance_sampling_level", "token", "loss.ratio_level"),  # 571, 3091
    Row(theirs={"beta": 0.0, "use_bias_correction_kl": True}, to=_kl, back=_kl_back,  # 475, 766, 3107
        ours=("loss.kl.coefficient", "loss.kl.estimator", "loss.kl.weighted_by_ratio")),
    Row(theirs={"sync_ref_model": False, "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512}, to=_reference,
        ours=("loss.kl.reference", "loss.kl.alpha", "loss.kl.reclone_every"), back=_reference_back),
    Row(theirs={"scale_rewards": "group"}, ours=("advantage.delta", "advantage.eps"),  # 605, 2786
        to=_advantage, back=_advantage_back),
    Row(theirs={"entropy_coef": 0.0}, ours=("loss.entropy_coefficient",), to=_entropy,
        back=lambda s: {"entropy_coef": s["loss.entropy_coefficient"]}),
    same("mask_truncated_completions", False, "loss.mask_truncated"),
    means("use_vllm", False, {True: {"engine.type": "vllm"}, False: {"engine.type": "native"}}),
    Row(theirs={"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask",
                "vllm_importance_sampling_clip_min": None, "vllm_importance_sampling_clip_max": 3.0},
        ours=tuple(f"loss.importance.{name}" for name in ("mode", "level", "cap", "floor")),
        to=_importance, back=_importance_back),  # 722, 2656
    absent("multi_objective_aggregation", "sum_then_normalize", "rewards are summed, then normalized"),
    absent("top_entropy_quantile", 1.0, "no mask of tokens by their entropy"),
    absent("off_policy_mask_threshold", None, "no mask of responses by their KL"),
    absent("use_adaptive_entropy", False, "the entropy bonus is constant"),
    absent("router_aux_loss_coef", None, "no auxiliary loss of experts"),
    absent("use_peft", False, "no adapters: all weights are trained", loss=False),
    # the step
    same("num_generations", 8, "group_size"),
    same("num_iterations", 1, "epochs_per_batch"),
    Row(theirs={"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1,  # hf 775, 847
                "steps_per_generation": None, "generation_batch_size": None},
        ours=("rollout_batch_size", "minibatches_per_epoch", "gradient_accumulation_steps"),
        to=_batch, back=_batch_back),
    Row(theirs={"loss_type": "dapo"}, to=_denominator),
    Row(theirs={"max_steps": -1}, ours=("steps",), to=_steps, loss=False,
        back=lambda s: {"max_steps": s["steps"] * s["epochs_per_batch"] * s["minibatches_per_epoch"]}),
    same("seed", 42, "seed"),
    # sampling
    same("temperature", 1.0, "sampling.temperature"),
    same("top_p", 1.0, "sampling.top_p"),
    absent("top_k", 0, "all tokens may be sampled", loss=False),
    absent("min_p", None, "all tokens may be sampled", loss=False),
    absent("repetition_penalty", 1.0, "the policy's own distribution is sampled", loss=False),
    # the optimizer
    same("learning_rate", 1e-6, "optimizer.learning_rate"),  # 214
    Row(theirs={"adam_beta1": 0.9, "adam_beta2": 0.999}, ours=("optimizer.betas",),
        to=lambda v: {"optimizer.betas": [v["adam_beta1"], v["adam_beta2"]]},
        back=lambda s: dict(zip(("adam_beta1", "adam_beta2"), s["optimizer.betas"], strict=True))),
    same("weight_decay", 0.0, "optimizer.weight_decay"),
    same("max_grad_norm", 1.0, "optimizer.max_grad_norm", {0: None}),
    Row(theirs={"lr_scheduler_type": "linear", "lr_scheduler_kwargs.min_lr_rate": None,  # hf 787, 796
                "warmup_steps": 0, "warmup_ratio": 0.0},
        ours=("optimizer.schedule", "optimizer.min_learning_rate_ratio", "optimizer.warmup_steps",
              "optimizer.warmup_ratio"), to=_schedule, back=_schedule_back, loss=False),
    means("optim", "adamw_torch_fused", {key: {} for key in ("adamw_torch_fused", "adamw_torch")}, loss=False),
    # the model
    Row(theirs={"model_name_or_path": None}, ours=("model.path",), loss=False,
        to=lambda v: {"model.type": "folder", "model.path": v["model_name_or_path"]} if v["model_name_or_path"] else {},
        back=lambda s: {"model_name_or_path": s["model.path"]} if s["model.path"] else {}),
    Row(theirs={"dtype": "float32"}, ours=("model.dtype",), to=_dtype, loss=False,  # model_config.py 89
        back=lambda s: {"dtype": s["model.dtype"]} if s["model.path"] else {}),
    Row(theirs={"bf16": None, "fp16": False}, ours=("model.precision",),  # base_config.py: bf16 if not fp16
        to=lambda v: {"model.precision": "float16" if v["fp16"] else "float32" if v["bf16"] is False else "bfloat16"},
        back=lambda s: {"bf16": s["model.precision"] == "bfloat16", "fp16": s["model.precision"] == "float16"}),
)  # fmt: skip

BESIDE = """
*output_dir do_* eval_* save_* load_best_* log* hub_* push_to_hub* report_to run_name project* trackio_* wandb_*
dataset_* reward_funcs reward_weights code_* system_prompt chat_template* callbacks benchmarks num_train_epochs
per_device_eval_* num_generations_eval max_prompt_length model_* trust_remote_code attn_implementation
gradient_checkpointing* dataloader_* remove_unused_columns shuffle_dataset ddp_* fsdp* deepspeed* use_liger_*
vllm_mode vllm_server_* vllm_gpu_* vllm_tensor_* vllm_device vllm_dtype vllm_max_* vllm_enable_* vllm_group_port
resume_* ignore_data_skip data_seed num_completions_to_print disable_dropout lora_* tf32 use_cpu bf16_full_eval
torch_compile* pad_to_* cache_implementation ds3_*
"""
TRL = Table(
    name="TRL",
    version="1.16.0",
    checked=True,
    style="yaml",
    rows=ROWS,
    renamed={"vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max", "torch_dtype": "dtype"},
    assumes=(
        "as few processes as sample whole groups: a config does not say how many there are, and "
        "rollout_batch_size is that of all of them",
    ),
    beside=BESIDE,
)
