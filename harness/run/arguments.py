"""Errors that name a scenario's settings, told in a command's own arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.errors import UserError
from harness.probes.memory import is_full_gpu
from harness.run.full_gpu import in_short

ARGUMENTS = {
    "sampling.temperature": "--temperature",
    "sampling.top_p": "--top-p",
    "sampling.min_tokens": "--min-tokens",
    "sampling.max_tokens": "--max-tokens",
    "task.keywords_per_prompt": "--keywords",
    "engine.type": "--engine",
    "engine.precision": "--precision",
    "placement.device": "--device",
    "model.path": "--model",
}
"""The argument for a setting, in the commands that sample and do not train."""


@contextmanager
def settings_as_arguments() -> Iterator[None]:
    """Have a UserError of the block say what to type: ``set --top-p`` for ``set sampling.top_p``.

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
