"""Windows of training steps in which a profiler runs, and what torch.profiler records in them.

A window opens and closes on chosen lanes, told by the spans that begin. torch's traces are taken in the process that
works, and freed of names and paths before the run's folder takes them.
"""

from __future__ import annotations

import gzip
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.atomic_files import move_whole
from harness.core.errors import RunStopped, UserError
from harness.core.trace import HookedSpan, SpanHook, Stage
from harness.probes.profile import ProbeProfile, TorchWindow, Window
from harness.results import lane_kind
from harness.results.anonymous import Scrubber

if TYPE_CHECKING:
    from torch.profiler import profile

OF_A_VERSION = frozenset(
    {
        Stage.WEIGHT_PUBLISH,
        Stage.WEIGHT_TRANSFER,
        Stage.WEIGHT_VERIFY,
        Stage.WEIGHT_LOAD,
        Stage.EVALUATE,
        Stage.CHECKPOINT,
        Stage.CHECKPOINT_WRITE,
        Stage.SAVE_POLICY,
    }
)
"""Stages whose spans carry the policy version they are about, which the training step before it has made."""


def training_step(stage: Stage, step: int) -> int:
    """Return the training step that a span belongs to; -1 if to none.

    Args:
        stage: of the span.
        step: as the span carries it.
    """
    return max(step - 1, -1) if stage in OF_A_VERSION else step


def lanes_in(window: Window, lanes: Iterable[str]) -> tuple[str, ...]:
    """Return the lanes that the window names, in the order of ``lanes``.

    Args:
        window: names lanes, or kinds of lanes: ``generator`` means ``generator``, ``generator0``, ``generator1`` ...
        lanes: those of the run.

    Raises:
        UserError: the run has no such lane.
    """
    known = tuple(lanes)
    chosen = {name: [lane for lane in known if name in (lane, lane_kind(lane))] for name in window.lanes}
    unknown = [name for name, found in chosen.items() if not found]
    if unknown:
        raise UserError(
            f"the run has no lane {unknown[0]!r} to profile",
            "lanes of the probe profile",
            f"one of {', '.join(known)}",
        )
    return tuple(lane for lane in known if any(lane in found for found in chosen.values()))


def check_windows(profile: ProbeProfile, lanes: Iterable[str], steps: int) -> None:
    """Refuse windows that would record nothing, or not all of their steps.

    Args:
        profile: whose windows are meant.
        lanes: those of the run.
        steps: training steps of the run.

    Raises:
        UserError: a lane that the run has not, or a step that never comes.
    """
    known = tuple(lanes)
    for name in ("torch_profiler", "pyspy", "nsight"):
        window: Window | None = getattr(profile, name)
        if window is None:
            continue
        lanes_in(window, known)
        last = window.numbers[-1]
        if last >= steps:
            raise UserError(
                f"{name} profiles steps {window.first_step} to {last}, and the last step of the run is {steps - 1}",
                f"{name}.first_step of the probe profile {profile.name}",
                f"at least {last + 1} steps, or a first_step of at most {max(steps - window.steps, 0)}",
            )


class ProfilerWindow(SpanHook):
    """Starts a profiler when the first span of a step in the window begins, and stops it when the window is over.

    It is over when every one of the lanes has begun a span of a later step, or when it is closed. Each happens
    at most once, in the thread whose span begins; spans that other threads begin meanwhile wait for it.

    Args:
        numbers: training steps of the window.
        start: starts the profiler.
        stop: stops it; called only after a ``start`` that went well.
        lanes: lanes of this process that count; None takes all that come for one.
        mark: given the stage of a span that begins while the profiler runs, returns what surrounds it.
    """

    inside = False

    def __init__(
        self,
        numbers: range,
        start: Callable[[], None],
        stop: Callable[[], None],
        lanes: Collection[str] | None = None,
        mark: Callable[[Stage], AbstractContextManager[object]] | None = None,
    ) -> None:
        self._numbers, self._start, self._stop, self._mark = numbers, start, stop, mark
        self._lanes = None if lanes is None else frozenset(lanes)
        self._before_its_end = set(lanes or [""])
        self._running = self._over = False
        self._lock = threading.Lock()

    def begin(self, span: HookedSpan) -> None:
        if self._over:
            return
        if self._lanes is None or span.lane in self._lanes:
            with self._lock:
                self._begins("" if self._lanes is None else span.lane, training_step(span.stage, span.step))
        if self._mark is not None and self._running:
            span.kept[self] = mark = self._mark(span.stage)
            mark.__enter__()

    def end(self, span: HookedSpan) -> None:
        if self in span.kept:
            span.kept[self].__exit__(None, None, None)

    def _begins(self, lane: str, step: int) -> None:
        if self._over:
            return
        if step in self._numbers and not self._running:
            self._begin()
        elif step >= self._numbers.stop:
            self._before_its_end.discard(lane)
            if not self._before_its_end:
                self._end()

    def _begin(self) -> None:
        try:
            self._start()
        except BaseException:
            self._over = True
            raise
        self._running = True

    def _end(self) -> None:
        running, self._running, self._over = self._running, False, True
        if running:
            self._stop()

    def close(self) -> None:
        """Stop the profiler if it still runs; no span starts it any more."""
        with self._lock:
            if not self._over:
                self._end()


TRACE_SUFFIX = ".pt.trace.json.gz"
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


def torch_window(window: TorchWindow, lanes: Sequence[str], folder: Path, cuda: bool = False) -> ProfilerWindow:
    """Return what runs torch.profiler over the window.

    Args:
        window: which steps.
        lanes: the chosen lanes of this process; the file is named after all of them.
        folder: where the raw trace goes, for ``collect_traces``.
        cuda: whether the process computes on a GPU.
    """
    profiler = TorchProfiler(process_name(lanes), folder, cuda)
    return ProfilerWindow(window.numbers, profiler.start, profiler.stop, lanes, profiler.mark)


def process_name(lanes: Sequence[str]) -> str:
    """Return how files name a process: by its lanes."""
    return "+".join(lanes).replace("/", "-")


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
        kept.append(folder / f"{name}{TRACE_SUFFIX}")
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
