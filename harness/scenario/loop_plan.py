"""What the loop is told, from a scenario, and who takes part in a run. Light: a simulation starts with it too."""

from __future__ import annotations

from harness.loop import LoopPlan
from harness.loop.plan import prompt_schedule
from harness.scenario.derived import resolved_replay
from harness.scenario.schema import Scenario
from harness.settings.placement import PartSettings


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


def lanes_of(kind: str, scenario: Scenario) -> list[str]:
    """Return the lane names of the Generators or Scorers: ``generator``, or ``generator0``, ``generator1`` ..."""
    return numbered_lanes(kind, getattr(scenario.placement, kind).count)


def rank_lanes(scenario: Scenario) -> list[str]:
    """Return the lanes of the Learner's ranks: ``learner/0``, ``learner/1`` ..., or ``learner`` of one process."""
    ranks = scenario.placement.learner.ranks
    return [f"learner/{rank}" for rank in range(ranks)] if ranks > 1 else ["learner"]


def lane_groups(scenario: Scenario) -> dict[str, list[str]]:
    """Return the lanes of each part that has several, by its name; see ``RecordingTracer``."""
    lanes = rank_lanes(scenario)
    return {"learner": lanes} if len(lanes) > 1 else {}


def publisher_lane(learner_lane: str) -> str:
    """Return the lane of weights that leave a Learner, or a rank of one, while it trains."""
    return learner_lane.replace("learner", "publisher")


def writer_lane(learner_lane: str) -> str:
    """Return the lane that writes asynchronous checkpoints beside a Learner, or a rank of one, which trains on."""
    return learner_lane.replace("learner", "checkpoint_writer")


def all_lanes(scenario: Scenario) -> tuple[str, ...]:
    """Return the names of all lanes of a run."""
    return (*lanes_of("generator", scenario), *lanes_of("scorer", scenario), *rank_lanes(scenario))


def numbered_lanes(kind: str, count: int) -> list[str]:
    """Return the lane names of so many equal parts."""
    return [kind] if count == 1 else [f"{kind}{index}" for index in range(count)]


def on_one_thread(scenario: Scenario) -> bool:
    """Return whether all parts take turns on one thread of one process; see ``harness.run.inprocess``."""
    return scenario.placement.colocated and not scenario.uses_ray


def threads_on(cores: int, scenario: Scenario, part: PartSettings) -> int:
    """Return the CPU threads of a part on a machine with so many cores.

    As asked for, else the CPUs of its actor, else its share of the cores.
    """
    asked = part.threads or scenario.model.threads
    if asked or scenario.uses_ray:
        return asked or max(1, int(part.cpus))
    return cores if scenario.placement.colocated else max(1, cores // 2)
