"""Where a trainer's own code is wrapped so that its run is recorded: one table of places for each trainer.

A seam is a place in a module: a method, a function or a class. It is wrapped when the module has been imported, before
whoever imports from it goes on. A seam that this version of a trainer does not have is told by name (``SEAM`` events).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from harness.record import format as form
from harness.record import recording
from harness.record.recording import span

TRAINER_VARIABLE = "GRPO_HARNESS_RECORD_TRAINER"
"""In the environment of a program that records: whose seams are wrapped; empty for those that it imports."""
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Seam:
    """One place.

    Attributes:
        place: from the module on, as in ``GRPOTrainer.compute_loss``.
        wrap: makes the recorded function of the one that is there; or a stage's name, for a span around each call.
        instead_of: of several seams with one word, a version needs to have one only.
    """

    place: str
    wrap: Wrap | str
    instead_of: str = ""


@dataclass(frozen=True)
class Shim:
    """How a trainer is recorded: seams by module."""

    trainer: str
    seams: Mapping[str, Sequence[Seam]]


def shims() -> dict[str, Shim]:
    """Return the shims by trainer."""
    from harness.record import trainers, trl

    return {each.trainer: each for each in (trl.SHIM, *trainers.SHIMS)}


def install(trainer: str) -> None:
    """Have the modules of a trainer wrapped when they are imported; of every trainer that is known, where it is empty.

    Raises:
        RecordingError: no shim is for it.
    """
    known = shims()
    if trainer and trainer not in known:
        raise recording.RecordingError(f"no shim is for {trainer!r}; there are: {', '.join(known)}")
    seams: dict[str, dict[Seam, str]] = {}  # a place that several trainers stand on is wrapped once
    for shim in known.values():
        if trainer in ("", shim.trainer):
            for module, own in shim.seams.items():
                seams[module] = dict.fromkeys(own, shim.trainer) | seams.get(module, {})
    sys.meta_path.insert(0, _AfterImport(seams))


def missing(trainer: str, met: Mapping[str, bool]) -> list[str]:
    """Return the places of a trainer that were not recorded: this version lacks them, or never imports their module.

    Args:
        trainer: whose; of all trainers those that were met and were not there, where it is empty.
        met: whether each place was there, of those whose modules were imported.
    """
    places = [place for place, is_there in met.items() if not is_there]
    known = {place: seam for shim in shims().values() for place, seam in _places(shim)}
    own = [place for place, _ in _places(shims()[trainer])] if trainer in shims() else []
    there = {known[place].instead_of for place, is_there in met.items() if is_there and place in known}
    absent = dict.fromkeys([*places, *(place for place in own if place not in met)])
    return [place for place in absent if place not in known or known[place].instead_of not in there - {""}]


def _places(shim: Shim) -> Iterator[tuple[str, Seam]]:
    return ((f"{module}.{seam.place}", seam) for module, own in shim.seams.items() for seam in own)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it wraps the loader that others find for a module with seams."""

    def __init__(self, seams: Mapping[str, Mapping[Seam, str]]) -> None:
        self._seams = dict(seams)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        seams = self._seams.pop(name, None)
        if seams is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def and_wrap(module: ModuleType) -> None:
            execute(module)
            wrap_all(module, seams)

        spec.loader.exec_module = and_wrap  # type: ignore[method-assign]
        return spec


def wrap_all(module: ModuleType, seams: Mapping[Seam, str]) -> None:
    """Wrap the seams of a module, each of a trainer, and write down which there were."""
    current = recording.current()
    for seam, trainer in seams.items():
        is_there = _wrap(module, seam)
        if current is not None:
            current.write([form.SEAM, trainer, f"{module.__name__}.{seam.place}", is_there])


def _wrap(module: ModuleType, seam: Seam) -> bool:
    *path, name = seam.place.split(".")
    holder: Any = module
    for part in path:
        holder = getattr(holder, part, None)
    there = None if holder is None else holder.__dict__.get(name)
    if there is None or not callable(there):
        return False
    wrap = span(seam.wrap) if isinstance(seam.wrap, str) else seam.wrap
    try:
        wrapped = wrap(there)
    except (TypeError, ValueError):  # its arguments have other names
        return False
    setattr(holder, name, wrapped if isinstance(wrapped, type) else functools.update_wrapper(wrapped, there))
    return True
