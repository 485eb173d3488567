"""Context managers that turn a full GPU or a setting's error into what a user of the command reads."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.errors import UserError
from harness.core.trace import raised_in
from harness.probes.memory import is_full_gpu
from harness.run.memory.check import what_to_lower
from harness.scenario.schema import Scenario

_ASKED, _FREE = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)"), re.compile(r"of which ([\d.]+ \w+) is free")
ARGUMENTS = {
    "sampling.temperature": "--temperature",
    "sampling.top_p": "--top-p",
    "sampling.min_tokens": "--min-tokens",
    "sampling.max_tokens": "--max-tokens",
    "task.keywords_per_prompt": "--keywords",
    "task.chat_template_kwargs": "--chat-template-kwargs",
    "task.chat_template": "--chat",
    "task.system_prompt": "--system",
    "task.prompt_field": "--prompt-field",
    "task.answer_field": "--answer-field",
    "task.prompt": "--prompt",
    "task.reward": "--reward",
    "engine.type": "--engine",
    "engine.precision": "--precision",
    "placement.device": "--device",
    "model.path": "--model",
}
"""The argument for each setting, in the commands that sample and do not train."""


@contextmanager
def full_gpu_as_user_error(scenario: Scenario) -> Iterator[None]:
    """Raise CUDA out of memory in a part of this scenario's run as a UserError of one line.

    Raises:
        UserError: with part and stage, what torch wanted and what was left, and the memory plan's advice.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_full_gpu(error):
            raise
        traceback.clear_frames(error.__traceback__)  # their tensors: another arm may run in this process
        span = raised_in(error)
        place = "" if span is None else f" in {span.stage} of the {span.lane}"
        fix = what_to_lower(scenario, span.lane if span else "run")
        raise UserError(f"CUDA ran out of memory{place}: {in_short(error)}", "GPU memory", fix) from error


def in_short(error: RuntimeError) -> str:
    """Return what was wanted and what was free, else the error's first line."""
    text = str(error)
    asked, free = _ASKED.search(text), _FREE.search(text)
    if asked is None:
        return text.strip().partition("\n")[0]
    return f"tried to allocate {asked[1]}" + (f", and {free[1]} were free" if free is not None else "")


@contextmanager
def settings_as_arguments() -> Iterator[None]:
    """Have a UserError of the block name arguments instead of settings: ``--top-p`` for ``sampling.top_p``.

    Raises:
        UserError: such a one, or one for a GPU that is full.
    """
    try:
        yield
    except UserError as error:
        raise UserError(error.what, _in_arguments(error.where), _in_arguments(error.fix)) from error
    except RuntimeError as error:
        if not is_full_gpu(error):
            raise
        fix = (
            "lower --batch or --max-tokens, take --precision bfloat16, or free the GPU (nvidia-smi names who is on it)"
        )
        raise UserError(f"CUDA ran out of memory: {in_short(error)}", "GPU memory", fix) from error


def _in_arguments(text: str | None) -> str | None:
    for setting, argument in ARGUMENTS.items():
        text = text and text.replace(setting, argument)
    return text
