"""What a sweep says while it goes on: a line for each point, the time that is left, and how it stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from harness.compare.learning import divergence, evaluations
from harness.core.terminal_text import plain
from harness.results import Manifest, load_run
from harness.run.sweep.points import Point, State

LONGEST_REASON = 300


def point_line(point: Point, number: int, count: int, left_s: float | None) -> str:
    """Return what came of a point just run, with the time that the others will take."""
    text = f"{number}/{count} {point.variant.label}: {what_came_of_it(point)}"
    return f"{text}; about {duration(left_s)} left" if left_s else text


def what_came_of_it(point: Point) -> str:
    """Say in a few words what became of a point."""
    if point.manifest is None or point.last is None:
        return str(point.state)
    manifest, seconds = point.manifest, f"in {duration(_seconds(point.manifest))}"
    match point.state:
        case State.FINISHED:
            return f"{_learned(point.folder)} {seconds}"
        case State.DIVERGED:
            return f"diverged at step {manifest.outcome['diverged']['step']} {seconds}"
        case State.FAILED:
            return f"failed: {first_line(point.last.reason)}"
    return str(point.state)


def seconds_left(points: Sequence[Point]) -> float | None:
    """Return the seconds that unfinished points will take at the pace of the finished ones; None before the first."""
    done = [(point.manifest, point.variant) for point in points if point.state.is_result and point.manifest]
    left = [point.variant.scenario.steps for point in points if not point.state.is_result]
    steps = sum(variant.scenario.steps for _, variant in done)
    if not steps:
        return None
    pace = sum(manifest.duration_s or 0.0 for manifest, _ in done) / steps
    startups = [manifest.startup_s or 0.0 for manifest, _ in done]
    startup_s = min(startups) if len(startups) > 1 else 0.0  # the first one may have warmed up a policy
    return pace * sum(left) + startup_s * len(left)


def duration(seconds: float) -> str:
    """Write seconds for people: 42 s, 12 min, 2 h 05 min."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def standing(points: Sequence[Point]) -> str:
    """Say how many points are in which state: ``3 finished, 1 diverged, 6 not run yet``."""
    counts = {state: sum(point.state is state for point in points) for state in State}
    order = (State.FINISHED, State.DIVERGED, State.FAILED, State.CUT_SHORT, State.NEW)
    return ", ".join(f"{counts[state]} {state}" for state in order if counts[state])


def status_table(points: Sequence[Point]) -> Table:
    """Return the table of ``--status``: each point, its attempts, and what came of it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("point", "state", "attempts", "what came of it"):
        table.add_column(name, overflow="fold")
    for point in points:
        said = [what_came_of_it(point)] if point.state.is_result else []
        said += [f"{attempt.state}: {first_line(attempt.reason)}" for attempt in point.attempts if attempt.reason]
        cells = (point.variant.label, str(point.state), str(len(point.attempts)), "\n".join(said))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def first_line(reason: str | None) -> str:
    """Return the first line of a reason, safe to print."""
    return plain((reason or "no reason was given").strip().split("\n")[0], LONGEST_REASON)


def _seconds(manifest: Manifest) -> float:
    return (manifest.startup_s or 0.0) + (manifest.duration_s or 0.0)


def _learned(folder: Path) -> str:
    """Say from where to where the validation reward went, and from which step on it was gone, if it was."""
    run = load_run(folder)
    evaluated = evaluations(run)
    if not evaluated:
        return "finished"
    first, last = evaluated[0].reward, evaluated[-1].reward
    reward = f"{last:.3f}" if len(evaluated) == 1 else f"from {first:.3f} to {last:.3f}"
    lost = divergence(run, evaluated)
    return (f"diverged at step {lost.step}: " if lost else "") + f"validation reward {reward}"
