"""Keep people, hosts and absolute paths out of saved files."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HIDDEN = "<path>/"
"""What stands for the folders of an absolute path."""
NAMELESS = frozenset({"", "root", "localhost"})  # names that name nobody
_ABSOLUTE = re.compile(r"""(?<![\w.~>/-])(?:/(?!/)[^\s/'"<>|:,;()\[\]{}]+){2,}/?""")
_IP_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)")
_UNSAFE_IN_NAME = re.compile(r"[^\w.=,+~-]+", re.ASCII)


@dataclass(frozen=True)
class Scrubber:
    """Replaces the home and the current folder, the host's name, full or short, and the user's login name in texts."""

    home: str
    cwd: str
    host: str
    user: str

    @classmethod
    def of_this_process(cls) -> Scrubber:
        """Return the scrubber for this user on this machine."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a numeric user without an account
            user = ""
        return cls(os.path.expanduser("~"), os.getcwd(), os.uname().nodename, user)

    def paths(self, text: str) -> str:
        """Shorten absolute paths: to ``./x`` below the current folder, ``~/x`` below home, else to ``<path>/x``."""
        folders = {self.home.rstrip("/"): "~", self.cwd.rstrip("/"): "."}
        for folder in sorted(filter(None, folders), key=len, reverse=True):
            text = re.sub(rf"(?<![\w.~-]){re.escape(folder)}(?![\w-]|\.\w)", folders[folder], text)
        return _ABSOLUTE.sub(lambda match: HIDDEN + match[0].rstrip("/").rpartition("/")[2], text)

    def text(self, text: str) -> str:
        """Shorten absolute paths and replace IPv4 addresses and the names of host and user as whole words.

        Addresses of this machine alone (127.x.x.x) and 0.0.0.0 stay.
        """
        text = _IP_ADDRESS.sub("<address>", self.paths(text))
        for name, short in ((self.host, "<host>"), (self.host.partition(".")[0], "<host>"), (self.user, "<user>")):
            if name not in NAMELESS:
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", short, text)
        return text


def change_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Apply ``change`` to every string inside lists and dicts; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: change_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [change_strings(item, change) for item in value]
    return value


def safe_name(name: str) -> str:
    """Return ``name`` as a folder name: letters, digits and ``. _ = , + ~ -``; anything else becomes a dash."""
    cleaned = _UNSAFE_IN_NAME.sub("-", name).strip("-")
    return cleaned if cleaned.strip(".") else f"_{cleaned}"
