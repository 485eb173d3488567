"""CUDA out of memory in a part: where, what torch said in short, and which number to lower."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.errors import UserError
from harness.core.trace import raised_in
from harness.probes.memory import is_full_gpu
from harness.run.memory.check import what_to_lower
from harness.scenario import Scenario

_ASKED, _FREE = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)"), re.compile(r"of which ([\d.]+ \w+) is free")


@contextmanager
def told_when_gpu_is_full(scenario: Scenario) -> Iterator[None]:
    """Put CUDA out of memory, in a part of this scenario's run, into a line.

    Raises:
        UserError: with part and stage, what torch wanted and what was left, and the memory plan's advice.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_full_gpu(error):
            raise
        traceback.clear_frames(error.__traceback__)  # their tensors: another arm may run in this process
        raise _in_words(error, scenario) from error


def _in_words(error: RuntimeError, scenario: Scenario) -> UserError:
    span = raised_in(error)
    place = "" if span is None else f" in {span.stage} of the {span.lane}"
    fix = what_to_lower(scenario, span.lane if span else "run")
    return UserError(f"CUDA ran out of memory{place}: {in_short(error)}", "GPU memory", fix)


def in_short(error: RuntimeError) -> str:
    """Return what was wanted and what was free, else the error's first line."""
    text = str(error)
    asked, free = _ASKED.search(text), _FREE.search(text)
    if asked is None:
        return text.strip().partition("\n")[0]
    return f"tried to allocate {asked[1]}" + (f", and {free[1]} were free" if free is not None else "")
