"""Rules of the loss and its deltas, and of the sorting toy that shows them."""

from __future__ import annotations

from harness.scenario.problems import Problem, dotted_paths
from harness.scenario.schema import Scenario

WITH_RATIO = ("grpo_clip", "unclipped")
"""Losses with a probability ratio, so that data of an older policy does not go uncorrected."""

_DELTAS_OF = {
    "no_baseline": ("rewards",),
    "reinforce_with_baseline": ("centered_rewards", "normalized_rewards"),
}


def groups_compare(scenario: Scenario) -> Problem | None:
    """A baseline is the group's mean, and a maximum that of a group, so a group needs two rollouts."""
    loss_type = scenario.loss.type
    delta = scenario.advantage.delta_for(loss_type)
    if scenario.group_size >= 2 or delta == "rewards":
        return None
    by_loss = scenario.advantage.delta is None
    cause, value = ("loss.type", loss_type) if by_loss else ("advantage.delta", delta)
    what = f"group_size is {scenario.group_size}, must be at least 2 with {cause} {value}"
    fix = f"set group_size to 8, or {'loss.type to no_baseline' if by_loss else 'advantage.delta to rewards'}"
    return Problem(what, fix, dotted_paths("group_size", cause))


def on_policy_loss(scenario: Scenario) -> Problem | None:
    """A loss without a probability ratio is right only for data of the current policy."""
    if scenario.loss.type in WITH_RATIO or scenario.on_policy or scenario.allow_uncorrected:
        return None
    what = (
        f"loss.type {scenario.loss.type} is for on-policy data only (1 optimizer step a batch, max_lag 0, no replay), "
        f"got {scenario.optimizer_steps_per_batch} optimizer steps a batch (epochs_per_batch "
        f"{scenario.epochs_per_batch} x minibatches_per_epoch {scenario.minibatches_per_epoch}), max_lag "
        f"{scenario.max_lag} and replay.capacity {scenario.replay.capacity}"
    )
    fix = "set loss.type to grpo_clip, or these four to 1, 1, 0 and 0; allow_uncorrected: true runs it all the same"
    keys = ("loss.type", "epochs_per_batch", "minibatches_per_epoch", "max_lag", "replay.capacity")
    return Problem(what, fix, dotted_paths(*keys))


def delta_fits_the_loss(scenario: Scenario) -> Problem | None:
    """Two types of loss name a delta already; ``naive`` is the same loss without one."""
    delta, loss_type = scenario.advantage.delta, scenario.loss.type
    allowed = _DELTAS_OF.get(loss_type)
    if delta is None or allowed is None or delta in allowed:
        return None
    what = f"advantage.delta is {delta}, must be {' or '.join(allowed)} with loss.type {loss_type}"
    fix = "set loss.type to naive, which is the same loss for any delta, or leave advantage.delta out"
    return Problem(what, fix, dotted_paths("advantage.delta", "loss.type"))


def delta_fits_the_normalization(scenario: Scenario) -> Problem | None:
    """A delta that is named says by itself whether it is divided by the standard deviation."""
    delta = scenario.advantage.delta
    if delta is None or scenario.advantage.normalize_by_std or delta == "centered_rewards":
        return None
    what = f"advantage.normalize_by_std is false with advantage.delta {delta}, which says by itself what is divided"
    fix = "leave advantage.normalize_by_std out, or set advantage.delta to centered_rewards"
    return Problem(what, fix, dotted_paths("advantage.normalize_by_std", "advantage.delta"))


def sorting_goes_together(scenario: Scenario) -> Problem | None:
    """The sorting model reads and writes numbers only, and no other model knows them as tokens."""
    task, model = scenario.task.type, scenario.model.type
    if (task == "sorting") == (model == "sorting"):
        return None
    if model == "paced":  # it trains nothing, and its engine reads no prompt
        return None
    what = f"task.type is {task} and model.type is {model}: the sorting task and its model go together"
    return Problem(what, "set both to sorting, or neither", dotted_paths("task.type", "model.type"))


def sorting_engine(scenario: Scenario) -> Problem | None:
    """Other engines serve language models."""
    engine = scenario.engine.type
    if scenario.model.type != "sorting" or engine in ("native", "fake", "paced"):
        return None
    what = f"engine.type is {engine}, must be native with model.type sorting, which is no language model"
    return Problem(what, "set engine.type to native", dotted_paths("engine.type", "model.type"))


LOSS_RULES = (
    groups_compare,
    on_policy_loss,
    delta_fits_the_loss,
    delta_fits_the_normalization,
    sorting_goes_together,
    sorting_engine,
)
