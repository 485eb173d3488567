"""What the loop is told, from a scenario. Light: a simulation starts with it too."""

from __future__ import annotations

from harness.loop import LoopPlan
from harness.loop.plan import prompt_schedule
from harness.scenario.derived import resolved_replay
from harness.scenario.schema import Scenario


def loop_plan(scenario: Scenario, num_train: int, num_validation: int) -> LoopPlan:
    """Return what the loop is to do.

    Args:
        scenario: the resolved scenario.
        num_train: training prompts of the task.
        num_validation: validation prompts of the task; at most ``evaluation.prompts`` of them are used.
    """
    return LoopPlan(
        steps=scenario.steps,
        group_size=scenario.group_size,
        max_lag=scenario.max_lag,
        evaluate_every=scenario.evaluation.every,
        batch_prompts=prompt_schedule(num_train, scenario.prompts_per_batch, scenario.seed),
        validation_prompts=tuple(range(min(num_validation, scenario.evaluation.prompts))),
        seed=scenario.seed,
        lag_control=scenario.lag_control,
        replay=resolved_replay(scenario),
        dynamic_sampling=scenario.dynamic_sampling,
        num_prompts=num_train,
        overlapped_publish=scenario.learner.overlapped_publish,
        stream=scenario.learner.stream,
        checkpoint_every=scenario.checkpoint.every or 0,
        save_policy_every=scenario.save_policy_every or 0,
        max_failed_batches=scenario.max_failed_batches,
    )
