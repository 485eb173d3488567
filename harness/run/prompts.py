"""Prompts and responses of a run: how they are encoded, whether they fit, and what is said of them before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from harness.core.errors import UserError
from harness.core.protocols import Task
from harness.core.types import Prompt, Purpose, SamplingParams
from harness.engines.stop_strings import SpecialTokens, decode_text
from harness.run.data_files import few_held_out
from harness.run.policy import Policy, response_ends
from harness.run.weight_sync import Encode
from harness.run.workers import prompts_of
from harness.scenario.schema import Scenario

MOST_PROMPTS_TOLD = 10


def check_fits(scenario: Scenario, task: Task, policy: Policy) -> None:
    """Refuse a task whose longest prompt and response do not fit the model's context, or the engine's smaller one.

    Raises:
        UserError: with the prompts' places and all the lengths, or the prompts cannot be encoded.
    """
    encode, (context, whose) = prompt_encoder(scenario, policy), context_of(scenario, policy)
    can_leave_out = hasattr(scenario.task, "filter_overlong_prompts")
    check_prompts_fit(task, encode, scenario.sampling.max_tokens, context, whose, can_leave_out=can_leave_out)


def start_notes(scenario: Scenario, task: Task, policy: Policy) -> tuple[str, ...]:
    """Return what is to be said about a task's prompts when a run begins."""
    from harness.models.chat import added_start

    notes = [*getattr(task, "notes", ()), *few_held_out(scenario, len(task.validation_prompts))]
    start = policy.tokenizer.bos_token if added_start(policy.tokenizer) is not None else None
    prompts = (*task.train_prompts, *task.validation_prompts)
    doubled = sum(prompt.text.startswith(start) for prompt in prompts) if start else 0
    if doubled:
        notes.append(f"{doubled:,} prompts begin with {start}, which the tokenizer puts in front too: they get one")
    return tuple(notes)


def prompt_encoder(scenario: Scenario, policy: Policy) -> Encode:
    """Return what makes token ids of a prompt: the tokenizer, through its chat template where the task asks for it.

    Raises:
        UserError: the tokenizer has no chat template, or it cannot be used.
    """
    from harness.models.chat import chat_encoder, text_encoder

    settings: Any = scenario.task
    if not getattr(settings, "chat_template", False):
        return text_encoder(policy.tokenizer)
    return chat_encoder(policy.tokenizer, settings.system_prompt, settings.chat_template_kwargs)


def sampling_for(scenario: Scenario, task: Task) -> SamplingParams:
    """Return how responses are sampled: as the scenario says, ended by the task's own stop strings too."""
    sampling = scenario.sampling.to_params()
    return replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, *getattr(task, "stop", ())))))


def response_text(scenario: Scenario, task: Task, policy: Policy) -> Callable[[Sequence[int]], str]:
    if scenario.sampling.skip_special_tokens:
        return partial(decode_text, policy.tokenizer)
    ends = response_ends(policy, sampling_for(scenario, task).stop).ids
    return SpecialTokens(policy.tokenizer, ends).text


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


def fitting_task(scenario: Scenario, task: Task, policy: Policy) -> Task:
    """Return the task, without prompts that are too long where they are to be left out.

    Raises:
        UserError: no prompt is left.
    """
    context, _ = context_of(scenario, policy)
    if context is None or not getattr(scenario.task, "filter_overlong_prompts", False):
        return task
    return FittingTask(task, prompt_encoder(scenario, policy), scenario.sampling.max_tokens, context)
