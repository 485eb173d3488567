"""Stages as NVTX ranges, for a tool that listens: Nsight Systems, or Nsight Compute with ``--nvtx``.

Domain ``grpo``; categories ``stage/<stage>`` and ``wait/<wait>``; the name is the stage's, the payload the training
step. Names are registered once and attributes used again: a name made for each range costs its making even where no
tool listens, and registered names are kept for ever. Ranges are started and ended, not pushed and popped, since a
stage may cross an await or end in another thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from harness.core.trace import HookedSpan, SpanHook, Stage

DOMAIN = "grpo"
"""NVTX domain of all ranges of the harness."""
INJECTION = "NVTX_INJECTION64_PATH"
"""Variable by which NVTX finds the library of the tool that listens; nsys sets it."""


def open_domain(name: str = DOMAIN, environment: Mapping[str, str] = os.environ) -> tuple[Any, str | None]:
    """Return the ``nvtx.Domain``, or None and why ranges would be lost.

    NVTX decides at the first call in a process whether a tool listens; one cannot be attached later. From 0.2.12 on the
    package asks the tool by ``nvtxDomainIsEnabled``, an extension that Nsight Systems 2022.4 cannot set up; the package
    takes that for a no, creates the domain and drops every range. A tool that was loaded by ``NVTX_INJECTION64_PATH``
    is therefore given the ranges whatever it says to that question.
    """
    try:
        import nvtx
    except ImportError:
        return None, "the package nvtx is not installed"
    if not nvtx.enabled():
        return None, "NVTX_DISABLE is set"
    domain = nvtx.get_domain(name)
    if isinstance(domain, nvtx.Domain):
        return domain, None
    if INJECTION not in environment:  # their stand-in, which does nothing
        return None, "no tool listens for NVTX ranges in this process"
    try:
        return _unasked_domain(name), None
    except (ImportError, AttributeError) as error:  # it reaches into the package, which may change there
        return None, f"the tool is older than the package nvtx, which sends nothing unasked: {error}"


@cache
def _unasked_domain(name: str) -> Any:
    """Return a domain without asking the tool; kept, for NVTX destroys one that nobody holds."""
    import nvtx
    from nvtx._lib.lib import DomainHandle

    domain: Any = object.__new__(nvtx.Domain)
    domain.handle = DomainHandle(name)  # which 0.2.16 looks at in `__init__`
    domain.__init__(name)
    return domain


def category(stage: Stage) -> str:
    """Return the category of a stage's ranges: ``stage/update``, ``wait/batch``."""
    return stage.value.replace("wait_for_", "wait/", 1) if stage.is_wait else f"stage/{stage.value}"


class NvtxRanges(SpanHook):
    """Marks each span as an NVTX range, which encloses it.

    Args:
        domain: a ``nvtx.Domain``.
    """

    inside = False

    def __init__(self, domain: Any) -> None:
        self._domain = domain
        self._ranges: dict[HookedSpan, int] = {}
        self._of_thread = threading.local()  # the payload is written into the attributes before each range
        self._of_thread.attributes = self._register()  # so that no stage pays for registering the names

    def begin(self, span: HookedSpan) -> None:
        try:
            attributes = self._of_thread.attributes
        except AttributeError:
            attributes = self._of_thread.attributes = self._register()
        self._ranges[span] = self._domain.start_range(attributes[span.stage], payload=span.step)

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        self._domain.end_range(self._ranges.pop(span))

    def _register(self) -> dict[Stage, Any]:
        return {stage: self._domain.get_event_attributes(stage.value, category=category(stage)) for stage in Stage}
