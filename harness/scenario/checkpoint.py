"""Checkpoints from which a run goes on, and training steps that it keeps, with the rules that bind them."""

from __future__ import annotations

from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario
from harness.settings.checkpoint import CheckpointSettings

_KEY, _STEPS = "checkpoint.every", "checkpoint.keep_steps"


def checkpoints_have_a_state(scenario: Scenario) -> Problem | None:
    """There is something to save, and it can be read back."""
    settings = scenario.checkpoint
    asked = {_KEY: settings.every, _STEPS: list(settings.keep_steps), f"{_STEPS}_every": settings.keep_steps_every}
    for key, value in asked.items():
        if not value:
            continue
        what = f"{key} is {value}"
        if scenario.transport_sweep is not None:
            what += " with a transport_sweep, which trains nothing"
            return broken(what, f"leave {key} out", key, "transport_sweep")
        if scenario.model.type == "paced":
            what += " with model.type paced, which learns nothing"
            return broken(what, f"leave {key} out, or train a policy", key, "model.type")
        if scenario.learner.sharding == "deepspeed" and scenario.placement.learner.ranks > 1:
            what += " with learner.sharding deepspeed, whose optimizer keeps flat pieces without the parameters' names"
            return broken(what, f"leave {key} out, or set learner.sharding to fsdp2", key, "learner.sharding")
    return None


def checkpoints_are_made(scenario: Scenario) -> Problem | None:
    """Settings that would be ignored silently are refused."""
    settings, default = scenario.checkpoint, CheckpointSettings()
    given = [name for name in ("keep", "asynchronous") if getattr(settings, name) != getattr(default, name)]
    if settings.every is not None or not given:
        return None
    keys = [f"checkpoint.{name}" for name in given]
    what = f"{' and '.join(keys)} {'are' if len(keys) > 1 else 'is'} set, and {_KEY} is null: no checkpoint is made"
    return broken(what, f"set {_KEY} to 10, or leave {' and '.join(keys)} out", *keys, _KEY)


def kept_steps_are_made(scenario: Scenario) -> Problem | None:
    """A kept training step is one of the run's."""
    last = max(scenario.checkpoint.keep_steps, default=0)
    if last < scenario.steps:
        return None
    what = f"{_STEPS} names training step {last}, and the last of {scenario.steps} is {scenario.steps - 1}"
    return broken(what, f"name steps from 0 to {scenario.steps - 1}, or raise steps", _STEPS, "steps")


def arms_in_turns_make_no_checkpoints(scenario: Scenario) -> Problem | None:
    """Arms that take turns step by step are compared step by step, so one of them cannot resume alone.

    Their checkpoints would be of other moments, one arm's of step 8 and another's of step 6: what goes on from there
    does not alternate any more. So a block that was cut short is made again.
    """
    if scenario.checkpoint.every is None or scenario.interleaving != "step":
        return None
    what = f"{_KEY} is {scenario.checkpoint.every} with interleaving step, and arms in turns go on as whole blocks only"
    fix = f"set interleaving to run, or leave {_KEY} out: blocks that are finished count after a resume all the same"
    return broken(what, fix, _KEY, "interleaving")


def kept_policies_are_saved(scenario: Scenario) -> Problem | None:
    """Intermediate policies are saved only if the last one is."""
    if scenario.save_policy_every is None or scenario.save_policy:
        return None
    what = f"save_policy_every is {scenario.save_policy_every} with save_policy false"
    return broken(what, "leave one of them out", "save_policy_every", "save_policy")


CHECKPOINT_RULES = (
    checkpoints_have_a_state,
    checkpoints_are_made,
    arms_in_turns_make_no_checkpoints,
    kept_steps_are_made,
    kept_policies_are_saved,
)
