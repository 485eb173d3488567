"""Calls the whole loss of TRL or verl with settings as their users write them: ``python their_losses.py NAME IN OUT``.

It runs in that trainer's environment. IN has a list of settings and tensors (B, T) as lists; OUT has for each of the
settings the gradient with respect to the log-probs. ``peers.py`` asks about a step of ours; this asks about settings of
theirs, with their KL penalty and importance weights.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import sys
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch


def trl(settings: dict[str, Any], t: dict[str, torch.Tensor]) -> torch.Tensor:
    """``GRPOTrainer._compute_loss``, and the statements that make importance weights, from the installed source."""
    import dataclasses

    from trl import GRPOConfig, GRPOTrainer

    usual = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    o = SimpleNamespace(**usual | {"steps_per_generation": 1} | settings)
    rows, width = t["mask"].shape
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long), "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros(rows, width, dtype=torch.long), "completion_mask": t["mask"],
        "advantages": t["advantages"][:, 0], "old_per_token_logps": t["old_log_probs"],
        "ref_per_token_logps": t["reference_log_probs"], "num_items_in_batch": t["mask"].sum(),
    }  # fmt: skip
    correct = o.use_vllm and o.vllm_importance_sampling_correction
    if correct:
        source = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions)))
        shipped = next(
            node
            for node in ast.walk(source)
            if isinstance(node, ast.If)
            and any(isinstance(line, ast.Assign) and "per_token_logps_diff" in ast.dump(line) for line in node.body)
        )
        names = {
            "self": o, "torch": torch, "math": math, "completion_mask": t["mask"], "tool_mask": None,
            "old_per_token_logps": t["old_log_probs"], "sampling_per_token_logps": t["engine_log_probs"],
        }  # fmt: skip
        exec(compile(ast.Module([shipped], []), "trl", "exec"), names)
        inputs["importance_sampling_ratio"] = names["vllm_importance_sampling_ratio"]
    high = o.epsilon if o.epsilon_high is None else o.epsilon_high
    whole = SimpleNamespace(num_processes=1, gather=lambda x: x.reshape(-1), reduce=lambda x, **more: x)
    trainer = SimpleNamespace(
        **{**vars(o), "epsilon_low": o.epsilon, "epsilon_high": high},
        args=o, accelerator=whole, model=SimpleNamespace(training=True), aux_loss_enabled=False,
        current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *all, **more: (t["log_probs"], torch.zeros(rows, width), None),
    )  # fmt: skip
    return GRPOTrainer._compute_loss(trainer, None, inputs)


def verl(settings: dict[str, Any], t: dict[str, torch.Tensor]) -> torch.Tensor:
    """``get_policy_loss_fn``, ``kl_penalty`` with ``agg_loss``, and ``compute_rollout_correction_weights``."""
    from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig

    rows = len(t["mask"])
    actor = {
        key.removeprefix("actor_rollout_ref.actor."): value
        for key, value in settings.items()
        if key.startswith("actor_rollout_ref.actor.")
    }
    loss_mode = actor.pop("policy_loss.loss_mode", "vanilla")
    config = ActorConfig(
        strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1, ppo_mini_batch_size=rows,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode), **actor,
    )  # fmt: skip
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=t["mask"].sum(), global_batch_size=rows, loss_scale_factor=config.loss_scale_factor
    )
    correction = "algorithm.rollout_correction."
    weights = None
    if (level := settings.get(f"{correction}rollout_is")) is not None:
        bounds = settings.get(f"{correction}rollout_is_threshold", 2.0)
        weights = compute_rollout_correction_weights(
            t["old_log_probs"] - t["engine_log_probs"], t["mask"], level, bounds
        )[0]
    loss = get_policy_loss_fn(loss_mode)(
        t["old_log_probs"], t["log_probs"], t["advantages"], t["mask"], config.loss_agg_mode, config, weights
    )[0]
    if config.use_kl_loss:
        kl = kl_penalty(t["log_probs"], t["reference_log_probs"], config.kl_loss_type)
        loss = loss + config.kl_loss_coef * agg_loss(kl, t["mask"], config.loss_agg_mode, **config.global_batch_info)
    return loss


def main() -> None:
    """Answer for the trainer that is named."""
    name, given, out = sys.argv[1:]
    with open(given) as file:
        asked = json.load(file)
    answers = []
    for settings in asked["settings"]:
        tensors = {key: torch.tensor(values, dtype=torch.float64) for key, values in asked["tensors"].items()}
        tensors["log_probs"].requires_grad_(True)
        loss = {"trl": trl, "verl": verl}[name](settings, tensors)
        answers.append(torch.autograd.grad(loss, tensors["log_probs"])[0].tolist())
    with open(out, "w") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main()
