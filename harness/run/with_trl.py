"""TRL's ``GRPOTrainer`` by the settings of a scenario: the other side of ``vs_trl``, and what it does not do alike.

    python -m harness.run.with_trl scenario.resolved.yaml

Same policy, prompts and their order, group size, lengths, loss, optimizer, precision and threads. A setting that TRL
has no counterpart of is refused. It knows nothing of being recorded.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, UserError
from harness.core.types import Prompt
from harness.scenario.load import load_scenario
from harness.scenario.schema import Scenario

LOSS_TYPES = {"sequence_mean": "grpo", "token_mean": "dapo", "constant": "dr_grpo"}
"""TRL's names of our aggregations; ``dapo`` divides by the tokens of all microbatches of an optimizer step."""
SCALES = {"normalized_rewards": "group", "centered_rewards": "none", "batch_normalized_rewards": "batch"}
"""What these deltas divide by, in TRL's word ``scale_rewards``; the others have no counterpart elsewhere."""
EPS = 1e-4
"""What TRL adds to the standard deviation of a group's rewards."""
ONLY: Mapping[str, Callable[[Scenario], bool]] = {
    "a model that learns": lambda s: s.model.type != "paced",
    "max_lag 0": lambda s: s.max_lag == 0,
    "replay.capacity 0": lambda s: s.replay.capacity == 0,
    "epochs_per_batch 1 (a step of TRL is one optimizer step)": lambda s: s.epochs_per_batch == 1,
    "minibatches_per_epoch 1": lambda s: s.minibatches_per_epoch == 1,
    "placement.learner.ranks 1": lambda s: s.placement.learner.ranks == 1,
    "loss.type grpo_clip": lambda s: s.loss.type == "grpo_clip",
    f"loss.aggregation of {', '.join(LOSS_TYPES)}": lambda s: s.loss.aggregation in LOSS_TYPES,
    f"advantage.delta of {', '.join(SCALES)}": lambda s: _delta(s) in SCALES,
    "advantage.eps 1e-4": lambda s: s.advantage.eps == EPS or _delta(s) == "centered_rewards",
    "loss.kl.estimator k3": lambda s: not s.loss.kl.coefficient or s.loss.kl.estimator == "k3",
    "sampling.pinned_lengths null": lambda s: s.sampling.pinned_lengths is None,
    "sampling.stop empty": lambda s: not s.sampling.stop,
    "task.chat_template false": lambda s: not getattr(s.task, "chat_template", False),
    "optimizer.schedule constant": lambda s: s.optimizer.schedule == "constant",
    "dynamic_sampling.attempts 0": lambda s: not s.dynamic_sampling.attempts,
}
"""What a scenario must have, since TRL has nothing else that means the same."""


def _delta(scenario: Scenario) -> str:
    return scenario.advantage.delta_for(scenario.loss.type)


def check_has_counterpart(scenario: Scenario) -> None:
    """Refuse a scenario that TRL cannot follow.

    Raises:
        UserError: with everything that it would have to have.
    """
    if wrong := [need for need, holds in ONLY.items() if not holds(scenario)]:
        raise UserError(
            f"TRL cannot follow {scenario.name}: it needs {'; '.join(wrong)}", None, "set these, or bench it alone"
        )


def grpo_settings(scenario: Scenario) -> dict[str, Any]:
    """Return the arguments of TRL's ``GRPOConfig`` that mean what the scenario says."""
    loss, optimizer, sampling, evaluation = scenario.loss, scenario.optimizer, scenario.sampling, scenario.evaluation
    at_least = {"min_new_tokens": sampling.min_tokens} if sampling.min_tokens > 1 else {}
    return {
        "seed": scenario.seed,
        "max_steps": scenario.steps,
        "per_device_train_batch_size": scenario.microbatch_size,
        "gradient_accumulation_steps": scenario.gradient_accumulation_steps,
        "num_generations": scenario.group_size,
        "num_iterations": 1,
        "shuffle_dataset": False,
        "max_completion_length": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "generation_kwargs": at_least,
        "loss_type": LOSS_TYPES[loss.aggregation],
        "epsilon": loss.cliprange,
        "epsilon_high": loss.cliprange_high,
        "delta": loss.dual_clip,
        "importance_sampling_level": loss.ratio_level,
        "beta": loss.kl.coefficient,
        "scale_rewards": SCALES[_delta(scenario)],
        "learning_rate": optimizer.learning_rate,
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm or 0.0,
        "warmup_steps": scenario.warmup_optimizer_steps,
        "lr_scheduler_type": "constant_with_warmup" if scenario.warmup_optimizer_steps else "constant",
        "bf16": scenario.model.precision == "bfloat16",
        "eval_strategy": "steps",
        "eval_steps": evaluation.every,
        "eval_on_start": True,
        "per_device_eval_batch_size": evaluation.prompts,
        "num_generations_eval": 1,
    }


def rows_of(prompts: Sequence[Prompt]) -> list[dict[str, str]]:
    """Return prompts as the rows of a data set: the text, and what the reward compares with."""
    return [{"prompt": prompt.text, "ground_truth": prompt.ground_truth} for prompt in prompts]


def in_order(scenario: Scenario, prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    """Yield the training prompts in the order in which the harness asks them, from the first step to the last."""
    from harness.scenario.loop_plan import loop_plan

    plan = loop_plan(scenario, len(prompts), 0)
    for step in range(scenario.steps):
        yield from (prompts[prompt_id] for prompt_id in plan.batch_prompts(step))


def train(scenario: Scenario) -> None:
    """Train the scenario's policy with TRL.

    Raises:
        UserError: TRL has no counterpart of a setting.
    """
    check_has_counterpart(scenario)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from harness.models.storage import save_policy
    from harness.run.policy import make_policy
    from harness.tasks.make import make_task

    if scenario.model.threads is not None:
        torch.set_num_threads(scenario.model.threads)
    task, on_gpu = make_task(scenario.task), scenario.uses_gpu(torch.cuda.is_available())

    def reward(completions: list[str], ground_truth: list[str], **_: Any) -> list[float]:
        return [task.reward(text, truth)["reward"] for text, truth in zip(completions, ground_truth, strict=True)]

    with tempfile.TemporaryDirectory() as home:
        policy = make_policy(scenario, "cpu", lambda: False)
        assert policy.model is not None  # ``check_has_counterpart`` refuses a paced one
        save_policy(policy.model, policy.tokenizer, Path(home) / "policy")
        config = GRPOConfig(
            output_dir=home,
            use_cpu=not on_gpu,
            model_init_kwargs={"dtype": "float32"},
            gradient_checkpointing=False,
            dataloader_pin_memory=on_gpu,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **grpo_settings(scenario),
        )
        validation = task.validation_prompts[: scenario.evaluation.prompts]
        GRPOTrainer(
            model=str(Path(home) / "policy"),
            args=config,
            train_dataset=Dataset.from_list(rows_of([*in_order(scenario, task.train_prompts)])),
            eval_dataset=Dataset.from_list(rows_of(validation)),
            reward_funcs=[reward],
        ).train()


def main() -> int:
    """Train by the settings of a file; return the exit code."""
    try:
        train(load_scenario(sys.argv[1]))
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
