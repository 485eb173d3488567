"""What a person sees during a warm start: a live line on a terminal, two plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class WarmStartProgress:
    """Shows step, loss and validation reward; the bar is the reward on its way to the first part's goal.

    Args:
        console: where to draw.
        title: what is trained.
        goals: the rewards that end the first part, from below, and the second, from above.
        quiet: show nothing.
    """

    def __init__(self, console: Console, title: str, goals: tuple[float, float], quiet: bool) -> None:
        self._console, self._title, self._quiet = console, title, quiet
        self._taught_reward, self._start_reward = goals
        self._live = console.is_terminal and not quiet
        self._reward = 0.0
        self._is_taught = False
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._task = self._bar.add_task(title, total=self._taught_reward, facts="starting")

    def __enter__(self) -> WarmStartProgress:
        self._say(f"{self._title}: trained once, then kept; about half a minute for the preset small")
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
            self._is_taught = self._is_taught or reward >= self._taught_reward
        goal = f"to at most {self._start_reward:.2f}" if self._is_taught else f"to at least {self._taught_reward:.2f}"
        facts = f"step {step}, loss {loss:.2f}, validation reward {self._reward:.2f}, {goal}"
        self._bar.update(self._task, completed=self._reward, facts=facts)

    def _say(self, line: str) -> None:
        if not self._live and not self._quiet:
            self._console.print(line, highlight=False, markup=False)
