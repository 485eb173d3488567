"""What a person sees while a run is going: a live line for each arm, or plain lines where there is no terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import TracebackType

from rich.console import Console

from harness.core.progress import is_live, progress_bars
from harness.results import EvaluationRow, StepRow
from harness.results.recorder import RowListener


class RunProgress:
    """Shows training steps, rewards and lengths of several arms.

    Args:
        console: where to draw; where it cannot, each evaluation prints a line, and each minute.
        arms: the arms' names.
        steps: training steps of each arm.
        quiet: show nothing.
        passing: one of many blocks: its bars go away at its end, and its evaluations print no lines of their own.
        done: training steps from which each of them goes on; all begin at 0 where it is left out.
    """

    def __init__(
        self,
        console: Console,
        arms: Sequence[str],
        steps: Sequence[int],
        quiet: bool = False,
        passing: bool = False,
        done: Sequence[int] = (),
    ) -> None:
        self._console, self._arms = console, list(arms)
        self._says_lines = not (is_live(console) or quiet or passing)
        self._bar = progress_bars(console, quiet=quiet, facts=True, transient=passing)
        self._tasks = [
            self._bar.add_task(arm, total=total, completed=before, facts="starting")
            for arm, total, before in zip(arms, steps, done or [0] * len(arms), strict=True)
        ]
        self._facts: list[dict[str, str]] = [{} for _ in arms]

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def listener(self, arm: int) -> RowListener:
        return partial(self._show, arm)

    def _show(self, arm: int, row: StepRow | EvaluationRow) -> None:
        facts = self._facts[arm]
        if isinstance(row, StepRow):
            facts["reward"] = f"train {_mean(row, 'reward/total'):.2f}"
            facts["seconds"] = f"{row.wall_s:.2f} s/step"
            self._bar.update(self._tasks[arm], completed=row.step + 1)  # a restart goes back
        else:
            reward, length = _mean(row, "validation/reward"), _mean(row, "validation/response_length")
            facts["validation"] = f"validation {reward:.2f} at {length:.1f} tokens"
            if self._says_lines:
                line = f"{self._arms[arm]}: step {row.step}, {row.elapsed_s:.1f} s, {facts['validation']}"
                self._console.print(line, highlight=False, markup=False)
        shown = [facts[key] for key in ("validation", "reward", "seconds") if key in facts]
        self._bar.update(self._tasks[arm], facts=", ".join(shown))


def _mean(row: StepRow | EvaluationRow, name: str) -> float:
    metric = row.metric(name)
    return math.nan if metric is None else metric.value
