"""TRL: ``GRPOTrainer._compute_loss`` on a stand-in for the trainer; of importance weights and of the advantages, also
``RLOOTrainer``'s, the statements that it ships."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .common import Advantages, Because, NoCounterpart, Options, Peer, Step, named

LOSS_TYPES = {
    ("grpo_clip", "token_mean"): "dapo",
    ("grpo_clip", "sequence_mean"): "grpo",
    ("grpo_clip", "sequence_sum"): "luspo",
    ("grpo_clip", "constant"): "dr_grpo",
    ("cispo", "token_mean"): "cispo",
}
SCALES = {"normalized_rewards": "group", "centered_rewards": "none", "batch_normalized_rewards": "batch"}
NORMALIZED = {"leave_one_out_rewards": False, "batch_whitened_rewards": True}
CORRECTION = "vllm_importance_sampling_"
MODES = {"tis": "truncate", "icepop": "mask"}


def words(loss: Options) -> Options:
    """Return a step's loss as settings of ``GRPOConfig``."""
    if (loss["type"], loss["aggregation"]) not in LOSS_TYPES:
        raise NoCounterpart(f"aggregation {loss['aggregation']} with {loss['type']}")
    kind = LOSS_TYPES[loss["type"], loss["aggregation"]]
    made = {"loss_type": kind, "importance_sampling_level": loss["ratio_level"]}
    if kind == "cispo":
        if loss["clip_low"] < 1:
            raise NoCounterpart("a lower bound of CISPO's weights")
        made |= {"epsilon_high": 1 + loss["clip_high"]}
    else:
        made |= {"epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"], "delta": loss["dual_clip"]}
    if loss["aggregation"] == "constant":
        made |= {"max_completion_length": loss["constant"]}
    return made | _kl(loss) | _entropy(loss) | _correction(loss["importance"])


def _kl(loss: Options) -> Options:
    kl = loss["kl"]
    if kl["coefficient"] == 0:
        return {}
    if kl["estimator"] != "k3":
        raise NoCounterpart(f"{kl['estimator']} in the loss")
    if kl["weighted_by_ratio"] and loss["ratio_level"] == "sequence":
        raise NoCounterpart("a KL weighted by tokens' ratios with a sequence ratio")
    return {"beta": kl["coefficient"], "use_bias_correction_kl": kl["weighted_by_ratio"]}


def _entropy(loss: Options) -> Options:
    if loss["entropy_coefficient"] == 0:
        return {}
    if loss["aggregation"] != "token_mean":
        raise NoCounterpart(f"an entropy bonus with {loss['aggregation']}: its mean is always one over tokens")
    return {"entropy_coef": loss["entropy_coefficient"]}


def _correction(importance: Options) -> Options:
    if importance["mode"] == "off":
        return {f"{CORRECTION}correction": False}
    mode = f"{importance['level']}_{named(importance['mode'], MODES, 'importance weights')}"
    bounds = {f"{CORRECTION}clip_min": importance["floor"], f"{CORRECTION}clip_max": importance["cap"]}
    return {f"{CORRECTION}correction": True, f"{CORRECTION}mode": mode, **bounds}


def load() -> Peer:
    """Import TRL."""
    from trl import GRPOConfig, GRPOTrainer, RLOOTrainer
    from trl.trainer import grpo_trainer

    usual = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    within = {"torch": torch, "math": math, "nanstd": grpo_trainer.nanstd, "device": "cpu"}

    def loss(step: Step, log_probs: Tensor, options: Options) -> Tensor:
        """Go through microbatches as ``transformers/trainer.py:2094`` does, which adds their gradients and leaves the
        scaling to ``_compute_loss``; DDP averages ranks. The batch of one generation is that of one optimizer step.
        """
        rows, width = step.mask.shape
        if step.packed:
            raise NoCounterpart("packed rows in the loss: it takes padded ones")
        set_to = {name: usual[name] for name in DEFAULTS} | {"max_completion_length": width} | options
        with_vllm = set_to[f"{CORRECTION}correction"] and step.engine is not None
        high = set_to["epsilon"] if set_to["epsilon_high"] is None else set_to["epsilon_high"]
        accelerator = SimpleNamespace(
            num_processes=step.ranks, gather=lambda tensor: tensor.reshape(-1), reduce=lambda tensor, **more: tensor,
            sync_gradients=False,
        )  # fmt: skip
        args = SimpleNamespace(
            delta=set_to["delta"], use_bias_correction_kl=set_to["use_bias_correction_kl"],
            steps_per_generation=step.microbatches,
        )  # fmt: skip
        trainer = SimpleNamespace(
            **set_to, args=args, accelerator=accelerator, model=SimpleNamespace(training=True), aux_loss_enabled=False,
            top_entropy_quantile=1.0, off_policy_mask_threshold=None, epsilon_low=set_to["epsilon"],
            use_vllm=with_vllm, current_gradient_accumulation_steps=step.microbatches, use_adaptive_entropy=False,
            _entropy_bonus_enabled=set_to["entropy_coef"] != 0, _metrics=defaultdict(lambda: defaultdict(list)),
        )  # fmt: skip
        trainer.epsilon_high = high
        whole = {
            "prompt_ids": torch.zeros(rows, 1, dtype=torch.long), "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
            "completion_ids": torch.zeros(rows, width, dtype=torch.long), "completion_mask": step.mask,
            "advantages": step.advantages_BT[:, 0], "old_per_token_logps": step.old,
        }  # fmt: skip
        if step.reference is not None:
            whole["ref_per_token_logps"] = step.reference
        if with_vllm:
            names = {"self": trainer, "completion_mask": step.mask, "tool_mask": None} | within
            names |= {"old_per_token_logps": step.old, "sampling_per_token_logps": step.engine}
            _run(GRPOTrainer, _weights, names)
            whole["importance_sampling_ratio"] = names["vllm_importance_sampling_ratio"]
        entropy = torch.zeros_like(log_probs) if step.entropy is None else step.entropy

        def part(rows: slice) -> Tensor:
            trainer._get_per_token_logps_and_entropies = lambda *all, **more: (log_probs[rows], entropy[rows], None)
            inputs = {name: tensor[rows] for name, tensor in whole.items()}
            made: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs | {"num_items_in_batch": step.mask.sum()})
            return made

        summed: Tensor = sum(part(rows) for rank in step.parts() for rows in rank) / step.ranks
        return summed

    def advantages(step: Step, options: Options) -> Tensor:
        trainer = SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize", reward_weights=torch.ones(1), **options
        )
        names: Options = {
            "self": trainer, "rewards_per_func": step.rewards[:, None], "num_generations": step.group_size,
            "unscorable_mask": torch.zeros(len(step.rewards), dtype=torch.bool),
        }  # fmt: skip
        names |= within
        _run(GRPOTrainer, _grpo_advantages, names)
        made: Tensor = names["advantages"]
        return made

    def rloo_advantages(step: Step, options: Options) -> Tensor:
        names = {"self": SimpleNamespace(**options), "rewards": step.rewards, "num_generations": step.group_size}
        names |= within
        _run(RLOOTrainer, _rloo_advantages, names)
        made: Tensor = names["advantages"]
        return made

    return Peer(
        loss=loss,
        defaults={name: usual[name] for name in DEFAULTS},
        advantages=(
            Advantages("advantages", _word("scale_rewards", SCALES), advantages),
            Advantages("advantages, RLOOTrainer", _word("normalize_advantages", NORMALIZED), rloo_advantages),
        ),
        entry=GRPOTrainer._compute_loss,
        because=BECAUSE,
    )


def _word(name: str, values: Options) -> Callable[[Step], Options]:
    return lambda step: {name: named(step.advantage["delta"], values, "advantage")}


def _run(trainer: Any, chosen: Callable[[list[ast.stmt]], list[ast.stmt]], names: Options) -> None:
    """Run some statements of ``_generate_and_score_completions``, as they are shipped, on names."""
    source = ast.parse(textwrap.dedent(inspect.getsource(trainer._generate_and_score_completions)))
    statements = chosen(source.body[0].body)  # type: ignore[attr-defined]
    exec(compile(ast.Module(statements, []), inspect.getfile(trainer), "exec"), names)


def _weights(body: list[ast.stmt]) -> list[ast.stmt]:
    return [_if(body, "vllm_importance_sampling_correction", "per_token_logps_diff")]


def _grpo_advantages(body: list[ast.stmt]) -> list[ast.stmt]:
    return [_if(body, "multi_objective_aggregation", "mean_grouped_rewards")]


def _if(body: list[ast.stmt], test: str, assigned: str) -> ast.If:
    everything = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.If))
    return next(node for node in everything if test in ast.dump(node.test) and assigned in _assigned(node.body))


def _rloo_advantages(body: list[ast.stmt]) -> list[ast.stmt]:
    assigned = [_assigned([statement]) for statement in body]
    first = assigned.index(["grouped_rewards"])
    return body[first : assigned.index(["advantages"], first) + 1]


def _assigned(body: list[ast.stmt]) -> list[str]:
    targets = [target for statement in body if isinstance(statement, ast.Assign) for target in statement.targets]
    return [target.id for target in targets if isinstance(target, ast.Name)]


DEFAULTS = (
    "loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "beta", "use_bias_correction_kl",
    "entropy_coef", f"{CORRECTION}correction", f"{CORRECTION}mode", f"{CORRECTION}clip_min", f"{CORRECTION}clip_max",
)  # fmt: skip

_EPS = "1e-4 is added to the deviation, which no setting changes"
_MODULES = "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer"
BECAUSE = (
    Because("deviation of the group", _EPS, _MODULES[0], "advantages = advantages / (std_rewards + 1e-4)"),
    Because(
        "equal rewards",
        "the mean is float32, and its rounding is divided by a deviation that is about 0, plus 1e-4",
        _MODULES[0],
        "advantages = advantages / (std_rewards + 1e-4)",
    ),
    Because("deviation of the batch", _EPS, _MODULES[0], "advantages = advantages / (std_rewards + 1e-4)"),
    Because("whitened over the batch", _EPS, _MODULES[1], "/ (nanstd(advantages) + 1e-4)"),
)
