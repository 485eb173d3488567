"""Prompts as turns of a chat, in the words of a tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.core.errors import UserError


def chat_encoder(tokenizer: Any, system_prompt: str | None = None) -> Callable[[str], list[int]]:
    """Return what encodes a prompt as a user's turn of a chat, up to where the model answers.

    The token ids are those of ``tokenizer.apply_chat_template`` with ``add_generation_prompt``. What a template writes
    itself, such as a start-of-sequence token, is not added a second time.

    Args:
        tokenizer: a Hugging Face tokenizer.
        system_prompt: the turn in front of the user's; None leaves that to the template.

    Raises:
        UserError: the tokenizer has no chat template, or its template refuses such a chat.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "the model's tokenizer has no chat template",
            where="task.chat_template",
            fix="leave task.chat_template out, or take a model that was made for chats",
        )
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]

    def encode(text: str) -> list[int]:
        turns = [*system, {"role": "user", "content": text}]
        encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    _try_out(encode, system_prompt)
    return encode


def _try_out(encode: Callable[[str], list[int]], system_prompt: str | None) -> None:
    from jinja2 import TemplateError

    try:
        encode("What is 1 + 1?")
    except TemplateError as error:  # some know no system turn, and say so by an exception
        with_system = " with a system turn" if system_prompt is not None else ""
        raise UserError(
            f"the chat template of the model's tokenizer cannot write a chat{with_system}: {error}",
            where="task.chat_template" if system_prompt is None else "task.system_prompt",
            fix="leave task.chat_template out" if system_prompt is None else "leave task.system_prompt out",
        ) from error
