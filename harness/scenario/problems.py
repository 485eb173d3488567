"""What is wrong with settings, in words a person can act on."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.core.errors import UserError
from harness.scenario.keys import Path

MOST_TOLD = 20
"""Problems that one error tells of; nobody reads more."""
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``paths`` are the values at fault; ``where`` says where they were written, once that is known.
    """

    what: str
    fix: str | None = None
    paths: tuple[Path, ...] = ()
    where: str | None = None

    def located(self, origins: Mapping[Path, str]) -> Problem:
        """Return the problem with ``where`` filled in from where each value was written."""
        if self.where or not self.paths or not origins:
            return self
        found = {dotted(path): origins.get(path, "default value") for path in self.paths}
        if len(found) == 1:
            return replace(self, where=next(iter(found.values())))
        return replace(self, where="; ".join(f"{key}: {place}" for key, place in found.items()))


def broken(what: str, fix: str, *keys: str) -> Problem:
    """Return the problem of a broken rule; ``keys`` are the dotted keys of the settings that it ties together."""
    return Problem(what, fix, tuple(tuple(key.split(".")) for key in keys))


def dotted(path: Path) -> str:
    """Write a path as in ``--set``: ``loss.kl.coefficient``, ``sampling.stop[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: object, limit: int = 60) -> str:
    """Show a value and, for text, that it is text."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    kind = "text " if isinstance(value, str) else "the list " if isinstance(value, list | tuple) else ""
    kind = "the mapping " if isinstance(value, dict) else kind
    text = repr(list(value) if isinstance(value, tuple) else value)
    return kind + (text if len(text) <= limit else text[: limit - 3] + "...") + odd_letter(value)


def odd_letter(word: object) -> str:
    """Say which character of a short text is not ASCII, since it may look like one that is; empty where none is.

    >>> odd_letter("st\u0435ps"), odd_letter("steps")
    (', with U+0435 CYRILLIC SMALL LETTER IE at character 3', '')
    """
    if not isinstance(word, str) or len(word) > _LONGEST_NAME or word.isascii():
        return ""
    at = next(number for number, character in enumerate(word) if not character.isascii())
    return f", with U+{ord(word[at]):04X} {unicodedata.name(word[at], '')}".rstrip() + f" at character {at + 1}"


def as_user_error(problems: Sequence[Problem], subject: str) -> UserError:
    """Make one error of all the problems of ``subject`` (a file or scenario)."""
    if len(problems) == 1:
        problem = problems[0]
        return UserError(problem.what, problem.where or subject, problem.fix)
    most = f", the first {MOST_TOLD} of them" if len(problems) > MOST_TOLD else ""
    lines = [f"{len(problems)} problems in {subject}{most}"]
    for number, problem in enumerate(problems[:MOST_TOLD], start=1):
        lines.append(f"  {number}. {problem.what}")
        lines += [f"     where: {problem.where}"] if problem.where else []
        lines += [f"     fix:   {problem.fix}"] if problem.fix else []
    return UserError("\n".join(lines))
