"""What settings are called elsewhere, and what there is no setting for, so that an error can name what is meant.

The words are those of TRL, verl, open-instruct, prime-rl and of papers; a test looks every key up in the schema.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.named_files import nearest

MEANT = {
    "optimizer.learning_rate": ("lr", "actor_lr", "step_size", "learningrate"),
    "optimizer.max_grad_norm": ("grad_clip", "clip_grad", "clip_grad_norm", "gradient_clipping", "max_norm"),
    "optimizer.warmup_steps": ("warmup", "lr_warmup_steps", "num_warmup_steps"),
    "optimizer.schedule": ("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"),
    "steps": ("max_steps", "num_steps", "total_steps", "training_steps", "iterations", "n_grpo_steps"),
    "seed": ("random_seed", "rng_seed"),
    "rollout_batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size", "global_batch_size"),
    "group_size": ("num_generations", "n_samples", "num_samples", "rollout_n", "g", "samples_per_prompt"),
    "epochs_per_batch": ("k", "ppo_epochs", "num_iterations", "num_epochs", "epochs", "epochs_per_rollout_batch"),
    "minibatches_per_epoch": ("minibatches", "num_mini_batches", "num_minibatches"),
    "gradient_accumulation_steps": ("grad_accum", "accumulation_steps", "gradient_accumulation"),
    "loss.kl.coefficient": ("beta", "kl_coef", "kl_coeff", "kl_loss_coef", "kl_beta", "kl_coefficient", "init_kl_coef"),
    "loss.cliprange": ("epsilon", "clip_eps", "clip_ratio", "clip_range", "clip_epsilon", "clip"),
    "loss.cliprange_high": ("epsilon_high", "clip_ratio_high"),
    "loss.entropy_coefficient": ("entropy_coef", "entropy_coeff", "entropy_bonus"),
    "loss.type": ("loss_type", "algorithm", "policy_loss"),
    "advantage.normalize_by_std": ("scale_rewards", "use_std_normalization", "norm_adv_by_std_in_grpo", "std_norm"),
    "sampling.max_tokens": ("max_new_tokens", "max_completion_length", "response_length", "max_response_length"),
    "sampling.temperature": ("temp",),
    "max_lag": ("lag", "staleness", "max_staleness", "async_level", "max_async_level", "staleness_threshold"),
    "replay.capacity": ("replay_buffer", "buffer_size", "replay_size"),
    "evaluation.every": ("eval_steps", "eval_every", "test_freq", "eval_interval", "evaluate_every"),
    "checkpoint.every": ("save_steps", "save_freq", "checkpoint_every", "save_interval"),
    "model.path": ("model_name", "model_name_or_path", "model_path", "base_model", "checkpoint_path"),
    "model.preset": ("model_size", "size"),
    "model.precision": ("dtype", "torch_dtype", "bf16", "fp16", "mixed_precision"),
    "engine.type": ("vllm", "use_vllm", "backend", "inference_engine", "rollout_engine"),
    "engine.gpu_memory_utilization": ("vllm_gpu_memory_utilization",),
    "engine.tensor_parallel": ("tp", "tensor_parallel_size", "tp_size", "tensor_model_parallel_size"),
    "transport.type": ("weight_sync", "sync_backend", "weight_transfer"),
    "placement.device": ("device", "cuda", "use_cuda"),
    "placement.learner.ranks": ("world_size", "nproc_per_node", "num_processes", "dp_size", "data_parallel"),
    "placement.learner.gpus": ("num_gpus", "gpus", "n_gpus_per_node"),
    "placement.generator.count": ("num_generators", "num_workers", "rollout_workers", "num_engines"),
    "placement.colocated": ("colocate", "hybrid_engine", "colocate_all"),
    "learner.sharding": ("fsdp", "fsdp2", "zero", "deepspeed"),
    "task.train": ("dataset", "dataset_name", "train_files", "data", "train_file"),
    "task.reward": ("reward_function", "reward_fn", "reward_funcs", "reward_model"),
    "trackers": ("report_to", "logger", "loggers", "wandb", "tensorboard"),
}
"""For each setting, what it is called elsewhere."""
AS_A_SWITCH = {
    **dict.fromkeys(("vllm", "use_vllm"), "vllm"),
    **dict.fromkeys(("cuda", "use_cuda"), "cuda"),
    **dict.fromkeys(("fsdp", "fsdp2"), "fsdp2"),
    **dict.fromkeys(("zero", "deepspeed"), "deepspeed"),
    **dict.fromkeys(("colocate", "hybrid_engine", "colocate_all"), "true"),
    "bf16": "bfloat16",
    "fp16": "float16",
    "wandb": "[wandb]",
    "tensorboard": "[tensorboard]",
}
"""The value that a word of ``MEANT`` stands for by itself."""
NOT_OFFERED = {
    **dict.fromkeys(
        ("micro_batch_size", "mini_batch_size", "ppo_mini_batch_size", "ppo_micro_batch_size"),
        "batches are divided by counts: see `minibatches_per_epoch` and `gradient_accumulation_steps`",
    ),
    **dict.fromkeys(
        ("lora", "peft", "use_peft", "lora_rank", "lora_r", "adapter", "qlora"),
        "there are no LoRA adapters: all weights are trained and moved; leave it out",
    ),
    **dict.fromkeys(
        ("tools", "multi_turn", "max_turns", "environment"),
        "a rollout is one response to one prompt, without turns or tools: leave it out",
    ),
    **dict.fromkeys(
        ("critic", "value_model", "vf_coef", "gae_lambda", "lam", "value_coefficient"),
        "GRPO has no critic: advantages come from a group's rewards (`advantage`): leave it out",
    ),
    **dict.fromkeys(
        ("load_in_4bit", "load_in_8bit", "quantization", "fp8"),
        "weights are float32, bfloat16 or float16: see `model.precision` and `engine.precision`",
    ),
}
"""What other trainers have a setting for and this one has not, with what to do instead."""
SETTING_OF = {word: key for key, words in MEANT.items() for word in words}
"""The setting that each of these words means."""


def leaf_of(word: str) -> str:
    """Return the last part of a word, written as settings are."""
    return word.lower().replace("-", "_").rpartition(".")[2]


def settings_ending_in(word: str, keys: Iterable[str]) -> list[str]:
    """Return the dotted keys whose last part a word is."""
    return [key for key in keys if key.rpartition(".")[2] == leaf_of(word)]


def setting_called(word: str, keys: Iterable[str], similar: bool = True) -> str | None:
    """Return the dotted key that a word means; None where it resembles none.

    Args:
        word: a dotted key or its last part, perhaps of another trainer, perhaps misspelt.
        keys: every dotted key that there is.
        similar: take one that is only spelt like it, too.
    """
    known, leaf = list(keys), leaf_of(word)
    by_leaf = {key.rpartition(".")[2]: key for key in reversed(known)}
    if word in known:
        return word
    if leaf in SETTING_OF:
        return SETTING_OF[leaf]
    if leaf in by_leaf:
        return by_leaf[leaf]
    close = nearest(leaf, by_leaf) if similar else []
    return by_leaf[close[0]] if close else None
