"""TRL's ``GRPOConfig``. Lines are of ``trl/trainer/grpo_config.py`` and, after a comma, of ``grpo_trainer.py``, both of
1.16.0; "hf" is transformers 5.19's ``training_args.py``."""

from __future__ import annotations

import math
from typing import Any

from harness.oracle.peers.common import NO_CLIP
from harness.oracle.peers.of_trl import CORRECTION, LOSS_TYPES, MODES, SCALES, words
from harness.oracle.settings.table import NoCounterpart, Ours, Row, Table, Theirs, absent, means, model, same
from harness.run.with_trl import EPS

LOSSES = {
    word: {"loss.type": kind, "loss.aggregation": aggregation} for (kind, aggregation), word in LOSS_TYPES.items()
} | {"bnpo": {"loss.type": "grpo_clip", "loss.aggregation": "token_mean"}}
DELTAS = {word: {"advantage.delta": delta} for delta, word in SCALES.items()}
SCHEDULES = {word: {"optimizer.schedule": word.partition("_")[0]} for word in (
    "constant_with_warmup", "linear", "cosine_with_min_lr", "cosine", "constant")}  # fmt: skip
"""hf 787"""


def _is_mean_of_tokens(v: Theirs) -> bool:
    return LOSSES.get(v["loss_type"], {}).get("loss.aggregation") == "token_mean"


def _clip(v: Theirs) -> Ours:
    """Bounds of the ratio; ``epsilon_high`` is ``epsilon`` where it is not set (944)."""
    low = float(v["epsilon"])
    high = low if v["epsilon_high"] is None else float(v["epsilon_high"])
    if v["loss_type"] == "cispo":  # 3119: no lower bound
        if high < 1:
            raise NoCounterpart(f"with cispo it is the weight's bound itself, {high:g}; here that is at least 1")
        return {"loss.cliprange": 1.0, "loss.cliprange_high": high - 1}
    if v["loss_type"] not in LOSSES:
        return {}
    made = {"loss.cliprange": low, "loss.cliprange_high": high}
    if v["delta"] is None:
        return made
    if float(v["delta"]) < 1 + high:  # 3125
        raise NoCounterpart("delta below 1 + epsilon_high bounds no negative advantage, and some positive ones", made)
    return made | {"loss.dual_clip": v["delta"]}


def _kl(v: Theirs) -> Ours:
    if v["beta"] == 0:
        return {}
    weighted = v["use_bias_correction_kl"]
    made = {"loss.kl.coefficient": v["beta"], "loss.kl.estimator": "k3", "loss.kl.weighted_by_ratio": weighted}
    if weighted and v["importance_sampling_level"] == "sequence":  # 3112
        raise NoCounterpart("it is weighted by the ratio of the response; here by that of the token", made)
    return made


def _importance(v: Theirs) -> Ours:
    if not (v["use_vllm"] and v[f"{CORRECTION}correction"]) or v["loss_type"] == "vespo":
        return {"loss.importance.mode": "off"}
    level, _, kind = v[f"{CORRECTION}mode"].partition("_")
    mode = {word: own for own, word in MODES.items()}[kind]
    floor, cap = v[f"{CORRECTION}clip_min"], v[f"{CORRECTION}clip_max"]
    made: dict[str, Any] = {f"loss.importance.{key}": value for key, value in (("mode", mode), ("level", level))}
    made["loss.importance.cap"] = NO_CLIP if cap is None else cap
    if mode == "tis" and floor:
        raise NoCounterpart("weights have no lower bound here with tis", made)
    return made if mode == "tis" else made | {"loss.importance.floor": floor or 0.0}


def _steps_per_batch(v: Theirs) -> tuple[int, int]:
    """Return the rollouts of one generation, and how many optimizer steps one pass over them makes."""
    per, accumulated, group = (
        int(v[key]) for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations")
    )
    parts = int(v["steps_per_generation"] or v["gradient_accumulation_steps"])
    if v["generation_batch_size"] is not None:
        parts = int(v["generation_batch_size"]) // per
    processes = group // math.gcd(group, per * parts)
    if parts % accumulated == 0:
        return per * parts * processes, parts // accumulated
    if accumulated % parts == 0:  # several generations make one optimizer step, all by one policy
        return per * accumulated * processes, 1
    raise NoCounterpart("an optimizer step ends within a generation", {"rollout_batch_size": per * parts * processes})


def _batch(v: Theirs) -> Ours:
    size, minibatches = _steps_per_batch(v)
    accumulated = v["gradient_accumulation_steps"]
    made = {
        "rollout_batch_size": size,
        "minibatches_per_epoch": minibatches,
        "gradient_accumulation_steps": accumulated,
    }
    if v["loss_type"] == "bnpo":  # 3160
        raise NoCounterpart("the mean of each microbatch's own mean of tokens; here one mean over all tokens", made)
    if minibatches > 1 and _is_mean_of_tokens(v):  # 3170
        raise NoCounterpart("each optimizer step is divided by the mean tokens of all; here by its own tokens", made)
    return made


def _batch_back(s: Ours) -> Theirs:
    accumulated, minibatches = s["gradient_accumulation_steps"], s["minibatches_per_epoch"]
    return {
        "per_device_train_batch_size": s["rollout_batch_size"] // (accumulated * minibatches),
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * minibatches,
    }


def _steps(v: Theirs) -> Ours:
    if v["max_steps"] <= 0:
        raise NoCounterpart("epochs take as many steps as the data set has; `steps` is left at its default")
    return {"steps": math.ceil(v["max_steps"] / (_steps_per_batch(v)[1] * int(v["num_iterations"])))}


def _entropy(v: Theirs) -> Ours:
    made = {"loss.entropy_coefficient": v["entropy_coef"]}
    if v["entropy_coef"] and not _is_mean_of_tokens(v):  # 3195
        raise NoCounterpart("its mean is over all tokens; here it is aggregated as the loss is", made)
    return made


def _warmup(v: Theirs) -> Ours:
    steps = v["warmup_ratio"] or v["warmup_steps"]
    if not steps or v["lr_scheduler_type"] == "constant":
        return {}
    return {"optimizer.warmup_ratio" if steps < 1 else "optimizer.warmup_steps": steps}


ROWS = (
    # the loss; ``words`` is the way back
    means("loss_type", "dapo", LOSSES, {  # 621, 3117
        "sapo": "no soft gate of the ratio", "vespo": "no gamma weights of whole responses"}),
    Row({"max_completion_length": 512},  # 229, 3166
        lambda v: {"sampling.max_tokens": v["max_completion_length"]}
        | ({"loss.constant": v["max_completion_length"]} if v["loss_type"] == "dr_grpo" else {}),
        lambda s: {"max_completion_length": s["sampling.max_tokens"]}),
    Row({"epsilon": 0.2, "epsilon_high": None, "delta": None}, _clip),  # 491, 510
    same("importance_sampling_level", "token", "loss.ratio_level"),  # 571, 3091
    Row({"beta": 0.0, "use_bias_correction_kl": True}, _kl),  # 475, 766, 3107
    absent("sync_ref_model", False, "the reference stays as it is: see loss.kl.reference"),
    means("scale_rewards", "group", DELTAS | {True: DELTAS["group"], False: DELTAS["none"]}),  # 605, 2786
    Row({}, lambda v: {"advantage.eps": EPS}),  # 2788
    Row({"entropy_coef": 0.0}, _entropy),
    same("mask_truncated_completions", False, "loss.mask_truncated"),
    means("use_vllm", False, {True: {"engine.type": "vllm"}, False: {"engine.type": "native"}}),
    Row({f"{CORRECTION}correction": True, f"{CORRECTION}mode": "sequence_mask", f"{CORRECTION}clip_min": None,
         f"{CORRECTION}clip_max": 3.0}, _importance),  # 722, 2656
    absent("multi_objective_aggregation", "sum_then_normalize", "rewards are summed, then normalized"),
    absent("top_entropy_quantile", 1.0, "no mask of tokens by their entropy"),
    absent("off_policy_mask_threshold", None, "no mask of responses by their KL"),
    absent("use_adaptive_entropy", False, "the entropy bonus is constant"),
    absent("router_aux_loss_coef", None, "no auxiliary loss of experts"),
    absent("use_peft", False, "no adapters: all weights are trained", loss=False),
    # the step
    same("num_generations", 8, "group_size"),
    same("num_iterations", 1, "epochs_per_batch"),
    Row({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1,  # hf 775, 847
         "steps_per_generation": None, "generation_batch_size": None}, _batch, _batch_back),
    Row({"max_steps": -1}, _steps,
        lambda s: {"max_steps": s["steps"] * s["epochs_per_batch"] * s["minibatches_per_epoch"]}, loss=False),
    same("seed", 42, "seed"),
    # sampling
    same("temperature", 1.0, "sampling.temperature"),
    same("top_p", 1.0, "sampling.top_p"),
    absent("top_k", 0, "all tokens may be sampled", loss=False),
    absent("min_p", None, "all tokens may be sampled", loss=False),
    absent("repetition_penalty", 1.0, "the policy's own distribution is sampled", loss=False),
    # the optimizer
    same("learning_rate", 1e-6, "optimizer.learning_rate"),  # 214
    Row({"adam_beta1": 0.9, "adam_beta2": 0.999},
        lambda v: {"optimizer.betas": [v["adam_beta1"], v["adam_beta2"]]},
        lambda s: dict(zip(("adam_beta1", "adam_beta2"), s["optimizer.betas"], strict=True))),
    same("weight_decay", 0.0, "optimizer.weight_decay"),
    same("max_grad_norm", 1.0, "optimizer.max_grad_norm", off=0),
    means("lr_scheduler_type", "linear", SCHEDULES, loss=False),
    Row({"lr_scheduler_kwargs.min_lr_rate": None},
        lambda v: {"optimizer.min_learning_rate_ratio": v["lr_scheduler_kwargs.min_lr_rate"] or 0.0},
        lambda s: {"lr_scheduler_kwargs.min_lr_rate": s["optimizer.min_learning_rate_ratio"]}
        if s["optimizer.schedule"] == "cosine" else {}),
    Row({"warmup_steps": 0, "warmup_ratio": 0.0}, _warmup,
        lambda s: {"warmup_steps": s["optimizer.warmup_steps"] or s["optimizer.warmup_ratio"]}),
    means("optim", "adamw_torch_fused", {key: {} for key in ("adamw_torch_fused", "adamw_torch")}, loss=False),
    # the model
    model("model_name_or_path", None),
    means("bf16", None, {True: {"model.precision": "bfloat16"}, False: {"model.precision": "float32"},
                         None: {"model.precision": "bfloat16"}}, loss=False),  # base_config.py
    absent("fp16", False, "set model.precision", loss=False),
)  # fmt: skip

BESIDE = """
*output_dir do_* eval_* save_* load_best_* log* hub_* push_to_hub* report_to run_name project* trackio_* wandb_*
dataset_* reward_funcs reward_weights code_* system_prompt chat_template* callbacks benchmarks num_train_epochs
per_device_eval_* num_generations_eval max_prompt_length model_* trust_remote_code attn_implementation
gradient_checkpointing* dataloader_* remove_unused_columns shuffle_dataset ddp_* fsdp* deepspeed* use_liger_*
vllm_mode vllm_server_* vllm_gpu_* vllm_tensor_* vllm_device vllm_dtype vllm_max_* vllm_enable_* vllm_group_port
resume_* ignore_data_skip data_seed num_completions_to_print disable_dropout lora_* *dtype tf32 use_cpu bf16_full_eval
torch_compile* pad_to_* cache_implementation ds3_* ref_model_*
"""
TRL = Table(
    name="TRL",
    version="1.16.0",
    style="yaml",
    rows=ROWS,
    loss=words,
    renamed={f"{CORRECTION}cap": f"{CORRECTION}clip_max"},
    assumes=(
        "as few processes as sample whole groups: a config does not say how many there are, and "
        "rollout_batch_size is that of all of them",
    ),
    beside=BESIDE,
)
