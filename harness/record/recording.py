"""The recording of this process: what ``harness.record`` offers."""

from __future__ import annotations

import atexit
import json
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from harness.record import format as form
from harness.record.event_file import EventFile
from harness.record.private import argument_names, environment_names, shown

if TYPE_CHECKING:
    from harness.record.profiling import Profiling

FOLDER_VARIABLE = "GRPO_HARNESS_RECORD"
"""In the environment of a program that records: into which folder."""
PROFILE_VARIABLE = "GRPO_HARNESS_RECORD_PROFILE"
"""In the environment of a program that is profiled: see ``harness.record.profiling``."""
LISTENERS = ("NVTX_INJECTION64_PATH", "NSYSDK_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""One of them is in the environment of a program whose NVTX ranges a tool takes."""
MAIN_LANE = "learner"
"""The main thread's lane: that of the loop, whose steps are counted."""
PACKAGES = (
    *("torch", "transformers", "accelerate", "deepspeed", "peft", "ray", "vllm", "sglang"),
    *("trl", "verl", "skyrl", "areal", "trinity-rft", "tinker-cookbook", "ms-swift", "openrlhf"),
)
"""Whose versions are written down, where they are installed."""
_now = time.monotonic_ns
_encode = form.encode


class RecordingError(ValueError):
    """A recording cannot be made: what is wrong, where, and what to do."""


class Recording:
    """The events of one process.

    Args:
        folder: of the recording; it is there.
        lane: of the main thread. Other threads go by their names until ``lane`` gives them another. A thread that works
            for an actor of Ray goes by the actor's class.
    """

    def __init__(self, folder: Path, lane: str = MAIN_LANE) -> None:
        self.folder = folder
        self.step_number = form.NO_STEP
        self._main_lane, self._thread = lane, _Thread()
        self.profiling: Profiling | None = None
        if any(name in os.environ for name in (PROFILE_VARIABLE, *LISTENERS)):
            from harness.record.profiling import Profiling

            self.profiling = Profiling(self._lane, os.environ.get(PROFILE_VARIABLE))
        pid, now = os.getpid(), _now()
        self._file = EventFile(self.folder / form.EVENTS / f"{pid}-{now}.jsonl")
        self.write([form.PROCESS, pid, shown(_process_name()), now, time.time_ns()])

    def write(self, event: list[Any]) -> None:
        """Add an event; see ``harness.record.format``."""
        self._file.add(form.line(event))

    def name_lane(self, name: str) -> None:
        """Name the lane of the calling thread."""
        self._thread.lane = _name(name)
        self._thread.begins.clear()

    def _lane(self) -> str:
        """Return the lane of the calling thread: without a name of ours it goes by its own."""
        if self._thread.lane is None:
            thread = threading.current_thread()
            name = self._main_lane if thread is threading.main_thread() else thread.name
            self._thread.lane = _name(_ray_actor() or name)
        return self._thread.lane

    def add_span(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any] | None = None) -> None:
        """Add a span of the calling thread that has ended; times are of ``time.monotonic_ns``."""
        begins = self._thread.begins
        try:
            line = begins[name]
        except KeyError:
            begin = _encode([form.SPAN, self._lane(), _name(name)])[:-1].replace("%", "%%")
            line = begins[name] = f"{begin},%d,%d,%d%b]\n".encode()
        told = ""
        if attributes:
            mark = ",{"
            for key, value in attributes.items():
                kind = type(value)
                if kind is not int and (kind is not float or value - value != 0):  # such a float is no number
                    value = _text(value) if kind is str else _value(value)
                told = f"{told}{mark}{_KEYS[key]}{value}"
                mark = ","
            told += "}"
        self._file.add(line % (start_ns, end_ns, self.step_number, told.encode()))

    def close(self) -> None:
        """End a profiler that still runs, and close the file."""
        if self.profiling is not None:
            self.profiling.stop()
        self._file.close()

    def leave(self) -> None:
        """Leave the file to the parent of a fork."""
        self._file.leave()


class _Thread(threading.local):
    """The calling thread's lane, None until it is asked for, and how the lines of its spans begin, by their names."""

    def __init__(self) -> None:
        self.lane: str | None = None
        self.begins: dict[str, bytes] = {}


class _Keys(dict[str, str]):
    """The names of attributes as they begin a JSON pair."""

    def __missing__(self, key: str) -> str:
        found = self[key] = f"{_encode(_name(key))}:"
        return found


_KEYS = _Keys()


def _value(value: Any) -> str:
    """Return a value as JSON: a number, a text that may be shown; of anything else its kind, for it may hold texts."""
    if value is None or isinstance(value, bool):
        return _encode(value)
    if isinstance(value, str):
        return _text(str(value))
    number = _number(value)
    if number is not None:
        return repr(number)
    return "null" if isinstance(value, float) else _text(type(value).__name__)


@lru_cache(maxsize=4096)
def _text(text: str) -> str:
    return _encode(shown(text))


def _name(text: str) -> str:
    """Return a name of a lane, a span or a metric as it is written."""
    return shown(str(text).strip())[: form.MOST_NAME] or "unnamed"


def _process_name() -> str:
    module = sys.modules.get("multiprocessing.process")  # not imported for it: without it there is one process
    return str(module.current_process().name) if module else "MainProcess"


def _ray_actor() -> str | None:
    """Return the class of the actor of Ray, or the function of the task, that the calling thread works for."""
    ray = sys.modules.get("ray")  # not imported for it: without it there is none
    if ray is None or not sys.argv or os.path.basename(sys.argv[0]) != "default_worker.py":
        return None
    task = ray.get_runtime_context().get_task_name()
    return str(task).partition(".")[0] if task else None


_current: Recording | None = None


def current() -> Recording | None:
    """Return this process's recording, None without one; a process that was started inside of one begins its own."""
    global _current
    if _current is None and (folder := os.environ.get(FOLDER_VARIABLE)):
        where = Path(folder)
        if (where / form.EVENTS).is_dir():
            name = _process_name()
            _begin(Recording(where, MAIN_LANE if name == "MainProcess" else _name(name)))
    return _current


def _begin(recording: Recording) -> None:
    global _current
    _current = recording
    atexit.register(recording.close)


def _after_fork() -> None:
    """A forked process begins a file of its own when it first has something to say, and knows its name."""
    if _current is not None:
        _current.leave()
        _forget()


def _forget() -> None:
    global _current
    _current = None


os.register_at_fork(after_in_child=_after_fork)


class run:
    """Record what happens inside of the block into a new folder.

    Args:
        folder: of the run; it must not be there yet, or be empty.
        arm: the settings' name, by which runs are compared.
        scenario: the name that the run is filed under: the folder's own, where None.
        trainer: whose run it is, as in ``trl``.
        lane: of the main thread.

    Raises:
        RecordingError: the folder cannot be made, or holds something.
    """

    def __init__(
        self, folder: str | Path, arm: str | None = None, *, scenario: str | None = None, trainer: str = "",
        lane: str = MAIN_LANE,
    ) -> None:  # fmt: skip
        self.folder, self._lane = Path(folder).resolve(), lane
        self._said = {"arm": arm, "scenario": scenario or self.folder.name, "trainer": trainer}

    def __enter__(self) -> Recording:
        if current() is not None:
            what = f"{self.folder.name}: this process is being recorded already"
            raise RecordingError(
                f"{what}; leave record.run out under `python -m harness record`, or end that run first"
            )
        begin_folder(self.folder, **self._said)
        os.environ[FOLDER_VARIABLE] = str(self.folder)
        recording = Recording(self.folder, self._lane)
        _begin(recording)
        return recording

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _current is not None:
            end_run(kind)
        os.environ.pop(FOLDER_VARIABLE, None)
        _forget()


def begin_folder(folder: Path, argv: Sequence[str] | None = None, **said: Any) -> None:
    """Make the folder of a recording and say in it what is recorded.

    Raises:
        RecordingError: it cannot be made, or holds something.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RecordingError(f"{str(folder)!r} holds something, and a saved run is never overwritten: name another")
        (folder / form.EVENTS).mkdir()
        facts = (
            {"schema": form.SCHEMA, "schema_version": form.SCHEMA_VERSION}
            | program_facts(sys.argv if argv is None else argv)
            | said
        )
        draft = folder / f".{form.RECORDING}.draft"
        draft.write_text(json.dumps(facts, indent=2) + "\n")
        draft.replace(folder / form.RECORDING)
    except OSError as error:
        raise RecordingError(f"cannot record into {str(folder)!r}: {error.strerror or error}") from error


def end_run(kind: type[BaseException] | None) -> None:
    """Write down how the program ended, and close the recording of this process."""
    if _current is not None:
        status = "completed" if kind is None else "interrupted" if kind is KeyboardInterrupt else "failed"
        error = None if kind is None else kind.__name__
        if kind is SystemExit:
            status, error = "completed", None
        _current.write([form.END, status, error, _now()])
        _current.close()


def program_facts(argv: Sequence[str]) -> dict[str, Any]:
    """Return when and with what a program runs; arguments and environment by name alone."""
    return {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
        "arguments": argument_names(argv[1:]),
        "environment": environment_names(os.environ),
        "versions": versions(),
        "machine": {"cpu": _processor(), "cores": len(os.sched_getaffinity(0)), "memory_gib": _memory_gib()},
        "threads": _threads(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed beside this program."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _threads() -> int | None:
    """Return how many threads compute: as torch has them, where the program uses it, else as the environment says."""
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


class span:
    """A span of the calling thread, from the begin of the block to its end.

    Args:
        name: a stage's (``generate``, ``score``, ``update``, ...), or any other, under which it is kept.
        attributes: numbers and short texts. A text that may hold a secret, a folder, a host or a person is hidden.
    """

    __slots__ = ("_attributes", "_mark", "_name", "_start_ns")

    def __init__(self, name: str, /, **attributes: Any) -> None:
        self._name, self._attributes = name, attributes

    def __enter__(self) -> span:
        recording = _current or current()
        if recording is not None and recording.profiling is not None:
            self._mark = recording.profiling.mark(self._name, recording.step_number)
        self._start_ns = _now()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        end_ns = _now()
        recording = _current or current()
        if recording is not None:
            recording.add_span(self._name, self._start_ns, end_ns, self._attributes)
            if recording.profiling is not None and (mark := getattr(self, "_mark", None)) is not None:
                mark()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Record each call of a function, and of an async one until it is done."""
        from functools import wraps
        from inspect import iscoroutinefunction

        @wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with span(self._name, **self._attributes):
                return function(*args, **kwargs)

        @wraps(function)
        async def recorded_async(*args: Any, **kwargs: Any) -> Any:
            with span(self._name, **self._attributes):
                return await function(*args, **kwargs)

        return recorded_async if iscoroutinefunction(function) else recorded


class EndOfStep:
    """Ends a step at the end of the block, where ``step`` is used as one."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        if _current is not None:
            _current.write([form.END_OF_STEP, self._number, _now()])


def step(number: int) -> EndOfStep:
    """Say that a training step begins, and that the one before is over; as ``with record.step(n):`` also where it ends.

    Raises:
        RecordingError: the number is no whole number from 0 on, or not above the one before.
    """
    recording = _current or current()
    if recording is not None:
        if not isinstance(number, int) or not recording.step_number < number < 2**53:
            what = f"step {number!r} must be a whole number above the one before, {recording.step_number}"
            raise RecordingError(f"{what}; count training steps from 0")
        if recording.step_number == form.NO_STEP:
            recording.write([form.PROGRAM, versions(), _threads()])
        recording.step_number = number
        if recording.profiling is not None and recording.profiling.on_step():
            recording.write([form.PROFILED, number])
        recording.write([form.STEP, number, _now()])
    return EndOfStep(number)


def count(**numbers: float) -> None:
    """Add to what is counted in the step: ``tokens`` (of responses), ``rollouts``, or anything else."""
    _tell(form.COUNT, numbers)


def metrics(values: Mapping[str, float]) -> None:
    """Keep figures of the step; of the same name the last one counts."""
    _tell(form.METRICS, values)


def _tell(kind: str, values: Mapping[str, Any]) -> None:
    recording = _current or current()
    if recording is not None:
        numbers = {_name(key): number for key, value in values.items() if (number := _number(value)) is not None}
        if numbers:
            recording.write([kind, recording.step_number, numbers])


def _number(value: Any) -> float | None:
    """Return a finite number, also of numpy's or torch's; None of anything else."""
    try:
        number = value if type(value) in (int, float) else float(value)
        return number if math.isfinite(number) else None
    except (TypeError, ValueError, OverflowError):
        return None


def lane(name: str) -> None:
    """Name the lane of the calling thread, as in ``generator0``; what runs in one lane waits for itself."""
    recording = _current or current()
    if recording is not None:
        recording.name_lane(name)
