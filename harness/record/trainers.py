"""How trainers that time their own stages are recorded: for each its names, and the places that tell of them.

verl 0.9, SkyRL 0.3, AReaL 1.0, Trinity-RFT 0.6, tinker-cookbook 0.6; ms-swift 4.6, whose timer is that of TRL; and
OpenRLHF 0.11, which has none: its methods are the places. What each gives and lacks: docs/recording.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from harness.record import recording, trl
from harness.record.recording import count, span
from harness.record.seams import Seam, Shim
from harness.record.timers import Names, begin_step, decorator, entered, left, logged, telling, timer, variable

_TIMER, _LOG = "timer", "log"

# ---- verl

VERL = Names(
    {
        "gen": "generate",
        "generate_async": "generate",
        "generate_sequences": "generate",
        "wait_for_enough_samples": "wait_for_rollouts",
        "reward": "score",
        "compute_score": "score",
        "old_log_prob": "old_logprobs",
        "ref": "reference_logprobs",
        "adv": "prepare_batch",
        "update_actor": "update",
        "update_weights": "weight_transfer",
        "sync_rollout_weights": "weight_transfer",
        "timing_s/param_sync": "weight_transfer",
        "save_checkpoint": "checkpoint",
        "testing": "evaluate",
        "rollouter/validate_time": "evaluate",
    },
    step="step",
    number="global_steps",
)
_VERL_TIMER = timer(VERL, "name")
_MARKED_TIMER = Seam("marked_timer", _VERL_TIMER, _TIMER)
_MARKED_TIMERS = {
    f"verl.utils.profiler.{module}": (_MARKED_TIMER,) for module in ("performance", "nvtx_profile", "mstx_profile")
}


def _count_verl(batch: Any, *args: Any, **kwargs: Any) -> None:
    mask = batch.batch["response_mask"]
    count(tokens=int(mask.sum()), rollouts=len(mask))


# ---- SkyRL

SKYRL = Names(
    {
        "generate": "generate",
        "wait_for_generation_buffer": "wait_for_rollouts",
        "postprocess_generator_output": "prepare_batch",
        "convert_to_training_input": "prepare_batch",
        "apply_reward_kl_penalty": "prepare_batch",
        "compute_advantages_and_returns": "prepare_batch",
        "fwd_logprobs_values_reward": "old_logprobs",
        "run_training": "update",
        "train_critic_and_policy": "update",
        "policy_train": "update",
        "sync_weights*": "weight_transfer",
        "init_weight_sync_state": "weight_transfer",
        "eval": "evaluate",
        "save_checkpoints": "checkpoint",
        "save_hf_model": "checkpoint",
    },
    step="step",
    number="global_step",
)


def _count_skyrl(trainer: Any, generator_output: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
    responses = generator_output["response_ids"]
    count(tokens=sum(map(len, responses)), rollouts=len(responses))


# ---- AReaL

AREAL = Names(
    {
        "rollout": "generate",
        "recompute_logp": "old_logprobs",
        "ref_logp": "reference_logprobs",
        "compute_advantage": "prepare_batch",
        "train_step": "update",
        "update_weights": "weight_transfer",
        "save": "checkpoint",
        "checkpoint_for_recover": "checkpoint",
        "eval": "evaluate",
        "*_offload": "offload",
        "*_onload": "onload",
    },
    step="rollout",
    number="global_step",
)
_RECORD_TIMING = timer(AREAL, "key")


def _count_areal(figures: Mapping[str, Any]) -> None:
    if "ppo_actor/n_seqs" in figures:
        count(rollouts=figures["ppo_actor/n_seqs"], tokens=figures["ppo_actor/n_valid_tokens"])


# ---- Trinity-RFT, whose Trainer may be verl's

TRINITY = Names(
    {
        "time/read_experience": "wait_for_rollouts",
        "time/train_step": "update",
        "time/sync_weight": "weight_transfer",
        "time/save_checkpoint": "checkpoint",
        "explorer/time/wait_explore_step": "wait_for_rollouts",
        "step": "update",
        "update_actor": "update",
    },
    step="time/read_experience",
    number="step",
)
_TRINITY_MONITORS = ("Tensorboard", "Wandb", "Mlflow", "Swanlab")


def _count_trinity(trainer: Any, exps: Sequence[Any]) -> None:
    count(tokens=sum(len(each.tokens) - each.prompt_length for each in exps), rollouts=len(exps))


# ---- tinker-cookbook

TINKER = Names(
    {
        "main": "",  # these hold whole loops, and what is in them is told by itself
        "do_*training*": "",
        "*_loop": "",
        "sampling": "generate",
        "policy_sample": "generate",
        "trajectory_group_worker*": "generate",
        "do_group_rollout*": "generate",
        "compute_group_rewards": "score",
        "prepare_minibatch": "prepare_batch",
        "assemble_training_data": "prepare_batch",
        "kl_vs_base": "reference_logprobs",
        "train_step": "update",
        "train/*": "update",
        "do_train_step*": "update",
        "*_get_sampling_client": "weight_publish",
        "save_checkpoint": "checkpoint",
        "run_eval*": "evaluate",
        "run_single_evaluation": "evaluate",
    }
)


def _iteration(iterate: Callable[[int], AbstractContextManager[Any]]) -> Callable[[int], AbstractContextManager[Any]]:
    """A step by its number; evaluation beside asynchronous training tells of steps that are over."""

    @contextmanager
    def recorded(step: int) -> Iterator[Any]:
        current = recording.current()
        is_over = current is not None and step < current.step_number
        with nullcontext() if is_over else begin_step(step), iterate(step) as window:
            yield window

    return recorded


def _count_tinker(figures: Mapping[str, Any]) -> None:
    if "env/all/total_ac_tokens" in figures:
        count(tokens=figures["env/all/total_ac_tokens"], rollouts=figures["env/all/total_episodes"])


# ---- OpenRLHF


def _generates(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Sampling, with which a step of the Trainer begins; that of the actor which samples ahead of it is of no step."""

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        user = sys._getframe(1)
        if variable(user, "train_step") is not None:
            begin_step(variable(user, "global_step"))
        with span("generate"):
            return generate(self, *args, **kwargs)

    return recorded


def _begin_openrlhf(trainer: Any, rollout_samples: Any, global_step: int) -> None:
    begin_step(global_step)


def _count_openrlhf(figures: Mapping[str, Any]) -> None:
    if "rollout/num_samples" in figures:
        rollouts = figures["rollout/num_samples"]
        count(rollouts=rollouts, tokens=round(rollouts * figures["rollout/response_length_mean"]))


# ---- ms-swift, whose Trainer is of TRL and transformers

SWIFT = trl.STAGES | {
    "generate": "generate",
    "_dynamic_sampling": "generate",
    "resample_encode_failed_inputs": "generate",
    "_score_completions": "score",
    "_compute_rewards_per_func": "score",
    "_generate_and_score_completions": "prepare_batch",
    "_prepare_batch_inputs": "prepare_batch",
    "_move_model_to_vllm": "weight_transfer",
}


def _count_swift(trainer: Any, samples: Sequence[Any]) -> None:
    count(tokens=sum(len(turn) for each in samples for turn in each.response_token_ids), rollouts=len(samples))


SHIMS = (
    Shim(
        "verl",
        {
            **_MARKED_TIMERS,
            "verl.utils.profiler.performance": (_MARKED_TIMER, Seam("simple_timer", _VERL_TIMER)),
            "verl.trainer.ppo.metric_utils": (Seam("compute_data_metrics", telling(_count_verl)),),
            "verl.utils.tracking": (Seam("Tracking.log", logged("data")),),
        },
    ),
    Shim(
        "skyrl",
        {
            "skyrl.train.utils.utils": (
                Seam("Timer.__enter__", entered(SKYRL, "message")),
                Seam("Timer.__exit__", left),
                Seam("Timer.__aenter__", entered(SKYRL, "message")),
                Seam("Timer.__aexit__", left),
            ),
            "skyrl.train.trainer": (Seam("RayPPOTrainer.convert_to_training_input", telling(_count_skyrl)),),
            "skyrl.train.utils.tracking": (Seam("Tracking.log", logged("data")),),
        },
    ),
    Shim(
        "areal",
        {
            "areal.utils.stats_tracker": (
                Seam("DistributedStatsTracker.record_timing", _RECORD_TIMING),
                Seam("record_timing", _RECORD_TIMING),  # bound to the default tracker when the module was imported
            ),
            "areal.utils.stats_logger": (Seam("StatsLogger.commit", logged("data", _count_areal)),),
        },
    ),
    Shim(
        "trinity",
        {
            "trinity.utils.timer": (
                Seam("Timer.__enter__", entered(TRINITY, "key")),
                Seam("Timer.__exit__", left),
            ),
            "trinity.trainer.trainer": (Seam("Trainer.train_step", telling(_count_trinity)),),
            "trinity.utils.monitor": tuple(
                Seam(f"{name}Monitor.log", logged("data"), _LOG) for name in _TRINITY_MONITORS
            ),
            **_MARKED_TIMERS,
        },
    ),
    Shim(
        "tinker",
        {
            "tinker_cookbook.utils.trace": (
                Seam("trace_iteration", _iteration),
                Seam("scope", decorator(TINKER)),
                Seam("scope_span", timer(TINKER, "name")),
                Seam("scope_span_sync", timer(TINKER, "name")),
            ),
            "tinker_cookbook.utils.ml_log": (Seam("MultiplexLogger.log_metrics", logged("metrics", _count_tinker)),),
        },
    ),
    Shim(
        "openrlhf",
        {
            "openrlhf.trainer.ppo_utils.samples_generator": (
                Seam("SamplesGenerator.generate_samples", _generates),
                Seam("SamplesGenerator.generate_eval_samples", "evaluate"),
            ),
            "openrlhf.trainer.ppo_utils.experience_maker": (
                Seam("RemoteExperienceMaker.make_experience_batch", "prepare_batch"),
                Seam("RemoteExperienceMaker.make_experience", "old_logprobs"),
            ),
            "openrlhf.trainer.ppo_trainer": (
                Seam("BasePPOTrainer.train_step", telling(_begin_openrlhf)),
                Seam("BasePPOTrainer.ppo_train", "update"),
                Seam("BasePPOTrainer.broadcast_to_vllm", "weight_transfer"),
                Seam("BasePPOTrainer.save_logs_and_checkpoints", "checkpoint"),
                Seam("BasePPOTrainer.save_best_checkpoint", "checkpoint"),
                Seam("BasePPOTrainer.save_logs_and_checkpoints", logged("logs_dict", _count_openrlhf)),
            ),
        },
    ),
    Shim(
        "swift",
        {
            "swift.rlhf_trainers.utils": (Seam("profiling_context", trl.context_of(SWIFT)),),
            "swift.rlhf_trainers.grpo_trainer": (
                Seam(f"GRPOTrainer.{trl.LOGPROBS}", trl.logprobs),
                Seam("GRPOTrainer._prepare_batch_inputs", telling(_count_swift)),
            ),
            "transformers.trainer": trl.HF_TRAINER,
        },
    ),
)
