"""Checkpoints from which a run goes on, with the rules that bind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.scenario.problems import Problem, broken
from harness.scenario.sections import AtLeast1, Positive, Section

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

_KEY = "checkpoint.every"


class CheckpointSettings(Section):
    """Checkpoints of the whole run, from which `run --resume` and `sweep` go on."""

    every: AtLeast1 | None = None
    """Training steps from one checkpoint to the next; null makes none."""
    keep: AtLeast1 = 2
    """How many stay; where the newest is damaged, the one before it is taken."""
    asynchronous: bool = False
    """Train on while it is written; the Learner waits only for a copy, which stays in main memory."""
    hours_between_failures: Positive | None = None
    """Mean time after which something ends the run; the results then say which `every` loses least."""


def checkpoints_have_a_state(scenario: Scenario) -> Problem | None:
    """There is something to save, and it can be read back."""
    if scenario.checkpoint.every is None:
        return None
    what = f"{_KEY} is {scenario.checkpoint.every}"
    if scenario.transport_sweep is not None:
        what += " with a transport_sweep, which trains nothing"
        return broken(what, f"leave {_KEY} out", _KEY, "transport_sweep")
    if scenario.model.type == "paced":
        what += " with model.type paced, which learns nothing"
        return broken(what, f"leave {_KEY} out, or train a policy", _KEY, "model.type")
    if scenario.learner.sharding == "deepspeed" and scenario.placement.learner.ranks > 1:
        what += " with learner.sharding deepspeed, whose optimizer keeps flat pieces without the parameters' names"
        return broken(what, f"leave {_KEY} out, or set learner.sharding to fsdp2", _KEY, "learner.sharding")
    return None


def arms_in_turns_make_no_checkpoints(scenario: Scenario) -> Problem | None:
    """Arms that take turns step by step are compared step by step, each with those that were made beside it.

    Their checkpoints would be of other moments, one arm's of step 8 and another's of step 6: what goes on from there
    does not alternate any more. So a block that was cut short is made again.
    """
    if scenario.checkpoint.every is None or scenario.interleaving != "step":
        return None
    what = f"{_KEY} is {scenario.checkpoint.every} with interleaving step, and arms in turns go on as whole blocks only"
    fix = f"set interleaving to run, or leave {_KEY} out: blocks that are finished count after a resume all the same"
    return broken(what, fix, _KEY, "interleaving")


def kept_policies_are_saved(scenario: Scenario) -> Problem | None:
    """Policies on the way are kept where the last one is saved."""
    if scenario.save_policy_every is None or scenario.save_policy:
        return None
    what = f"save_policy_every is {scenario.save_policy_every} with save_policy false"
    return broken(what, "leave one of them out", "save_policy_every", "save_policy")


CHECKPOINT_RULES = (checkpoints_have_a_state, arms_in_turns_make_no_checkpoints, kept_policies_are_saved)
