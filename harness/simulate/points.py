"""Thousands of points, each simulated in several worlds, by as many processes as there are cores.

Every point is simulated under the same seeds, so that points differ only by what differs between them.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from harness.core.errors import HarnessError, RunStopped, UserError
from harness.scenario import Scenario
from harness.scenario.check import check_variant
from harness.scenario.problems import as_user_error
from harness.scenario.yaml_files import Tree, paths_in, tree_of_key
from harness.simulate.axes import Point, shown
from harness.simulate.forecast import Forecast, forecast
from harness.simulate.learners import with_learners
from harness.simulate.machine import MachineProfile
from harness.simulate.settings import model_keys

FEWEST_FOR_PROCESSES = 24
"""Points from which on more processes pay: starting one takes about as long as simulating ten points."""
AT_A_TIME = 1  # so that Ctrl-C waits for one point at most


@dataclass(frozen=True)
class Question:
    """What all points of a sweep have in common; it travels to other processes.

    Attributes:
        base: the scenario's resolved settings.
        machine: the profile.
        draws, seed: of the worlds.
        learners: data-parallel Learners, where no axis says how many.
        allow: see ``harness.simulate.world.build_world``.
    """

    base: dict[str, Any]
    machine: MachineProfile
    draws: int
    seed: int
    learners: int = 1
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What was predicted of one point.

    Attributes:
        found: None where the point cannot be.
        problem: why not, in a sentence.
    """

    point: Point
    found: Forecast | None = None
    problem: str = ""


def answers(
    question: Question, points: Sequence[Point], processes: int, heard: Callable[[], None] = lambda: None
) -> list[Answer]:
    """Simulate all points; what cannot be comes with the reason.

    Args:
        question: what they have in common.
        points: to simulate.
        processes: how many may work side by side, where there are enough points for it to pay.
        heard: called after each point.
    """
    found = []
    for answer in _all(question, points, processes):
        found.append(answer)
        heard()
    return found


def _all(question: Question, points: Sequence[Point], processes: int) -> Iterator[Answer]:
    if processes < 2 or len(points) < FEWEST_FOR_PROCESSES:
        yield from map(Worker(question).answer, points)
        return
    context = multiprocessing.get_context("spawn")
    workers = ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(question,))
    try:
        yield from workers.map(_answer, points, chunksize=AT_A_TIME)
    except BrokenProcessPool as error:
        raise RunStopped("a process of the sweep was killed from outside, as where memory is short") from error
    finally:
        workers.shutdown(cancel_futures=True)


class Worker:
    """Simulates points of one question."""

    def __init__(self, question: Question) -> None:
        self._question, self._machine = question, question.machine
        self._base = Tree(question.base, dict.fromkeys(paths_in(question.base), "the scenario"))

    def answer(self, point: Point) -> Answer:
        """Simulate one point."""
        try:
            scenario = self.scenario_at(point)
            learners = point.get("learners", self._question.learners)
            machine = with_learners(self._machine, _count(learners, "learners"), scenario)
            asked = self._question
            return Answer(point, forecast(scenario, machine, asked.draws, asked.seed, allow=asked.allow, paired=True))
        except HarnessError as error:
            return Answer(point, None, _sentence(error))

    def scenario_at(self, point: Mapping[str, Any]) -> Scenario:
        """Return the scenario with the point's values in it.

        Raises:
            UserError: they break a rule.
        """
        keys: dict[str, Any] = {}
        for key, value in point.items():
            if key == "model":
                keys |= {name: _plain(text) for name, text in model_keys(str(value)).items()}
            elif key != "learners":
                keys[key] = value
        tree = self._base.without("arms", "sweep")
        for key, value in keys.items():
            tree = tree.overlaid(tree_of_key(key, value, f"{key}={shown(value)}"))
        scenario, problems = check_variant(tree)
        if scenario is None:
            raise as_user_error(problems, "the point")
        return scenario


def _plain(text: str) -> Any:
    return text == "true" if text in ("true", "false") else text


def _count(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} is {value!r}, must be a whole number of at least 1", "--sweep", f"{name}=1,2,4")
    return value


def _sentence(error: HarnessError) -> str:
    return " ".join((error.what if isinstance(error, UserError) else str(error)).split())


_worker: Worker | None = None


def _prepare(question: Question) -> None:
    """In a process of the pool: leave Ctrl-C to the parent."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = Worker(question)


def _answer(point: Point) -> Answer:
    assert _worker is not None
    return _worker.answer(point)
