"""Prompts that fit the context together with a response, and what becomes of those that do not."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.errors import UserError
from harness.core.protocols import Task
from harness.core.types import Prompt, Purpose
from harness.run.policy import Policy
from harness.run.workers import Encode, prompts_of
from harness.scenario.schema import Scenario

MOST_PROMPTS_TOLD = 10


def context_of(scenario: Scenario, policy: Policy) -> tuple[int | None, str]:
    """Return the model's context, or the engine's smaller one, and whose it is."""
    bounds = [(policy.context, "the model's context"), (getattr(scenario.engine, "context", None), "engine.context")]
    return min(((most, whose) for most, whose in bounds if most is not None), default=(None, ""))


def check_prompts_fit(
    task: Task,
    encode: Encode,
    max_tokens: int,
    context: int | None,
    whose: str = "the model's context",
    *,
    can_leave_out: bool = False,
) -> None:
    """Refuse a task with prompts that do not fit the context together with a response.

    Args:
        task, encode: its prompts, and what makes token ids of them.
        max_tokens: of a response.
        context: most tokens of both; None: not known.
        whose: what sets that bound.
        can_leave_out: whether the task has a setting to leave such prompts out.

    Raises:
        UserError: with how many there are, and of the longest ones where they stand and all the lengths.
    """
    if context is None:
        return
    lengths = [
        (len(encode(prompt.asked)), prompt.where or f"{purpose} prompt {number}")
        for purpose in Purpose
        for number, prompt in enumerate(prompts_of(task, purpose))
    ]
    too_long = sorted((each for each in lengths if each[0] + max_tokens > context), key=lambda each: -each[0])
    if not too_long:
        return
    told = [
        f"{where} has {length} tokens; with {max_tokens} response tokens that is {length + max_tokens}"
        for length, where in too_long[:MOST_PROMPTS_TOLD]
    ]
    rest = len(too_long) - len(told)
    lines = "\n  ".join([*told, *([f"and {rest:,} more"] if rest else [])])
    room = context - too_long[0][0]
    fixes = [f"lower sampling.max_tokens to {room} or less"] if room > 0 else []
    fixes += ["shorten the prompts" if len(too_long) > 1 else "shorten the prompt"]
    fixes += [] if whose.startswith("the model") else [f"raise {whose}"]
    fixes += ["leave them out (task.filter_overlong_prompts: true)"] if can_leave_out else []
    raise UserError(
        f"{len(too_long):,} of {len(lengths):,} prompts do not fit {whose} of {context}, the longest first:\n  {lines}",
        where=too_long[0][1],
        fix=", or ".join(fixes),
    )


class FittingTask:
    """A task without the prompts that do not fit the context together with a response.

    Args:
        task, encode, max_tokens, context: see ``check_prompts_fit``.

    Raises:
        UserError: none is left to train on, or none to validate on.
    """

    def __init__(self, task: Task, encode: Encode, max_tokens: int, context: int) -> None:
        self.reward, self.stop = task.reward, getattr(task, "stop", ())

        def fitting(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
            return tuple(prompt for prompt in prompts if len(encode(prompt.asked)) + max_tokens <= context)

        self.train_prompts, self.validation_prompts = fitting(task.train_prompts), fitting(task.validation_prompts)
        left = len(self.train_prompts) + len(self.validation_prompts)
        dropped = len(task.train_prompts) + len(task.validation_prompts) - left
        if not self.train_prompts or not self.validation_prompts:
            raise UserError(
                f"{dropped:,} prompts do not fit the context of {context} beside {max_tokens} response tokens, which "
                f"leaves {len(self.train_prompts)} to train on and {len(self.validation_prompts)} held out",
                where="task.filter_overlong_prompts",
                fix="lower sampling.max_tokens, hold out more prompts, or take a model with a longer context",
            )
        said = f"{dropped:,} prompts are left out: they do not fit the context of {context}; {left:,} prompts"
        self.notes = (*getattr(task, "notes", ()), *([said] if dropped else []))
