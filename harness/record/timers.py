"""What the shims of trainers that time their own stages share: a timer's name is a stage, and one of them is the step.

Timers are functions that return a context manager, or classes that are one; with ``async with`` too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from inspect import CO_OPTIMIZED, iscoroutinefunction, signature
from numbers import Real
from types import FrameType
from typing import Any

from harness.record import format as form
from harness.record import recording
from harness.record.recording import MAIN_LANE, lane, metrics, span, step
from harness.record.seams import Wrap


@dataclass(frozen=True)
class Names:
    """A trainer's names of what it times.

    Attributes:
        stages: our stages by its names, which may be patterns as in ``*_offload``. Other names are kept as they are; an
            empty stage is not recorded.
        step: the name that begins a training step. A step ends with its timer, except where the name is of a stage too:
            then it lasts until the next one begins.
        number: what the trainer calls a step's number, where it uses that timer: a variable, or an attribute of self.
    """

    stages: Mapping[str, str] = field(default_factory=dict)
    step: str = ""
    number: str = ""

    def stage_of(self, name: str) -> str:
        """Return our stage of a name, or the name; of several patterns the first counts."""
        if name in self.stages:
            return self.stages[name]
        return next((stage for pattern, stage in self.stages.items() if fnmatchcase(name, pattern)), name)

    def begin(self, name: str, user: FrameType) -> AbstractContextManager[Any]:
        """Return what is around the timer of a name: a span, or the step; ``user`` is the frame that uses it."""
        if name != self.step:
            stage = self.stage_of(name)
            return span(stage) if stage else nullcontext()
        end_of_step = begin_step(variable(user, self.number))
        return span(self.stages[name]) if name in self.stages else end_of_step


def begin_step(number: object = None) -> AbstractContextManager[Any]:
    """Begin the trainer's step of a number; the next one where that is none, or a step that is over.

    The number of the step that is under way goes on with it.

    The thread that tells of steps is the loop: its lane is ``learner``, or that of its rank.
    """
    current = recording.current()
    if current is None:
        return nullcontext()
    before = current.step_number
    if before == form.NO_STEP:
        rank = os.environ.get("RANK", "") if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        lane(f"{MAIN_LANE}/{rank}" if rank else MAIN_LANE)
    if number == before:
        return recording.EndOfStep(before)
    return step(number if isinstance(number, int) and number > before else before + 1)


def variable(frame: FrameType, name: str) -> Any:
    """Return a variable of a frame, or the attribute of this name of its self; None where it has neither."""
    variables = frame.f_locals
    value = variables.get(name, getattr(variables.get("self"), name, None))
    if frame.f_code.co_flags & CO_OPTIMIZED and isinstance(variables, dict):
        variables.clear()  # before Python 3.13 a function's is a copy that the frame keeps, with every batch in it
    return value


def timer(names: Names, argument: str) -> Wrap:
    """Wrap a function that returns a context manager; the argument of this name is what it times."""

    def wrap(make: Callable[..., Any]) -> Callable[..., Any]:
        name_of = _argument(make, argument)

        def recorded(*args: Any, **kwargs: Any) -> _Timed:
            return _Timed(make(*args, **kwargs), names, str(name_of(args, kwargs)))

        return recorded

    return wrap


class _Timed:
    """A trainer's timer within a span of ours."""

    __slots__ = ("_around", "_name", "_names", "_timer")

    def __init__(self, timer: Any, names: Names, name: str) -> None:
        self._timer, self._names, self._name = timer, names, name

    def __enter__(self) -> Any:
        self._around = self._names.begin(self._name, sys._getframe(1))
        self._around.__enter__()
        return self._timer.__enter__()

    def __exit__(self, *error: Any) -> Any:
        try:
            return self._timer.__exit__(*error)
        finally:
            self._around.__exit__(*error)

    async def __aenter__(self) -> Any:
        self._around = self._names.begin(self._name, sys._getframe(1))
        self._around.__enter__()
        return await self._timer.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        try:
            return await self._timer.__aexit__(*error)
        finally:
            self._around.__exit__(*error)


def entered(names: Names, attribute: str) -> Wrap:
    """Wrap ``__enter__`` or ``__aenter__`` of a timer that is a class; the attribute of this name is what it times."""

    def wrap(enter: Callable[..., Any]) -> Callable[..., Any]:
        def begin(timer: Any, user: FrameType) -> None:
            timer._recorded = names.begin(str(getattr(timer, attribute)), user)
            timer._recorded.__enter__()

        def recorded(self: Any) -> Any:
            begin(self, sys._getframe(1))
            return enter(self)

        async def recorded_async(self: Any) -> Any:
            begin(self, sys._getframe(1))
            return await enter(self)

        return recorded_async if iscoroutinefunction(enter) else recorded

    return wrap


def left(leave: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``__exit__`` or ``__aexit__`` of a timer that is a class."""

    def end(timer: Any, error: tuple[Any, ...]) -> None:
        if (around := timer.__dict__.pop("_recorded", None)) is not None:
            around.__exit__(*error)

    def recorded(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            end(self, error)

    async def recorded_async(self: Any, *error: Any) -> Any:
        try:
            return await leave(self, *error)
        finally:
            end(self, error)

    return recorded_async if iscoroutinefunction(leave) else recorded


def decorator(names: Names) -> Wrap:
    """Wrap a decorator that times a function under its name."""

    def wrap(decorate: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
            stage = names.stage_of(function.__name__)
            return span(stage)(decorate(function)) if stage else decorate(function)

        return recorded

    return wrap


def telling(tell: Callable[..., None]) -> Wrap:
    """Wrap a function so that ``tell`` gets its arguments first. Where that fails, the place counts as missing."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def safely(*args: Any, **kwargs: Any) -> None:
            try:
                tell(*args, **kwargs)
            except Exception:
                if (current := recording.current()) is not None:
                    current.write([form.SEAM, "", f"{function.__module__}.{function.__qualname__}: arguments", False])

        def recorded(*args: Any, **kwargs: Any) -> Any:
            safely(*args, **kwargs)
            return function(*args, **kwargs)

        async def recorded_async(*args: Any, **kwargs: Any) -> Any:
            safely(*args, **kwargs)
            return await function(*args, **kwargs)

        return recorded_async if iscoroutinefunction(function) else recorded

    return wrap


def logged(argument: str, also: Callable[[Mapping[str, Any]], None] | None = None) -> Wrap:
    """Wrap a function that logs figures by name: they are metrics of the step, and ``also`` gets them."""

    def wrap(log: Callable[..., Any]) -> Callable[..., Any]:
        figures_of = _argument(log, argument)

        def tell(*args: Any, **kwargs: Any) -> None:
            given = figures_of(args, kwargs) or {}
            for figures in given if isinstance(given, list) else [given]:
                metrics({name: float(value) for name, value in figures.items() if isinstance(value, Real)})
                if also is not None:
                    also(figures)

        return telling(tell)(log)

    return wrap


def _argument(function: Callable[..., Any], name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return what finds an argument of a call.

    Raises:
        ValueError: the function has none of this name.
    """
    place = list(signature(function).parameters).index(name)
    return lambda args, kwargs: args[place] if len(args) > place else kwargs.get(name)
