"""The one loop over the points of an experiment: those with a result are left alone, the others are run.

A run of a scenario, an experiment that goes on and a sweep differ in what is there when they begin and in how often a
point is tried, and in nothing else.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.core.errors import HarnessError, RunStopped, UserError
from harness.run.inputs import InputsNow
from harness.run.interleaving import Group
from harness.run.points import Continuation, Point, Resume, State, read_point, resume_of, set_aside
from harness.run.session import Experiment
from harness.run.standing import point_line, seconds_left
from harness.scenario.axes import Variant

ATTEMPTS = 3
Failures = list[tuple[str, HarnessError]]
"""What ended runs before their last step: the run's name and the error."""


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a sweep starts a point that fails.

    Attributes:
        attempts: in all, over all commands.
        retry_failed: as many again for points that used theirs up.
    """

    attempts: int = ATTEMPTS
    retry_failed: bool = False


class Runs(Protocol):
    """Makes the runs of a group: ``ArmRunner``, or ``TransportSweeps``."""

    def run(self, group: Group, resumes: Mapping[str, Resume], place: str) -> Failures:
        """Return what failed; ``place`` is shown before the name of a run that is one of many."""


class Engine:
    """Runs the points of an experiment that have no result yet, each once; arms that take turns are made together.

    A point that was stopped goes on from its checkpoint. Without a whole one it is made again: all such attempts are
    set aside before the first run starts.

    Args:
        experiment: makes the folders.
        groups: all points, in the order in which they are run.
        runs: makes those of a group.
        going: what there is already.
    """

    def __init__(
        self, experiment: Experiment, groups: Sequence[Group], runs: Runs, going: Continuation | None = None
    ) -> None:
        self._experiment, self._groups, self._runs = experiment, groups, runs
        self._points = {} if going is None else dict(going.points)
        self._resumes = {} if going is None else dict(going.resumes)
        self._variants = [variant for group in groups for variant in group.variants]
        self._starts = Counter[str]()  # in this command
        self._now = InputsNow()
        self.failures: Failures = []

    def left(self, groups: Sequence[Group]) -> list[Group]:
        return [group for group in groups if any(map(self._is_left, group.variants))]

    def run(self, groups: Sequence[Group] | None = None, place: str = "") -> None:
        """Run what is left of these groups, or of all, and what failed again after that.

        Raises:
            KeyboardInterrupt, Interrupted: the user asked to stop.
            UserError: a folder cannot be written.
        """
        while left := self.left(self._groups if groups is None else groups):
            self._set_aside(self.left(self._groups))
            for group in left:
                self._starts.update(variant.name for variant in group.variants)
                names = [variant.name for variant in group.variants]
                self._run(group, {name: self._resumes.pop(name) for name in names if name in self._resumes}, place)

    def _is_left(self, variant: Variant) -> bool:
        point = self._points.get(variant.name)
        return not self._starts[variant.name] and (point is None or not point.state.is_result)

    def _set_aside(self, groups: Sequence[Group]) -> None:
        """Move attempts away whose runs do not go on: only one that is by itself does, from its checkpoint."""
        for group in groups:
            for name in [variant.name for variant in group.variants]:
                point, resume = self._points.get(name), self._resumes.pop(name, None)
                if point is None or point.last is None:
                    continue
                if resume is None and self._starts[name]:
                    resume = resume_of(point, self._now)
                if resume is not None and len(group.variants) == 1:
                    self._resumes[name] = resume
                    continue
                assert self._experiment.folder is not None
                set_aside(self._experiment.folder, point)
                self._points[name] = read_point(self._experiment.folder, point.variant)

    def _run(self, group: Group, resumes: Mapping[str, Resume], place: str) -> None:
        self.failures += self._runs.run(group, resumes, place)


class Sweep(Engine):
    """Runs each point by itself until it has a result or was tried often enough, over all commands.

    One that failed is tried again after the others, but after bad input only by the next command, since nothing would
    change before. What failed is written down where it had no folder yet; a bug in one point does not cost the others.
    """

    def __init__(
        self,
        experiment: Experiment,
        groups: Sequence[Group],
        runs: Runs,
        going: Continuation,
        tries: Tries,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(experiment, groups, runs, going)
        self._tries, self._say = tries, say
        self._refused = set[str]()  # points that failed for what the user wrote
        self._allowed = {
            name: tries.attempts + (point.failures if tries.retry_failed else 0) for name, point in going.points.items()
        }

    @property
    def points(self) -> list[Point]:
        return [self._points[variant.name] for variant in self._variants]

    def left(self, groups: Sequence[Group]) -> list[Group]:
        """Return what is to be run, first those tried least: one that takes the process down holds up no other."""
        left = list[Group]()
        for group in groups:
            if variants := list(filter(self._is_left, group.variants)):
                turns = "run" if len(variants) == 1 < len(group.variants) else group.interleaving
                left.append(Group(variants, turns))
        return sorted(left, key=lambda group: max(len(self._points[each.name].attempts) for each in group.variants))

    def _is_left(self, variant: Variant) -> bool:
        point = self._points[variant.name]
        if variant.name in self._refused or self._starts[variant.name] >= self._tries.attempts:
            return False
        if point.state is State.FAILED:
            return point.failures < self._allowed[variant.name]
        return not point.state.is_result

    def _run(self, group: Group, resumes: Mapping[str, Resume], place: str) -> None:
        for name, resume in resumes.items():
            self._say("; ".join([f"{name} continues from {resume.checkpoint.folder.name}", *resume.warnings]))
        place = f"{1 + min(map(self._variants.index, group.variants))}/{len(self._variants)}"
        try:
            failures = self._runs.run(group, resumes, place)
        except (HarnessError, KeyboardInterrupt, ModuleNotFoundError):
            raise
        except Exception as error:
            traceback.print_exc()
            failures = [(each.name, RunStopped(f"{type(error).__name__}: {error}")) for each in group.variants]
        finally:
            self._look_at(group.variants)
        self._write_down(group.variants, failures, resumes)
        for number, point in enumerate(self.points, start=1):
            if point.variant in group.variants:
                self._say(point_line(point, number, len(self._variants), seconds_left(self.points)))

    def _look_at(self, variants: Sequence[Variant]) -> None:
        if (folder := self._experiment.folder) is not None:
            self._points |= {variant.name: read_point(folder, variant) for variant in variants}

    def _write_down(self, variants: Sequence[Variant], failures: Failures, resumes: Mapping[str, Resume]) -> None:
        """Remember what the user has to mend, and write down what failed before it had a folder, or went on in it."""
        self.failures += failures
        for variant in variants:
            errors = [error for name, error in failures if name == variant.name]
            if any(isinstance(error, UserError) for error in errors):
                self._refused.add(variant.name)
            point, resume = self._points[variant.name], resumes.get(variant.name)
            went_on = resume is None or point.manifest is None or point.manifest.segments != resume.manifest.segments
            if point.state is State.NEW or not went_on:
                error = errors[0] if errors else RunStopped("an arm beside it could not start")
                self._experiment.record_failure(variant, error, resume)
        self._look_at(variants)
