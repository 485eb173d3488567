"""What a person sees during a warm start: a line before and after, and on a terminal a live one between."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console

from harness.core.progress import progress_bars
from harness.learner.warm_start.curriculum import Lesson


class WarmStartProgress:
    """Shows step, loss and validation reward; the bar is the reward on its way to the first lesson's goal.

    Args:
        console: where to draw.
        title: what is trained.
        lessons: what is taught; they say which rewards are wanted.
        quiet: show nothing.
    """

    def __init__(self, console: Console, title: str, lessons: Sequence[Lesson], quiet: bool) -> None:
        self._console, self._title, self._quiet = console, title, quiet
        self._lessons = list(lessons)
        self._reward = 0.0
        self._bar = progress_bars(console, quiet=quiet, counts=False, facts=True, transient=True)
        self._task = self._bar.add_task(title, total=lessons[0].goal, facts="starting")

    def __enter__(self) -> WarmStartProgress:
        self._say(
            f"{self._title}: it is trained first, once, and then kept; about half a minute for the preset small, "
            "minutes for maths"
        )
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if kind is None:
            self._say(f"{self._title}: validation reward {self._reward:.2f}")

    def show(self, step: int, loss: float, reward: float | None) -> None:
        """Take in one step; the listener of the training."""
        if reward is not None:
            self._reward = reward
            if len(self._lessons) > 1 and self._lessons[0].is_reached(reward):
                del self._lessons[0]
        facts = f"step {step}, loss {loss:.2f}, validation reward {self._reward:.2f}, to {self._lessons[0].wanted}"
        self._bar.update(self._task, completed=self._reward, facts=facts)

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._console.print(line, highlight=False, markup=False)
