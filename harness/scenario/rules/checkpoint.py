"""Rules of checkpoints, and of training steps and policies that a run keeps."""

from __future__ import annotations

from collections.abc import Callable

from harness.scenario.rules.learner import deepspeed_ranks
from harness.scenario.rules.rule import Rule, given, must
from harness.scenario.schema import Scenario

_WITHOUT_STATE: tuple[tuple[str, str, str, Callable[[Scenario], object]], ...] = (
    ("transport_sweep set", "", ", which trains nothing", lambda s: True),
    ("model.type paced", "model.type to preset", ", which learns nothing", lambda s: True),
    (
        "learner.sharding deepspeed",
        "learner.sharding to fsdp2",
        ", whose optimizer keeps flat pieces without the parameters' names",
        deepspeed_ranks,
    ),
)
"""Where there is no state to save, or none that can be read back."""
RULES = (
    *(
        must("checkpoints_have_a_state", key, None, beside, way_out, why, when)
        for key in ("checkpoint.every", "checkpoint.keep_steps", "checkpoint.keep_steps_every")
        for beside, way_out, why, when in _WITHOUT_STATE
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
    must("kept_policies_are_saved", "save_policy_every", None, "save_policy false", "save_policy to true"),
)
