"""What of a value may be written down: nothing that could be a secret, or name a person or a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

HIDDEN = "<hidden>"
MOST_TEXT = 200
"""Characters that are kept of a text."""
_TOKEN = re.compile(
    r"\b(?:hf|sk|pk|rk|gh[pousr]|github_pat|glpat|xox[abprs]|AKIA|ASIA|AIza|ya29|eyJ)[-_.]?[A-Za-z0-9_.-]{12,}"
    r"|(?i:bearer|token|password|passwd|secret|api[-_]?key)\s*[=: ]\s*\S+"
    r"|\b(?:(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Z])(?=[\w+/=-]*[a-z])|(?=(?:[A-Za-z+/_=-]*\d){6}))[A-Za-z0-9+/_=-]{32,}"
    r"|://[^/\s:@]*:[^/\s@]*@"
)
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|[\w.+-]+@[\w-]+\.[\w.]+")
_HOST = re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|io|ai|local|internal|lan|edu|gov|cloud|dev)\b")
_FOLDER = re.compile(r"(?:^|[\s='\"(])(?:~|/(?:home|Users|root|mnt|scratch|data|tmp)\b)")


@lru_cache(maxsize=4096)
def shown(text: str) -> str:
    """Return a text as it may be written: cut; ``<hidden>`` where it may hold a secret, folder, host or person."""
    if any(each.search(text) for each in (_TOKEN, _ADDRESS, _HOST, _FOLDER)):
        return HIDDEN
    if any(name in text for name in _own_names()):
        return HIDDEN
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "..."


@lru_cache(maxsize=1)
def _own_names() -> frozenset[str]:
    """The home folder, this machine's name and the user's; names that name nobody apart."""
    found = {os.path.expanduser("~"), os.uname().nodename, os.environ.get("USER", ""), os.environ.get("LOGNAME", "")}
    return frozenset(name for name in found if len(name) > 2 and name not in ("root", "localhost", "/root"))


def argument_names(arguments: Iterable[str]) -> list[str]:
    """Return the options of a command line without their values, ``--lr`` of ``--lr=1e-6``; hydra's ``a.b=1`` too."""
    found = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if re.fullmatch(r"--?[A-Za-z][\w.-]*", name) or (equals and re.fullmatch(r"\+{0,2}~?[A-Za-z_][\w.@/]*", name)):
            found.append(name[:MOST_TEXT])
    return found


def environment_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the environment's variables, sorted."""
    return sorted(name for name in environment if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name))
