"""What a person reads of fault runs: plain lines, the same bytes for the same schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.faults.books import Event
from tests.faults.invariants import INVARIANTS
from tests.faults.running import Outcome
from tests.faults.schedule import Schedule
from tests.faults.search import Summary

LAST_EVENTS = 25
"""Events shown of a run that broke an invariant."""


def summary_lines(summary: Summary, first: int) -> Iterator[str]:
    """Say what many schedules came to."""
    last = first + summary.schedules - 1
    yield (
        f"{summary.schedules:,} schedules ({first} to {last}), {summary.events:,} events, "
        f"{summary.most_events:,} in the longest"
    )
    yield ""
    yield "how they ended"
    yield from _counts(summary.ends)
    yield ""
    yield "faults that happened"
    yield from _counts(summary.happened)
    yield ""
    if not summary.broken:
        yield f"no invariant was broken ({len(INVARIANTS)} are checked)"
        return
    yield f"{len(summary.broken)} schedules broke an invariant"
    yield from _counts(Counter(summary.broken.values()))


def _counts(counts: Counter[str]) -> Iterator[str]:
    """A line for each, by name; a kind of ends or faults stays where it is when the numbers change."""
    for name, number in sorted(counts.items()):
        yield f"{number:>9,}  {name}"


def replay_command(seed: int) -> str:
    """The command that runs exactly this schedule again."""
    return f"python -m harness faults --seed {seed} --schedules 1 --trace"


def broken_lines(outcome: Outcome, smallest: Outcome) -> Iterator[str]:
    """Say what a schedule broke, how to see it again, and show the smallest schedule that breaks the same."""
    assert outcome.broken is not None
    assert smallest.broken is not None
    seed, invariant = outcome.schedule.seed, outcome.broken.invariant
    yield f"schedule {seed} broke an invariant: {INVARIANTS[invariant]}"
    yield from _indented(str(outcome.broken))
    yield f"  again: {replay_command(seed)}"
    yield ""
    yield f"the smallest schedule found that breaks it ({len(smallest.events)} events instead of {len(outcome.events)})"
    yield from _indented(str(smallest.broken))
    yield from (f"  {line}" for line in schedule_lines(smallest.schedule))
    yield ""
    yield from event_lines(smallest.events[-LAST_EVENTS:], len(smallest.events))


def _indented(text: str) -> Iterator[str]:
    yield from (f"  {line}" for line in text.splitlines())


def schedule_lines(schedule: Schedule) -> Iterator[str]:
    """Describe a schedule."""
    yield (
        f"{_many(schedule.steps, 'step')}, {_many(schedule.generators, 'Generator')}, "
        f"{_many(schedule.scorers, 'Scorer')}, {_many(schedule.prompts, 'prompt')} of "
        f"{_many(schedule.group_size, 'rollout')}, {_many(schedule.epochs, 'epoch')}"
    )
    evaluated = (
        f"evaluates every {_many(schedule.evaluate_every, 'version')}" if schedule.validates else "no evaluation"
    )
    proof = "loads are proven" if schedule.proof else "loads are not proven"
    yield f"max_lag {schedule.max_lag}, lag_control {schedule.lag_control}, {evaluated}, {proof}"
    if schedule.replay is not None:
        replay = schedule.replay
        uses = "without bound" if replay.max_uses is None else f"at most {replay.max_uses} times"
        yield (
            f"replay: capacity {replay.capacity}, max_age {replay.max_age}, {replay.sampling}, "
            f"{replay.sample_groups} a step, each {uses}"
        )
    yield f"a new part takes {schedule.restart_s:g} s; {schedule.max_replacements} are replaced at most"
    for timing in schedule.timings:
        yield f"takes: {timing.lane} {timing.call} {' '.join(f'{seconds:g}' for seconds in timing.table)} s"
    for fault in schedule.faults:
        yield f"fault: {fault.lane}, {fault.call} number {fault.number}: {fault.kind} ({fault.amount:g})"
    for group in schedule.unrewarded:
        yield f"fault: no reward for prompt {group.place} of {group.purpose} step {group.step}"


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def event_lines(events: Sequence[Event], of: int | None = None) -> Iterator[str]:
    """Show events as a table.

    Args:
        events: those to show.
        of: how many there are, where not all are shown.
    """
    if of is not None and of > len(events):
        yield f"the last {len(events)} of {of} events"
    yield f"{'time_s':>12}  {'lane':<11} {'what':<26} {'step':>4} {'version':>7}  detail"
    for event in events:
        step, version = (str(number) if number >= 0 else "" for number in (event.step, event.version))
        line = f"{event.time_s:>12.6g}  {event.lane:<11} {event.what:<26} {step:>4} {version:>7}  {event.detail}"
        yield line.rstrip()


def trace_lines(outcome: Outcome) -> Iterator[str]:
    """Show one whole run: its schedule, all events, and how it ended."""
    yield f"schedule {outcome.schedule.seed}"
    yield from (f"  {line}" for line in schedule_lines(outcome.schedule))
    yield ""
    yield from event_lines(outcome.events)
    yield ""
    yield f"end: {outcome.broken or outcome.end}"
