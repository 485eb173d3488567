"""What is looked at, recorded and said before the parts of a run are made, in one process as with Ray."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.protocols import Task
from harness.run.builders import fitting_task, prompt_encoder, sampling_for
from harness.run.data_files import few_held_out
from harness.run.fitting import check_prompts_fit, context_of
from harness.run.inputs import Inputs, inputs_of
from harness.run.policy import Policy, response_ends
from harness.scenario.schema import Scenario


@dataclass(frozen=True)
class Start:
    """How a run begins.

    Attributes:
        task: without prompts that are left out.
        inputs, end_tokens, notes: see ``RunningParts``.
    """

    task: Task
    inputs: Inputs
    end_tokens: dict[str, str]
    notes: tuple[str, ...]


def start_of(scenario: Scenario, task: Task, policy: Policy) -> Start:
    """Return how a run of this task and policy begins. Its inputs are those of before prompts are left out.

    Raises:
        UserError: prompts do not fit, cannot be encoded, or a stop string can never be found.
    """
    inputs, fitting = inputs_of(scenario, task, policy), fitting_task(scenario, task, policy)
    if fitting is task:
        check_fits(scenario, task, policy)
    ends = response_ends(policy, sampling_for(scenario, fitting).stop)
    notes = (*([ends.line] if ends.line else ()), *start_notes(scenario, fitting, policy))
    return Start(fitting, inputs, ends.texts, notes)


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
