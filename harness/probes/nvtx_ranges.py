"""Stages as NVTX ranges: see ``harness.record.nvtx_ranges``."""

from __future__ import annotations

from typing import Any

from harness.core.trace import HookedSpan, SpanHook, Stage
from harness.record.nvtx_ranges import NvtxRanges


class NvtxSpans(SpanHook):
    """Marks each span as an NVTX range, which encloses it.

    Args:
        domain: a ``nvtx.Domain``.
    """

    inside = False

    def __init__(self, domain: Any) -> None:
        self._ranges = NvtxRanges(domain, [stage.value for stage in Stage])
        self._open: dict[HookedSpan, int] = {}

    def begin(self, span: HookedSpan) -> None:
        self._open[span] = self._ranges.begin(span.stage.value, span.step)

    def end(self, span: HookedSpan, error: BaseException | None) -> None:
        self._ranges.end(self._open.pop(span))
