"""The rules that bind several settings, and all that a scenario breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.scenario.checkpoint import CHECKPOINT_RULES
from harness.scenario.distributed import DISTRIBUTED_RULES
from harness.scenario.dynamic_sampling import DYNAMIC_SAMPLING_RULES
from harness.scenario.learner import LEARNER_RULES
from harness.scenario.loss import LOSS_RULES
from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario
from harness.scenario.task_and_model import TASK_AND_MODEL_RULES


def whole_groups(scenario: Scenario) -> Problem | None:
    """A rollout batch consists of whole groups."""
    return _must_divide("group_size", scenario.group_size, "rollout_batch_size", scenario.rollout_batch_size)


def whole_minibatches(scenario: Scenario) -> Problem | None:
    """A pass over the rollout batch splits into equal minibatches."""
    parts = scenario.minibatches_per_epoch
    return _must_divide("minibatches_per_epoch", parts, "rollout_batch_size", scenario.rollout_batch_size)


def whole_microbatches(scenario: Scenario) -> Problem | None:
    """A train batch splits into equal microbatches."""
    parts = scenario.gradient_accumulation_steps
    return _must_divide("gradient_accumulation_steps", parts, "train batch", scenario.train_batch_size)


def train_batch_holds_a_group(scenario: Scenario) -> Problem | None:
    """An optimizer step trains on a group at least."""
    train_batch, group = scenario.train_batch_size, scenario.group_size
    if train_batch >= group or scenario.rollout_batch_size < group:
        return None
    what = (
        f"the train batch has {train_batch} rollouts (rollout_batch_size {scenario.rollout_batch_size} / "
        f"minibatches_per_epoch {scenario.minibatches_per_epoch}), must be at least group_size {group}"
    )
    fix = f"set minibatches_per_epoch to at most {max(1, scenario.rollout_batch_size // group)}"
    return broken(what, fix, "minibatches_per_epoch", "group_size", "rollout_batch_size")


def endpoint_is_measured(scenario: Scenario) -> Problem | None:
    """The primary endpoint must be measured in every arm."""
    endpoint, transport = scenario.endpoint, scenario.transport.type
    if scenario.transport_sweep is not None and endpoint != "seconds_per_step":
        what = f"endpoint is {endpoint}, and a transport_sweep neither trains nor has arms to decide between"
        return broken(what, "leave endpoint out", "endpoint", "transport_sweep")
    if endpoint == "weight_sync_seconds" and transport == "in_process":
        what = "endpoint is weight_sync_seconds, and transport.type in_process moves no weights"
        return broken(what, "set transport.type to another one, such as shared_memory", "endpoint", "transport.type")
    if endpoint == "reward_at_rollouts" and scenario.lag_control == "drop":
        what = "endpoint is reward_at_rollouts with lag_control drop, which generates rollouts that are never used"
        return broken(what, "set lag_control to wait, or endpoint to seconds_per_step", "endpoint", "lag_control")
    return None


def _must_divide(key: str, size: int, whole: str, total: int) -> Problem | None:
    remainder = total % size
    if remainder == 0:
        return None
    what = f"{key} {size} does not divide {whole} {total} (remainder {remainder})"
    divisors = [number for number in range(1, min(total, 4096) + 1) if total % number == 0]
    near = sorted(sorted(divisors, key=lambda number: abs(number - size))[:4])
    wholes = [number for number in (total - remainder, total - remainder + size) if number > 0]
    fix = f"set {key} to {_any_of(near)}, or make {whole} {_any_of(wholes)}"
    return broken(what, fix, key, "rollout_batch_size")


def _any_of(numbers: list[int]) -> str:
    *rest, last = map(str, numbers)
    return f"{', '.join(rest)} or {last}" if rest else last


Rule = Callable[[Scenario], Problem | None]
RULES: tuple[Rule, ...] = (
    whole_groups,
    whole_minibatches,
    whole_microbatches,
    train_batch_holds_a_group,
    endpoint_is_measured,
    *LOSS_RULES,
    *DISTRIBUTED_RULES,
    *LEARNER_RULES,
    *CHECKPOINT_RULES,
    *DYNAMIC_SAMPLING_RULES,
    *TASK_AND_MODEL_RULES,
)


def broken_rules(scenario: Scenario) -> list[Problem]:
    """Return a problem for each rule that the scenario breaks, with the rule's name, the values and what to write."""
    found = [(rule.__name__, rule(scenario)) for rule in RULES]
    return [replace(problem, what=f"{problem.what} [rule: {name}]") for name, problem in found if problem is not None]
