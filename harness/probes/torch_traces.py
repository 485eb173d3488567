"""What torch.profiler records in a window: taken in the process that works, freed of names and paths, then kept."""

from __future__ import annotations

import gzip
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.atomic_files import move_whole
from harness.core.errors import RunStopped
from harness.core.trace import Stage
from harness.probes.profile import TorchWindow
from harness.probes.windows import ProfilerWindow, process_name
from harness.record.torch_trace import RAW, mark, new_profile, write_trace
from harness.results.anonymous import Scrubber

if TYPE_CHECKING:
    from torch.profiler import profile

TRACE_SUFFIX = ".pt.trace.json.gz"
"""What TensorBoard's and Perfetto's users call such a file."""
_ONE_AT_A_TIME = threading.Lock()
_HOST_NAME = re.compile(r'("host_name": ?)"[^"]*"')


class TorchProfiler(ProfilerWindow):
    """torch.profiler for one process: all of its threads, on the CPU and, where it computes on one, on the GPU.

    Args:
        lanes: the chosen lanes of this process; the file is named after all of them.
        folder: where the raw trace goes, for ``collect_traces``; it exists.
        cuda: whether the process computes on a GPU; torch would make a CUDA context to trace one.
    """

    def __init__(self, window: TorchWindow, lanes: Sequence[str], folder: Path, cuda: bool = False) -> None:
        super().__init__(window, lanes)
        self._name, self._cuda = process_name(lanes), cuda
        self._file = folder / f"{self._name}{RAW}"
        self._profile: profile | None = None

    def start(self) -> None:
        if not _ONE_AT_A_TIME.acquire(blocking=False):  # torch would silently drop what the first one has recorded
            raise RunStopped(
                f"torch.profiler runs in the process of {self._name} already, and one process has one at a time: "
                "profile one arm, or let the arms work in processes of their own"
            )
        started = new_profile(self._cuda)
        try:
            started.start()
        except RuntimeError as error:
            _ONE_AT_A_TIME.release()
            raise RunStopped(f"torch.profiler could not start in {self._name}: {_first_line(error)}") from error
        self._profile = started

    def stop(self) -> None:
        stopped, self._profile = self._profile, None
        assert stopped is not None, "stop comes after start"
        try:
            write_trace(stopped, self._file)
        except (OSError, RuntimeError) as error:
            raise RunStopped(f"the trace of {self._name} could not be written: {_first_line(error)}") from error
        finally:
            _ONE_AT_A_TIME.release()

    def mark(self, stage: Stage) -> AbstractContextManager[object]:
        shown: AbstractContextManager[object] = mark(stage.value)
        return shown


def collect_traces(names: Iterable[str], drafts: Path, folder: Path, scrubber: Scrubber | None = None) -> list[Path]:
    """Keep the traces of a run in its folder, compressed and without paths and names: after the loop, as it takes time.

    Args:
        names: ``process_name`` of each process that was profiled.
        drafts: where the processes wrote them.
        folder: where they go; made if need be.
        scrubber: knows what to take out; None takes that of this process.

    Raises:
        RunStopped: a trace is missing, or holds no operation; the others are kept all the same.
    """
    files, missing = [], []
    for name in names:
        raw = drafts / f"{name}{RAW}"
        clean = raw.with_suffix(".clean")
        if not raw.is_file() or scrub_trace(raw, clean, scrubber or Scrubber.of_this_process()) == 0:
            missing.append(name)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        files.append(folder / f"{name}{TRACE_SUFFIX}")
        move_whole(clean, files[-1])
        raw.unlink()
    if missing:
        raise RunStopped(f"torch.profiler was to trace {', '.join(missing)}, and there is no operation on record")
    return files


def scrub_trace(raw: Path, clean: Path, scrubber: Scrubber) -> int:
    """Rewrite a Chrome trace of many lines, compressed, without absolute paths and the names of host and user.

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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
