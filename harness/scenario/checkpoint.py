"""Checkpoints from which a run goes on, with the rules that bind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.scenario.problems import Problem, broken
from harness.scenario.sections import AtLeast1, Section

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


def restarts_have_a_checkpoint(scenario: Scenario) -> Problem | None:
    """A Learner that is made again has a process of its own, something to go back to, and others that outlive it."""
    key, restarts = "faults.learner_restarts", scenario.faults.learner_restarts
    if not restarts:
        return None
    if scenario.checkpoint.every is None:
        what = f"{key} is {restarts} with {_KEY} null: there is nothing that the Learner could go back to"
        return broken(what, f"set {_KEY} to 10, or {key} to 0", key, _KEY)
    transport = scenario.transport.type
    why = _NO_RESTART.get(transport)
    if why is not None:
        what = f"{key} is {restarts} with transport.type {transport}, {why}"
        return broken(what, f"set {key} to 0, or transport.type to shared_memory", key, "transport.type")
    return None


_NO_RESTART = {
    "in_process": "where all parts die with the process",
    **dict.fromkeys(("gloo", "nccl"), "which ends the Generators too where a transfer breaks off"),
}

CHECKPOINT_RULES = (checkpoints_have_a_state, arms_in_turns_make_no_checkpoints, restarts_have_a_checkpoint)
