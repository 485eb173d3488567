"""Which part died when, from a run's ``log.txt``: the rows say it of lanes with weights only, and give no reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from harness.results.jsonl import read_file

_LINE = re.compile(r"\S+ (\d{1,9}\.\d+) s: (\S+) died \((.*)\); a new one takes its place")


class Death(NamedTuple):
    """The part on a lane died; ``elapsed_s`` in seconds of the loop. The reason may hold any text."""

    elapsed_s: float
    lane: str
    reason: str


def read_deaths(log: Path) -> list[Death]:
    """Return the deaths that a log tells of; none where there is no log. See ``RunRecorder.on_replaced``.

    Raises:
        UserError: the log cannot be read.
    """
    try:
        text = read_file(log).decode(errors="replace")
    except FileNotFoundError:
        return []
    found = [match for line in text.split("\n") if (match := _LINE.fullmatch(line))]
    return [Death(float(match[1]), match[2], match[3]) for match in found]
