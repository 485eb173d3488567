"""torch.profiler for the whole of a process: how it is made, and how its trace is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

RAW = ".raw.json"
"""A trace as torch wrote it, with all it says about machine and people."""


def new_profile(cuda: bool) -> Any:
    """Return a ``torch.profiler.profile`` of all threads, not yet started; ``cuda``: and of the GPU."""
    from torch.profiler import profile

    return profile(activities=activities(cuda), acc_events=True, experimental_config=_all_threads())


def write_trace(profile: Any, file: Path) -> None:
    """Stop a profile that runs, and write what it has as a Chrome trace: all of the file or nothing.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    profile.stop()
    draft = file.with_suffix(".draft")
    profile.export_chrome_trace(str(draft))
    os.replace(draft, file)


def mark(name: str) -> Any:
    """Return the context that shows a stage in the trace."""
    from torch.profiler import record_function

    return record_function(f"grpo/{name}")


def activities(cuda: bool) -> list[Any]:
    """Return what torch.profiler is to record; the GPU only where the process computes on one."""
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])


def _all_threads() -> Any:
    """The window may begin in one thread and end in another, whichever comes first.

    Without this, torch profiles the starting thread alone, and crashes when another one stops it; with it, the CPU's
    allocations are not recorded (both seen with torch 2.13). Without ``trace_only``, stopping takes most of the time:
    torch makes Python objects of all events (22.8 s for 77,000 of them, 0.5 s with it), which nobody looks at here.
    """
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True, trace_only=True)
    except TypeError:  # an older torch
        return _ExperimentalConfig(profile_all_threads=True)
