"""How the points of a sweep stand, in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from harness.compare.signal import divergence
from harness.core.progress import duration
from harness.core.terminal_text import plain
from harness.report.console import Output
from harness.results import Manifest
from harness.results.frames import read_table
from harness.run.continuation import changes_since_newest, find_sweep
from harness.run.points import Point, State, read_points
from harness.scenario.axes import Variant
from harness.scenario.schema import Scenario

MOST_CHANGES, LONGEST_REASON = 8, 300


def show_status(scenario: Scenario, variants: Sequence[Variant], out: Path, as_json: bool = False) -> int:
    """Print what became of each point of a sweep so far, without running anything; return the exit code, 0."""
    folder, console = find_sweep(out, scenario), Output()
    if as_json:
        points = [Point(each, Path()) for each in variants] if folder is None else read_points(folder, variants)
        facts = {"experiment": None if folder is None else str(folder), "points": [*map(_as_facts, points)]}
        print(json.dumps(facts, indent=2))
    elif folder is None:
        say_changes(out, scenario, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        print(f"no sweep of this scenario in {out}: {len(variants)} points to run")
    else:
        points = read_points(folder, variants)
        console.print(_status_table(points))
        print(f"{standing(points)}\n  results: {folder}")
    return 0


def say_changes(out: Path, scenario: Scenario, say: Callable[[str], None]) -> None:
    """Say what the scenario says otherwise than in the newest sweep of its name."""
    if (changed := changes_since_newest(out, scenario)) is None:
        return
    folder, changes = changed
    say(f"the scenario has changed since {folder}, which stays as it is:")
    for change in changes[:MOST_CHANGES]:
        say(f"  {plain(change)}")
    if len(changes) > MOST_CHANGES:
        say(f"  and {len(changes) - MOST_CHANGES} more")


def standing(points: Sequence[Point]) -> str:
    """Say how many points are in which state: ``3 finished, 1 diverged, 6 not run yet``."""
    order = (State.FINISHED, State.DIVERGED, State.FAILED, State.CUT_SHORT, State.NEW)
    counts = [(sum(point.state is state for point in points), state) for state in order]
    return ", ".join(f"{count} {state}" for count, state in counts if count)


def point_line(point: Point, number: int, count: int, left_s: float | None) -> str:
    text = f"{number}/{count} {point.variant.label}: {what_came_of_it(point)}"
    return f"{text}; about {duration(left_s)} left" if left_s else text


def what_came_of_it(point: Point) -> str:
    manifest = point.manifest
    if manifest is None or point.last is None or point.state in (State.NEW, State.CUT_SHORT):
        return str(point.state)
    if point.state is State.FAILED:
        return f"failed: {_first_line(point.last.reason)}"
    seconds = duration(_seconds_of(manifest))
    if point.state is State.DIVERGED:
        return f"diverged at step {manifest.outcome['diverged']['step']} in {seconds}"
    return f"{_learned(point.folder)} in {seconds}"


def _seconds_of(run: Manifest) -> float:
    return (run.startup_s or 0.0) + (run.duration_s or 0.0)


def _learned(folder: Path) -> str:
    table = read_table(folder)
    rewards = table.rewards.reward
    if not len(rewards):
        return "finished"
    reward = f"{rewards[-1]:.3f}" if len(rewards) == 1 else f"from {rewards[0]:.3f} to {rewards[-1]:.3f}"
    lost = divergence(table)
    return (f"diverged at step {lost.step}: " if lost else "") + f"validation reward {reward}"


class TimeLeft:
    """Seconds that the rest of some work will take, at the pace of what is done.

    The first piece, in which things start that later ones find there, counts only while it is the only one.

    Args:
        work: how much there is in all: blocks, or training steps.
        earlier_s: seconds of one of them before; None where that is not known.
    """

    def __init__(self, work: float, earlier_s: float | None = None) -> None:
        self.left, self.earlier_s = work, earlier_s
        self._took = list[tuple[float, float]]()

    @property
    def pace_s(self) -> float | None:
        took = self._took[1:] or self._took
        return sum(seconds for seconds, _ in took) / sum(work for _, work in took) if took else self.earlier_s

    @property
    def left_s(self) -> float | None:
        """None before anything is known."""
        return None if self.pace_s is None else self.pace_s * self.left

    def took(self, seconds: float | None, work: float = 1) -> None:
        """A piece is done, or None: was there already."""
        self.left -= work
        self._took += [] if seconds is None else [(seconds, work)]


def seconds_left(points: Sequence[Point]) -> float | None:
    """Return the seconds that unfinished points will take at the pace of the finished ones; None before the first."""
    time = TimeLeft(sum(point.variant.scenario.steps for point in points))
    for point in points:
        if point.state.is_result:
            time.took(None if point.manifest is None else _seconds_of(point.manifest), point.variant.scenario.steps)
    return time.left_s


def what_failed(points: Sequence[Point]) -> str:
    """Say which points have no result, and why; empty where all have one."""
    failed = [point for point in points if not point.state.is_result]
    reasons = [
        f"  {point.variant.label}, attempts that failed: {point.failures}; {what_came_of_it(point)}" for point in failed
    ]
    return "\n".join([f"{len(failed)} of {len(points)} points failed:", *reasons]) if failed else ""


def _status_table(points: Sequence[Point]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("point", "state", "attempts", "what came of it"):
        table.add_column(name, overflow="fold")
    for point in points:
        said = [what_came_of_it(point)] if point.state.is_result else []
        said += [f"{attempt.state}: {_first_line(attempt.reason)}" for attempt in point.attempts if attempt.reason]
        cells = (point.variant.label, str(point.state), str(len(point.attempts)), "\n".join(said))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _as_facts(point: Point) -> dict[str, object]:
    return {
        "point": point.variant.label,
        "state": str(point.state),
        "folder": None if point.last is None else str(point.folder),
        "result": what_came_of_it(point) if point.state.is_result else None,
        "attempts": [{"state": str(attempt.state), "reason": attempt.reason} for attempt in point.attempts],
    }


def _first_line(reason: str | None) -> str:
    return plain((reason or "no reason was given").strip().split("\n")[0], LONGEST_REASON)
