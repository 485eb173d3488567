"""The recording of this process: what ``harness.record`` offers."""

from __future__ import annotations

import atexit
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any

from harness.record import format as form
from harness.record.event_file import EventFile
from harness.record.private import argument_names, environment_names, shown

FOLDER_VARIABLE = "GRPO_HARNESS_RECORD"
"""In the environment of a program that records: into which folder."""
MAIN_LANE = "learner"
"""The main thread's lane: that of the loop, whose steps are counted."""
PACKAGES = ("torch", "transformers", "trl", "verl", "vllm", "ray", "accelerate", "deepspeed", "peft")
"""Whose versions are written down, where they are installed."""
_now = time.monotonic_ns
_encode = json.JSONEncoder(separators=(",", ":")).encode


class RecordingError(ValueError):
    """A recording cannot be made: what is wrong, where, and what to do."""


class Recording:
    """The events of one process.

    Args:
        folder: of the recording; it is there.
        lane: of the main thread. Other threads go by their names until ``lane`` gives them another; so does the main
            thread where this is empty. A thread that works for an actor of Ray goes by the actor's class.
    """

    def __init__(self, folder: Path, lane: str = MAIN_LANE) -> None:
        self.folder = folder
        self.lanes = {threading.main_thread().ident or 0: lane} if lane else {}
        self.step_number = form.NO_STEP
        self._starts: dict[tuple[str, str], str] = {}
        pid, now = os.getpid(), _now()
        self._file = EventFile(self.folder / form.EVENTS / f"{pid}-{now}.jsonl")
        self.write([form.PROCESS, pid, shown(_process_name()), now, time.time_ns()])

    def write(self, event: list[Any]) -> None:
        """Add an event; see ``harness.record.format``."""
        self._file.add(f"{_encode(event)}\n".encode())

    def lane(self) -> str:
        """Return the lane of the calling thread."""
        ident = get_ident()
        found = self.lanes.get(ident)
        if found is None:
            found = self.lanes[ident] = _name(_ray_actor() or threading.current_thread().name)
        return found

    def name_main_lane(self, name: str) -> None:
        """Name the lane of the main thread: of a rank ``learner/1``."""
        self.lanes[threading.main_thread().ident or 0] = _name(name)

    def add_span(self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any] | None = None) -> None:
        """Add a span of the calling thread that has ended; times are of ``time.monotonic_ns``."""
        lane = self.lanes.get(get_ident()) or self.lane()
        start = self._starts.get((lane, name))
        if start is None:
            start = self._starts[lane, name] = f"{_encode([form.SPAN, lane, _name(name)])[:-1]},"
        told = ""
        if attributes:
            told = f",{{{','.join([f'{_key(key)}{_value(value)}' for key, value in attributes.items()])}}}"
        self._file.add(f"{start}{start_ns},{end_ns},{self.step_number}{told}]\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def leave(self) -> None:
        """Leave the file to the parent of a fork."""
        self._file.leave()


class _Keys(dict[str, str]):
    """The names of attributes as they begin a JSON pair."""

    def __missing__(self, key: str) -> str:
        found = self[key] = f"{_encode(_name(key))}:"
        return found


_key = _Keys().__getitem__


def _value(value: object) -> str:
    """Return a value as JSON: a number, a text that may be shown; of anything else its kind, for it may hold texts."""
    kind = type(value)
    if kind is int or (kind is float and value - value == 0):  # type: ignore[operator]
        return repr(value)
    if isinstance(value, str):
        return _encode(shown(value))
    if value is None or isinstance(value, bool | float):
        return _encode(value)
    try:
        return _encode(float(value))  # type: ignore[arg-type]  # a number of numpy's or torch's
    except (TypeError, ValueError):
        return _encode(kind.__name__)


def _name(text: str) -> str:
    """Return a name of a lane, a span or a metric as it is written."""
    return shown(str(text).strip())[: form.MOST_NAME] or "unnamed"


def _process_name() -> str:
    module = sys.modules.get("multiprocessing.process")  # not imported for it: without it there is one process
    return str(module.current_process().name) if module else "MainProcess"


def _is_ray_worker() -> bool:
    return os.path.basename(sys.argv[0] if sys.argv else "") == "default_worker.py"


def _ray_actor() -> str | None:
    """Return the class of the actor of Ray, or the function of the task, that the calling thread works for."""
    ray = sys.modules.get("ray")  # not imported for it: without it there is none
    if ray is None or not _is_ray_worker():
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
            lane = "" if _is_ray_worker() else MAIN_LANE if name == "MainProcess" else _name(name)
            _begin(Recording(where, lane))
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
            raise RecordingError(f"{self.folder.name}: this process is being recorded already; end that run first")
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
            | said
            | program_facts(sys.argv if argv is None else argv)
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
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
        "arguments": argument_names(argv[1:]),
        "environment": environment_names(os.environ),
        "versions": versions,
        "machine": {"cpu": _processor(), "cores": len(os.sched_getaffinity(0)), "memory_gib": _memory_gib()},
        "threads": _threads(),
    }


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _threads() -> int | None:
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

    __slots__ = ("_attributes", "_name", "_start_ns")

    def __init__(self, name: str, /, **attributes: Any) -> None:
        self._name, self._attributes = name, attributes

    def __enter__(self) -> span:
        self._start_ns = _now()
        return self

    def __exit__(self, *error: object) -> None:
        end_ns = _now()
        recording = _current or current()
        if recording is not None:
            recording.add_span(self._name, self._start_ns, end_ns, self._attributes)

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
        recording.step_number = number
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
    """Return a number that can be written; None of anything else, and of one that is not finite."""
    try:
        number = value if type(value) in (int, float) else float(value)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None


def lane(name: str) -> None:
    """Name the lane of the calling thread, as in ``generator0``; what runs in one lane waits for itself."""
    recording = _current or current()
    if recording is not None:
        recording.lanes[get_ident()] = _name(name)
