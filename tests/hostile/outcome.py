"""How an input was met: accepted, refused in one clear error, or one of the ways that must not be."""

from __future__ import annotations

import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from harness.core.errors import UserError

ACCEPTED, REFUSED = "accepted", "refused"
TRACEBACK, HANG, SILENT, UNCLEAR = "traceback", "hang", "silent", "unclear"
BAD = (TRACEBACK, HANG, SILENT, UNCLEAR)
GIVEN_UP_CPU_S, GIVEN_UP_S = 20, 120
"""Seconds of CPU time, and of waiting, after which whatever still runs is stopped."""
LONGEST_ERROR = 8000
"""Characters of an error that a person still reads: twenty problems with their places."""


class Silent(AssertionError):
    """An input was accepted, and what came of it is wrong or cannot be used."""


class _GivenUp(BaseException):
    """Raised by the alarm, past every ``except Exception``."""


@dataclass(frozen=True)
class Outcome:
    """How an input was met.

    Attributes:
        kind: one of this module's words.
        said: the error, or the last lines of the traceback.
        cpu_s: seconds of CPU time that it took this process.
    """

    kind: str
    said: str
    cpu_s: float


def met(
    act: Callable[[], object], must_refuse: bool = False, limit_s: float = GIVEN_UP_CPU_S, names: str = ""
) -> Outcome:
    """Give an input to its reader.

    Args:
        act: raises ``UserError`` where the input is refused, and ``Silent`` where it should have been.
        must_refuse: the input cannot mean anything.
        limit_s: CPU seconds that it may take.
        names: what an error must have in it.
    """
    began = time.process_time()
    kind, said = ACCEPTED, ""
    try:
        with _alarm():
            act()
        if must_refuse:
            kind, said = SILENT, "it was accepted"
    except UserError as error:
        kind, said = REFUSED, str(error)
        if not error.what.strip() or len(said) > LONGEST_ERROR or "Traceback" in said or names not in said:
            kind = UNCLEAR
    except Silent as error:
        kind, said = SILENT, str(error)
    except _GivenUp:
        kind = HANG
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        kind, said = TRACEBACK, "".join(traceback.format_exception(error)[-4:])
    cpu_s = time.process_time() - began
    return Outcome(HANG if cpu_s > limit_s and kind in (ACCEPTED, REFUSED) else kind, said, cpu_s)


@contextmanager
def _alarm() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise _GivenUp

    timers = {signal.SIGALRM: (signal.ITIMER_REAL, GIVEN_UP_S), signal.SIGPROF: (signal.ITIMER_PROF, GIVEN_UP_CPU_S)}
    before = {number: signal.signal(number, give_up) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@dataclass
class Count:
    """How many inputs of an area were met how, and each one that was met badly."""

    area: str
    kinds: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    longest: str = ""
    bad: list[tuple[str, Outcome]] = field(default_factory=list)

    def add(self, name: str, outcome: Outcome) -> None:
        """Count an input by its name."""
        self.kinds[outcome.kind] += 1
        if outcome.cpu_s > self.longest_s:
            self.longest_s, self.longest = outcome.cpu_s, name
        if outcome.kind in BAD:
            self.bad.append((name, outcome))

    def note(self, data: bytes, outcome: Outcome) -> None:
        """Count an input that has no name."""
        self.add("", outcome)

    def row(self) -> str:
        """Return the area's line of the table."""
        shown = [self.kinds.total(), *(self.kinds[kind] for kind in (REFUSED, ACCEPTED, *BAD))]
        return f"| {self.area} | {' | '.join(f'{number:,}' for number in shown)} | {self.longest_s:.2f} |"


HEAD = (
    "| area | tried | refused in one clear error | accepted | traceback | hang | silent | unclear | longest, CPU s |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
