"""NVTX ranges for a tool that listens: Nsight Systems, or Nsight Compute with ``--nvtx``.

Domain ``grpo``; categories ``stage/<stage>`` and ``wait/<wait>``; the name is the stage's, the payload the training
step. Names are registered once and attributes used again: a name made for each range costs its making even where no
tool listens, and registered names are kept for ever. Ranges are started and ended, not pushed and popped, since a
stage may cross an await or end in another thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

DOMAIN = "grpo"
"""NVTX domain of all ranges of the harness."""
INJECTION = "NVTX_INJECTION64_PATH"
"""Variable by which NVTX finds the library of the tool that listens; nsys sets it."""
CAPTURE_RANGE = "profiled_steps"
"""Range that is open during the steps that are profiled; without CUDA it is what starts and stops nsys's capture."""


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


def category(stage: str) -> str:
    """Return the category of a stage's ranges: ``stage/update``, ``wait/batch``."""
    return stage.replace("wait_for_", "wait/", 1) if stage.startswith("wait_for_") else f"stage/{stage}"


class NvtxRanges:
    """Ranges by the names of stages.

    Args:
        domain: a ``nvtx.Domain``.
        names: are registered at once, for each thread when it begins its first range: no stage pays for it.
    """

    def __init__(self, domain: Any, names: Iterable[str] = ()) -> None:
        self._domain, self._names = domain, tuple(names)
        self._of_thread = threading.local()  # the payload is written into the attributes before each range
        self._register()

    def _register(self) -> dict[str, Any]:
        attributes = self._of_thread.attributes = {name: self._attributes(name) for name in self._names}
        return attributes

    def _attributes(self, name: str) -> Any:
        return self._domain.get_event_attributes(name, category=category(name))

    def begin(self, name: str, step: int) -> int:
        """Start a range; return its number."""
        try:
            attributes = self._of_thread.attributes
        except AttributeError:
            attributes = self._register()
        if name not in attributes:
            attributes[name] = self._attributes(name)
        return int(self._domain.start_range(attributes[name], payload=step))

    def end(self, number: int) -> None:
        """End a range; any thread may."""
        self._domain.end_range(number)

    def begin_capture(self) -> int:
        """Start the range around the steps that are profiled."""
        attributes = self._domain.get_event_attributes(CAPTURE_RANGE, category="window")
        return int(self._domain.start_range(attributes, payload=-1))
