"""Prompts as turns of a chat, in the words of a tokenizer's own chat template.

Some templates (Llama 3.2, gpt-oss) write today's date into every prompt. They ask ``strftime_now`` for it, which
``apply_chat_template`` lets a caller give: ``on_date`` has all encoders that are made within it answer with one date.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from typing import Any

from harness.core.errors import UserError

_ASKS_DATE = "strftime_now"
_SAME_DATE = date(2000, 1, 1)
_TODAY: ContextVar[date | None] = ContextVar("today", default=None)


@contextmanager
def on_date(today: date) -> Iterator[None]:
    """Give the encoders that are made in the block this date, for templates that write today's."""
    token = _TODAY.set(today)
    try:
        yield
    finally:
        _TODAY.reset(token)


def today() -> date:
    """Return the date that ``on_date`` gives, else this machine's."""
    return _TODAY.get() or date.today()


def asks_date(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template writes today's date."""
    return _ASKS_DATE in str(getattr(tokenizer, "chat_template", None))


def date_arguments(tokenizer: Any) -> dict[str, Any]:
    """Return what ``apply_chat_template`` is given for a template that writes today's date; nothing for others."""
    return {_ASKS_DATE: today().strftime} if asks_date(tokenizer) else {}


def template_digest(tokenizer: Any, system_prompt: str | None = None) -> str:
    """Return the SHA-256, in hexadecimal, of three short chats as the tokenizer's template writes them on a fixed day.

    One has a user's turn, one two more turns behind it, one a system turn in front; what a template refuses counts as
    refused.
    """
    user, model = {"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "2"}
    system = {"role": "system", "content": system_prompt or "Be brief."}
    with on_date(_SAME_DATE):
        written = [_written(tokenizer, turns) for turns in ([user], [user, model, user], [system, user])]
    return hashlib.sha256(json.dumps(written).encode()).hexdigest()


def _written(tokenizer: Any, turns: list[dict[str, str]]) -> str | None:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False, **date_arguments(tokenizer)
        )
    except TemplateError:
        return None
    return text


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
    dated = date_arguments(tokenizer)

    def encode(text: str) -> list[int]:
        turns = [*system, {"role": "user", "content": text}]
        encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, **dated)
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
