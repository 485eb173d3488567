"""Rules of checkpoints, and of training steps and policies that a run keeps."""

from __future__ import annotations

from collections.abc import Callable

from harness.scenario.rules.learner import deepspeed_ranks
from harness.scenario.rules.rule import Rule, given, value_of
from harness.scenario.schema import Scenario


def _saved(key: str, breaks: Callable[[Scenario], object], why: str, instead: str = "") -> Rule:
    """Return what is needed so that there is a state to save, and it can be read back."""
    return Rule(
        "checkpoints_have_a_state",
        lambda s: value_of(s, key) and breaks(s),
        f"{key} is {{{key}}} with {why}",
        f"leave {key} out{instead}",
    )


RULES = (
    *(
        rule
        for key in ("checkpoint.every", "checkpoint.keep_steps", "checkpoint.keep_steps_every")
        for rule in (
            _saved(key, lambda s: s.transport_sweep, "a transport_sweep, which trains nothing"),
            _saved(
                key,
                lambda s: s.model.type == "paced",
                "model.type paced, which learns nothing",
                ", or train a policy",
            ),
            _saved(
                key,
                deepspeed_ranks,
                "learner.sharding deepspeed, whose optimizer keeps flat pieces without the parameters' names",
                ", or set learner.sharding to fsdp2",
            ),
        )
    ),
    Rule(
        "checkpoints_are_made",
        lambda s: s.checkpoint.every is None and given(s, "checkpoint.keep", "checkpoint.asynchronous"),
        "{given} {are} set, and checkpoint.every is null: no checkpoint is made",
        "set checkpoint.every to 10, or leave {given} out",
    ),
    Rule(  # what goes on from checkpoints of different moments would not alternate any more
        "arms_in_turns_make_no_checkpoints",
        lambda s: s.checkpoint.every and s.interleaving == "step",
        "checkpoint.every is {checkpoint.every} with interleaving {interleaving}, and arms in turns go on as whole "
        "blocks only",
        "set interleaving to run, or leave checkpoint.every out: blocks that are finished count after a resume all the "
        "same",
    ),
    Rule(
        "kept_steps_are_made",
        lambda s: (
            max(s.checkpoint.keep_steps, default=0) >= s.steps
            and {"named": max(s.checkpoint.keep_steps), "last": s.steps - 1}
        ),
        "checkpoint.keep_steps names training step {named}, and the last of {steps} is {last}",
        "name steps from 0 to {last}, or raise steps",
    ),
    Rule(
        "kept_policies_are_saved",
        lambda s: s.save_policy_every and not s.save_policy,
        "save_policy_every is {save_policy_every} with save_policy false",
        "leave one of them out",
    ),
)
