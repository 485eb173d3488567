"""What a person sees while an evaluation goes on: a bar, or a line now and then where there is no terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.evaluate.record import BatchRow

LINES = 10
"""Lines in all, where there is no terminal."""


class EvaluationProgress:
    """Shows prompts done, tokens per second and the time left.

    Args:
        console: where to draw; something that is no terminal gets about ten lines instead.
        prompts: of the whole evaluation.
        done: prompts that were done before.
        quiet: show nothing.
    """

    def __init__(self, console: Console, prompts: int, done: int, quiet: bool) -> None:
        self._console, self._prompts, self._done = console, prompts, done
        self._says_lines = not (console.is_terminal or quiet)
        self._tokens, self._seconds = 0, 0.0
        self._bar = Progress(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=prompts, completed=done, speed="")

    def show(self, batch: BatchRow) -> None:
        """Count a batch."""
        before, self._done = self._done, self._done + batch.prompts
        self._tokens += batch.tokens
        self._seconds += batch.generate_s
        speed = f"{self._tokens / self._seconds:,.0f} tokens/s" if self._seconds else ""
        self._bar.update(self._task, completed=self._done, speed=speed)
        if self._says_lines and self._done * LINES // self._prompts > before * LINES // self._prompts:
            self._console.print(f"{self._done:,} of {self._prompts:,} prompts, {speed}", highlight=False, markup=False)

    def __enter__(self) -> EvaluationProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
