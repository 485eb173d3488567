"""Prompts of tasks that make up their own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from harness.core.errors import UserError
from harness.core.types import Prompt


def distinct_prompts(
    name: str, count: int, most: int, draws: Iterator[tuple[Hashable, Prompt]], bound: str = ""
) -> tuple[Prompt, ...]:
    """Return the first prompts of different keys.

    Args:
        name: of the setting that says how many.
        count: how many.
        most: how many there may be; ``bound`` says what that is.
        draws: prompts with their keys, without end.

    Raises:
        UserError: ``count`` is below 1 or above ``most``.
    """
    if not 1 <= count <= most:
        what = f"{name} is {count}; it must be 1 to {most}{bound}"
        raise UserError(what, f"task.{name}", f"set task.{name} to {min(max(count, 1), most)}")
    found: dict[Hashable, Prompt] = {}
    while len(found) < count:
        found.setdefault(*next(draws))
    return tuple(found.values())
