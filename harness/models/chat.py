"""Token ids of prompts: texts, and turns of a chat in the words of a tokenizer's own chat template.

Some templates (Llama 3.2, gpt-oss) write today's date into every prompt. They ask ``strftime_now`` for it, which
``apply_chat_template`` lets a caller give: ``on_date`` has all encoders that are made within it answer with one date.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from typing import Any

from harness.core.errors import UserError
from harness.core.types import Turn

Asked = str | tuple[Turn, ...]
"""What a prompt asks: a text, or the turns of a chat."""
Encode = Callable[[Asked], list[int]]
_QUESTIONS = ("What is 1 + 1?", "Name a red fruit.")
"""Two texts that every template has to write differently."""
_ANSWER = "The answer is 2."
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
    return "strftime_now" in str(getattr(tokenizer, "chat_template", None))


def template_digest(
    tokenizer: Any, system_prompt: str | None = None, arguments: Mapping[str, object] | None = None
) -> str:
    """Return the SHA-256, in hexadecimal, of three short chats as the tokenizer's template writes them on a fixed day.

    One has a user's turn, one two more turns behind it, one a system turn in front; what a template refuses counts as
    refused.
    """
    user, system = ("user", _QUESTIONS[0]), ("system", system_prompt or "Be brief.")
    with on_date(_SAME_DATE):
        chat = _Chat(tokenizer, None, arguments)
    chats = [user], [user, ("assistant", "2"), user], [system, user]
    written = [chat.tried(turns, in_parts)[0] for turns in chats for in_parts in (False, True)]
    return hashlib.sha256(json.dumps(written).encode()).hexdigest()


def turn_end(tokenizer: Any) -> int | None:
    """Return the token that the chat template writes behind an assistant's turn; None where it writes no such token."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    chat, turns = _Chat(tokenizer), [("user", _QUESTIONS[0]), ("assistant", _ANSWER)]
    texts = [chat.tried(turns, in_parts, asks=False)[0] or "" for in_parts in (False, True)]
    behind = next((text.rpartition(_ANSWER)[2].lstrip() for text in texts if _ANSWER in text), "")
    added = tokenizer.get_added_vocab()
    names = [name for name in added if behind.startswith(name)]
    return int(added[max(names, key=len)]) if names else None


def text_encoder(tokenizer: Any) -> Encode:
    """Return what encodes a prompt's text. A text that begins with the start-of-sequence token gets no second one."""
    start = added_start(tokenizer)

    def encode(asked: Asked) -> list[int]:
        if not isinstance(asked, str):
            what = "a prompt has turns of a chat, and no chat template is used"
            raise UserError(what, "task.chat_template", "turn on task.chat_template")
        return _one_start(list(tokenizer.encode(asked)), start)

    return encode


def added_start(tokenizer: Any) -> int | None:
    """Return the start-of-sequence token that a tokenizer puts in front of every text; None where it puts none."""
    start = getattr(tokenizer, "bos_token_id", None)
    return start if start is not None and list(tokenizer.encode(""))[:1] == [start] else None


def _one_start(token_ids: list[int], start: int | None) -> list[int]:
    """Return token ids with one start-of-sequence token in front, where there are several."""
    text = next((place for place, token_id in enumerate(token_ids) if token_id != start), len(token_ids))
    return token_ids[max(0, text - 1) :]


def chat_encoder(
    tokenizer: Any, system_prompt: str | None = None, arguments: Mapping[str, object] | None = None
) -> Encode:
    """Return what encodes a prompt as a chat up to where the model answers: a text as a user's turn, turns as they are.

    The token ids are those of ``tokenizer.apply_chat_template`` with ``add_generation_prompt``. What a template writes
    itself, such as a start-of-sequence token, is not added a second time, nor taken from the front of a turn.
    A template that needs contents in parts gets them so.

    Args:
        tokenizer: a Hugging Face tokenizer.
        system_prompt: the turn in front of a text's; None leaves that to the template.
        arguments: of the template, such as ``enable_thinking``.

    Raises:
        UserError: the tokenizer has no chat template, its template does not know an argument, or refuses such a chat or
            drops a part of it. The encoder raises it too, for turns in other roles.
    """
    chat = _Chat(tokenizer, system_prompt, arguments)
    chat.encode(_QUESTIONS[0])
    return chat.encode


class _Chat:
    def __init__(
        self, tokenizer: Any, system_prompt: str | None = None, arguments: Mapping[str, object] | None = None
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            fix = "leave task.chat_template out, or take a model that was made for chats"
            raise UserError("the model's tokenizer has no chat template", "task.chat_template", fix)
        for name in arguments or ():
            if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
                raise UserError(
                    f"the chat template of the model's tokenizer has no argument {name!r}, so it would change nothing",
                    where="task.chat_template_kwargs",
                    fix="name an argument that the template has, or leave it out",
                )
        self._tokenizer, self._system_prompt = tokenizer, system_prompt
        self._arguments = {**({"strftime_now": today().strftime} if asks_date(tokenizer) else {}), **(arguments or {})}
        self._in_parts: dict[tuple[str, ...], bool] = {}

    def encode(self, asked: Asked) -> list[int]:
        system = () if self._system_prompt is None else (("system", self._system_prompt),)
        turns = (*system, ("user", asked)) if isinstance(asked, str) else asked
        roles = tuple(role for role, _ in turns)
        if roles not in self._in_parts:
            self._in_parts[roles] = self._needs_parts(roles, is_text=isinstance(asked, str))
        text = self._written([(role, self._without_start(text)) for role, text in turns], self._in_parts[roles])
        token_ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        return _one_start(token_ids, getattr(self._tokenizer, "bos_token_id", None))

    def _without_start(self, content: str) -> str:
        start = getattr(self._tokenizer, "bos_token", None)
        while start and content.startswith(start):
            content = content.removeprefix(start)
        return content

    def _written(self, turns: Sequence[Turn], in_parts: bool, asks: bool = True) -> str:
        """The chat as the template writes it, up to where the model answers if it ``asks``."""
        chat = [
            {"role": role, "content": [{"type": "text", "text": content}] if in_parts else content}
            for role, content in turns
        ]
        text: str = self._tokenizer.apply_chat_template(
            chat, add_generation_prompt=asks, tokenize=False, **self._arguments
        )
        return text

    def _needs_parts(self, roles: tuple[str, ...], *, is_text: bool) -> bool:
        """Whether the template wants contents in parts, for turns in these roles; it may refuse or drop them."""
        faults = [self._fault(roles, in_parts) for in_parts in (False, True)]
        if None in faults:
            return faults[0] is not None
        if is_text:
            where = "task.chat_template" if self._system_prompt is None else "task.system_prompt"
            kind, fix = " with a system turn" if len(roles) > 1 else "", f"leave {where} out"
        else:
            where, kind = "task.chat_template", f" of {', '.join(roles)}"
            fix = "write the turns of the rows in an order of roles that the template knows"
        what = f"the chat template of the model's tokenizer cannot write a chat{kind}: {faults[0]}"
        raise UserError(what, where, fix)

    def tried(self, turns: Sequence[Turn], in_parts: bool, asks: bool = True) -> tuple[str | None, str | None]:
        """Return a chat as the template writes it, and why it does not write it; one of them is None."""
        try:
            return self._written(turns, in_parts, asks), None
        except Exception as error:  # whatever a template makes of a chat that it was not made for
            return None, str(error) or type(error).__name__

    def _fault(self, roles: Sequence[str], in_parts: bool) -> str | None:
        """Return what is wrong with a chat in these roles as the template writes it; None: nothing."""
        one, other = ([(role, f"{place}. {text}") for place, role in enumerate(roles)] for text in _QUESTIONS)
        (written, fault), (with_other, _) = (self.tried(turns, in_parts) for turns in (one, [*one[:-1], other[-1]]))
        if written is None:
            return fault
        if written == with_other or one[-1][1] not in written:
            return "it drops the question"
        lost = [role for role, content in one if role not in ("assistant", "tool") and content not in written]
        return f"it drops the turn of the {lost[0]}" if lost else None
