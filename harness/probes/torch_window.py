"""A trace by torch.profiler of a few training steps, taken in the process that works."""

from __future__ import annotations

import gzip
import os
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.atomic_files import move_whole
from harness.core.errors import RunStopped
from harness.core.trace import Stage, Tracer
from harness.probes.profile import TorchWindow
from harness.probes.windows import WindowTracer
from harness.results.anonymous import Scrubber

if TYPE_CHECKING:
    from torch.profiler import profile

SUFFIX = ".pt.trace.json.gz"
"""What TensorBoard's and Perfetto's users call such a file."""
RAW = ".raw.json"
"""A trace as torch wrote it, with all it says about machine and people."""
MARK = "grpo/"
"""In front of the stage names in the trace."""
_ONE_AT_A_TIME = threading.Lock()
_HOST_NAME = re.compile(r'("host_name": ?)"[^"]*"')


class TorchProfiler:
    """torch.profiler for one process: all of its threads, on the CPU and, where it computes on one, on the GPU.

    Args:
        lane: names the file.
        folder: where the raw trace goes, for ``collect_traces``; it exists.
        cuda: whether the process computes on a GPU; torch would make a CUDA context to trace one.
    """

    def __init__(self, lane: str, folder: Path, cuda: bool = False) -> None:
        self._lane, self.file, self._cuda = lane, folder / f"{lane}{RAW}", cuda
        self._profile: profile | None = None

    def start(self) -> None:
        """Start it.

        Raises:
            RunStopped: it cannot be started.
        """
        from torch.profiler import profile

        if not _ONE_AT_A_TIME.acquire(blocking=False):  # torch would silently drop what the first one has recorded
            raise RunStopped(
                f"torch.profiler runs in the process of {self._lane} already, and one process has one at a time: "
                "profile one arm, or let the arms work in processes of their own"
            )
        started = profile(activities=activities(self._cuda), acc_events=True, experimental_config=_all_threads())
        try:
            started.start()
        except RuntimeError as error:
            _ONE_AT_A_TIME.release()
            raise RunStopped(f"torch.profiler could not start in {self._lane}: {_first_line(error)}") from error
        self._profile = started

    def stop(self) -> None:
        """Stop it and write the file, whole or not at all.

        Raises:
            RunStopped: it cannot be stopped or written.
        """
        stopped, self._profile = self._profile, None
        assert stopped is not None, "stop comes after start"
        try:
            stopped.stop()
            draft = self.file.with_suffix(".draft")
            stopped.export_chrome_trace(str(draft))
            os.replace(draft, self.file)
        except (OSError, RuntimeError) as error:
            raise RunStopped(f"the trace of {self._lane} could not be written: {_first_line(error)}") from error
        finally:
            _ONE_AT_A_TIME.release()

    def mark(self, stage: Stage) -> AbstractContextManager[object]:
        """Return what shows a stage in the trace, as ``grpo/<stage>``."""
        from torch.profiler import record_function

        return record_function(MARK + stage.value)


def torch_window_tracer(
    tracer: Tracer, window: TorchWindow, lanes: Sequence[str], folder: Path, cuda: bool = False
) -> WindowTracer:
    """Return a tracer that runs torch.profiler over the window.

    Args:
        tracer: records the spans.
        window: which steps.
        lanes: the chosen lanes of this process; the file is named after all of them.
        folder: where the raw trace goes, for ``collect_traces``.
        cuda: whether the process computes on a GPU.
    """
    profiler = TorchProfiler(process_name(lanes), folder, cuda)
    return WindowTracer(tracer, window.numbers, profiler.start, profiler.stop, lanes, profiler.mark)


def process_name(lanes: Sequence[str]) -> str:
    """Return how files name a process: by its lanes."""
    return "+".join(lanes)


def collect_traces(names: Iterable[str], drafts: Path, folder: Path, scrubber: Scrubber | None = None) -> list[Path]:
    """Keep the traces of a run in its folder, compressed and without paths and names: after the loop, as it takes time.

    Args:
        names: a name for each process that was profiled: its lane, or ``process_name`` of its lanes.
        drafts: where the processes wrote them.
        folder: where they go; made if need be.
        scrubber: knows what to take out; None takes that of this process.

    Returns:
        The files.

    Raises:
        RunStopped: a trace is missing, or holds no operation; the others are kept all the same.
    """
    kept, missing = [], []
    for name in names:
        raw = drafts / f"{name}{RAW}"
        clean = raw.with_suffix(".clean")
        if not raw.is_file() or scrub_trace(raw, clean, scrubber or Scrubber.of_this_process()) == 0:
            missing.append(name)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        kept.append(folder / f"{name}{SUFFIX}")
        move_whole(clean, kept[-1])
        raw.unlink()
    if missing:
        raise RunStopped(f"torch.profiler was to trace {', '.join(missing)}, and there is no operation on record")
    return kept


def scrub_trace(raw: Path, clean: Path, scrubber: Scrubber) -> int:
    """Rewrite a Chrome trace, compressed, without absolute paths and the names of host and user.

    Args:
        raw: the trace as torch wrote it, plain text of many lines.
        clean: where it goes.
        scrubber: knows what to take out.

    Returns:
        How many operations it holds: events with a duration.
    """
    names = [name for name in (scrubber.host, scrubber.host.partition(".")[0], scrubber.user) if name]
    operations = 0
    with open(raw, encoding="utf-8", errors="replace") as lines, gzip.open(clean, "wt", encoding="utf-8") as out:
        for line in lines:
            operations += '"ph": "X"' in line
            if "host_name" in line:
                line = _HOST_NAME.sub(r'\1"<host>"', line)
            if "/" in line or line.count(".") > 2 or any(name in line for name in names):  # else there is nothing in it
                line = scrubber.text(line)
            out.write(line)
    return operations


def activities(cuda: bool) -> list[Any]:
    """Return what torch.profiler is to record; the GPU only where the process computes on one."""
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])


def _all_threads() -> Any:
    """Parts of an in-process run have a thread each, and the window begins and ends in whichever comes first.

    Without this, torch profiles the starting thread alone, and crashes when another one stops it; with it, the CPU's
    allocations are not recorded (both seen with torch 2.13). Without ``trace_only``, stopping takes most of the time:
    torch makes Python objects of all events (22.8 s for 77,000 of them, 0.5 s with it), which nobody looks at here.
    """
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True, trace_only=True)
    except TypeError:  # an older torch
        return _ExperimentalConfig(profile_all_threads=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
