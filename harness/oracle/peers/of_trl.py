"""TRL: ``GRPOTrainer._compute_loss`` on a stand-in for the trainer; of the advantages the statement that it ships."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections import defaultdict
from types import SimpleNamespace

import torch
from torch import Tensor

from .common import Advantages, NoCounterpart, Options, Peer, Step, named, none_but

LOSS_TYPES = {"token_mean": "dapo", "sequence_mean": "grpo", "constant": "dr_grpo"}
SCALES = {"normalized_rewards": "group", "centered_rewards": "none", "batch_normalized_rewards": "batch"}


def words(loss: Options) -> Options:
    """Return a step's loss as settings of ``GRPOConfig``."""
    none_but(loss)
    kind = named(loss["aggregation"], LOSS_TYPES, "aggregation")
    made = {"loss_type": kind, "epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"]}
    made |= {"delta": loss["dual_clip"]}
    return made | ({"max_completion_length": loss["constant"]} if kind == "dr_grpo" else {})


def load() -> Peer:
    """Import TRL."""
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    usual = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        if step.ranks * step.microbatches > 1 or step.packed:
            raise NoCounterpart("microbatches")
        rows, width = step.mask.shape
        high = options["epsilon"] if options["epsilon_high"] is None else options["epsilon_high"]
        args = SimpleNamespace(delta=options["delta"], use_bias_correction_kl=False, steps_per_generation=1)
        whole = SimpleNamespace(
            num_processes=1, gather=lambda tensor: tensor.reshape(-1), reduce=lambda tensor, **more: tensor
        )
        trainer = SimpleNamespace(
            args=args, accelerator=whole, model=SimpleNamespace(training=True), aux_loss_enabled=False,
            top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level="token", beta=0.0,
            epsilon_low=options["epsilon"], epsilon_high=high, loss_type=options["loss_type"], use_vllm=False,
            vllm_importance_sampling_correction=False, current_gradient_accumulation_steps=1,
            max_completion_length=options.get("max_completion_length", width), _entropy_bonus_enabled=False,
            use_adaptive_entropy=False, _metrics=defaultdict(lambda: defaultdict(list)),
            _get_per_token_logps_and_entropies=lambda *all, **more: (log_probs, torch.zeros_like(log_probs), None),
        )  # fmt: skip
        prompts, completions = torch.zeros(rows, 1, dtype=torch.long), torch.zeros(rows, width, dtype=torch.long)
        inputs = {
            "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": completions,
            "completion_mask": step.mask, "advantages": step.advantages_BT[:, 0], "old_per_token_logps": step.old,
            "num_items_in_batch": step.mask.sum(),
        }  # fmt: skip
        made: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
        return made

    def advantages(step: Step, options: Options) -> Tensor:
        source = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions)))
        shipped = next(
            node
            for node in ast.walk(source)
            if isinstance(node, ast.If) and "multi_objective_aggregation" in ast.dump(node.test)
        )
        trainer = SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize", reward_weights=torch.ones(1), **options
        )
        names: Options = {
            "self": trainer, "torch": torch, "nanstd": grpo_trainer.nanstd, "device": "cpu",
            "rewards_per_func": step.rewards[:, None], "num_generations": step.group_size,
            "unscorable_mask": torch.zeros(len(step.rewards), dtype=torch.bool),
        }  # fmt: skip
        exec(compile(ast.Module([shipped], []), inspect.getfile(GRPOTrainer), "exec"), names)
        made: Tensor = names["advantages"]
        return made

    def scale(step: Step) -> Options:
        return {"scale_rewards": named(step.advantage["delta"], SCALES, "advantage")}

    return Peer(
        loss=loss,
        defaults={name: usual[name] for name in ("loss_type", "epsilon", "epsilon_high", "delta")},
        advantages=(Advantages("advantages", scale, advantages),),
        entry=GRPOTrainer._compute_loss,
    )
