"""The one loop over the points of an experiment: those with a result are left alone, the others are run.

A run of a scenario, an experiment that goes on and a sweep differ in what is there when they begin and in how often a
point is tried, and in nothing else.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.core.errors import HarnessError, RunStopped, UserError
from harness.run.arm_runner import ArmRunner
from harness.run.inputs import InputsNow
from harness.run.interleaving import Group
from harness.run.points import Continuation, Point, Resume, State, read_point, resume_of, set_aside
from harness.run.session import Experiment
from harness.run.standing import point_line, seconds_left
from harness.scenario.axes import Variant

ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a sweep starts a point that fails.

    Attributes:
        attempts: in all, over all commands.
        retry_failed: as many again for points that used theirs up.
    """

    attempts: int = ATTEMPTS
    retry_failed: bool = False


ONCE = Tries(1, retry_failed=True)


class Engine:
    """Runs the points of an experiment that have no result yet.

    A point that was stopped goes on from its checkpoint; without a whole one its folder is set aside and it is made
    again. Without ``tries`` each is started once, and arms that take turns are made again together. In a sweep each is
    by itself: one that failed is tried again after the others, but after bad input only by the next command, since
    nothing would change before; what failed is written down where it had no folder yet; and a bug in one point does
    not cost the others.

    Args:
        experiment: makes the folders.
        groups: all points, in the order in which they are run.
        arms: runs those of a group.
        say: prints a line.
        going: what there is already.
        tries: of a sweep.

    Attributes:
        failures: what ended runs before their last step: the run's name and the error.
    """

    def __init__(
        self,
        experiment: Experiment,
        groups: Sequence[Group],
        arms: ArmRunner,
        say: Callable[[str], None] = lambda line: None,
        going: Continuation | None = None,
        tries: Tries | None = None,
    ) -> None:
        self._experiment, self._groups, self._arms, self._say = experiment, groups, arms, say
        self._is_sweep, self._tries = tries is not None, tries or ONCE
        self._points = {} if going is None else dict(going.points)
        self._resumes = {} if going is None else dict(going.resumes)
        self._variants = [variant for group in groups for variant in group.variants]
        failures = {name: point.failures for name, point in self._points.items() if self._tries.retry_failed}
        self._allowed = {each.name: failures.get(each.name, 0) + self._tries.attempts for each in self._variants}
        self._starts = Counter[str]()  # in this command
        self._refused = set[str]()  # points that failed for what the user wrote
        self._now = InputsNow()
        self.failures: list[tuple[str, HarnessError]] = []

    @property
    def points(self) -> list[Point]:
        """What became of each point so far, in the order in which they are run; known of those of a sweep."""
        return [self._points[variant.name] for variant in self._variants]

    def left(self, groups: Sequence[Group]) -> list[Group]:
        """Return what is to be run of these groups.

        In a sweep first those tried least: one that takes the process down with it, again and again, does not keep the
        others from being run.
        """
        left = list[Group]()
        for group in groups:
            variants = [variant for variant in group.variants if self._is_left(variant)]
            if variants and not self._is_sweep:
                left.append(group)
            elif variants:
                turns = "run" if len(variants) == 1 < len(group.variants) else group.interleaving
                left.append(Group(variants, turns))
        if self._is_sweep:
            left.sort(key=lambda group: max(len(self._points[each.name].attempts) for each in group.variants))
        return left

    def run(self, groups: Sequence[Group] | None = None, place: str = "") -> None:
        """Run what is left of these groups, or of all, and what failed again after that.

        Args:
            groups: some of them.
            place: shown before the runs' names.

        Raises:
            KeyboardInterrupt, Interrupted: the user asked to stop.
            UserError: a folder cannot be written.
        """
        while left := self.left(self._groups if groups is None else groups):
            for group in left:
                self._run(group, place)

    def _is_left(self, variant: Variant) -> bool:
        name, point = variant.name, self._points.get(variant.name)
        if name in self._refused or self._starts[name] >= self._tries.attempts:
            return False
        if point is None or point.state is not State.FAILED:
            return point is None or not point.state.is_result
        return point.failures < self._allowed[name]

    def _run(self, group: Group, place: str) -> None:
        """Run points side by side. A point by itself goes on from its checkpoint."""
        resumes = dict[str, Resume]()
        for variant in group.variants:
            point, resume = self._points.get(variant.name), self._resumes.pop(variant.name, None)
            if point is None or point.last is None:
                continue
            if resume is None and self._starts[variant.name] and len(group.variants) == 1:
                resume = resume_of(point, self._now)
            if resume is None or len(group.variants) > 1:
                assert self._experiment.folder is not None
                set_aside(self._experiment.folder, point)
            else:
                resumes[variant.name] = resume
        if not self._is_sweep:
            self._starts.update(variant.name for variant in group.variants)
            self.failures += self._arms.run(group, resumes, place)
            return
        for name, resume in resumes.items():
            self._say("; ".join([f"{name} continues from {resume.checkpoint.folder.name}", *resume.warnings]))
        place = f"{1 + min(map(self._variants.index, group.variants))}/{len(self._variants)}"
        self._starts.update(variant.name for variant in group.variants)
        try:
            failures = self._arms.run(group, resumes, place)
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

    def _write_down(
        self, variants: Sequence[Variant], failures: Sequence[tuple[str, HarnessError]], resumes: Mapping[str, Resume]
    ) -> None:
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
