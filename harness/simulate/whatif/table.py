"""What is printed about a change: its tables and the sentences below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.compare.attribution import in_pipeline_order
from harness.compare.numbers import change, listed, number, percent
from harness.compare.tables import Table
from harness.core.trace import Stage
from harness.simulate.whatif.effects import FASTER, Answer, Gain

NOTHING = 0.001
"""Gains below this share of a step are not worth a word."""
NONE = "-"


def changed_to(answer: Answer) -> str:
    """Return in words what was changed, as it was typed."""
    change = answer.change
    paces = [f"{name} x {factor:g}" for name, factor in change.factors.stages.items()]
    return ", ".join([*change.typed, *paces]) or "unchanged"


def tables(answer: Answer) -> list[Table]:
    """Return the tables of an answer, from the step time to what 10% off each stage would give."""
    if answer.change.is_none:
        return [_time_table(answer), _gain_table(answer)]
    return [_time_table(answer), _stage_table(answer), _idle_table(answer), _gain_table(answer)]


def sentences(answer: Answer) -> Iterator[str]:
    """Yield what the figures say."""
    if not answer.change.is_none:
        yield (
            f"with {changed_to(answer)} a step would take {number(answer.after.step_s)} s in place of "
            f"{number(answer.before.step_s)} s ({change(answer.ratio)})"
        )
    first = answer.lane_gains[0] if answer.lane_gains else None
    if first is not None and first.gain >= NOTHING:
        yield (
            f"the {first.name} is critical: everything it does {1 - FASTER:.0%} faster makes a step "
            f"{percent(first.gain)} shorter"
        )
    yield from _advice(answer.gains)


def cautions(answer: Answer) -> Iterator[str]:
    """Yield what to mind."""
    yield (
        f"simulated: the run as it was is replayed with its own times, and a step of that is off by "
        f"{percent(abs(answer.error))} of the recorded one"
    )
    if answer.machine is not None:
        yield f"costs and contention are those of the machine profile {answer.machine}"
    yield from answer.notes


def _time_table(answer: Answer) -> Table:
    recorded = "recorded" if answer.run.manifest.simulated is None else "recorded (simulated)"
    rows = [(recorded, number(answer.recorded_step_s), NONE)]
    rows.append(("replayed as it was (simulated)", number(answer.before.step_s), change(1 + answer.error)))
    if not answer.change.is_none:
        rows.append((f"{changed_to(answer)} (simulated)", number(answer.after.step_s), change(answer.ratio)))
    note = "replayed: set against recorded. The change: set against the replay."
    return Table("Step time, seconds", ("run", "step time", "difference"), tuple(rows), (note,))


def _stage_table(answer: Answer) -> Table:
    before, after = answer.before.stages_s, answer.after.stages_s
    names = [stage.value for stage in Stage if stage.value in before or stage.value in after]
    rows = []
    for name in names:
        old, new = before.get(name), after.get(name)
        ratio = change(new / old) if old and new is not None else NONE
        rows.append((name, NONE if old is None else number(old), NONE if new is None else number(new), ratio))
    return Table(
        "Seconds of each stage and wait in a step, added over the lanes (simulated)",
        ("stage", "before", "after", "difference"),
        tuple(rows),
    )


def _idle_table(answer: Answer) -> Table:
    before, after = answer.before.idle, answer.after.idle
    rows = [
        (lane, percent(before[lane]) if lane in before else NONE, percent(after[lane]) if lane in after else NONE)
        for lane in in_pipeline_order({*before, *after})
    ]
    return Table("Share of the loop that each lane waited (simulated)", ("lane", "before", "after"), tuple(rows))


def _gain_table(answer: Answer) -> Table:
    rows = tuple((gain.name, number(gain.seconds), _signed(gain.gain)) for gain in answer.gains)
    whose = "the run" if answer.change.is_none else "the changed run"
    return Table(
        f"What 10% faster would give: {whose} replayed with one stage at {FASTER:g} of its time (simulated)",
        ("stage", "seconds in a step", "gain in step time"),
        rows,
    )


def _advice(gains: Sequence[Gain]) -> Iterator[str]:
    worth = [gain for gain in gains if gain.gain >= NOTHING]
    hidden = [gain for gain in gains if gain.gain < NOTHING]
    if not worth:
        yield "no stage that is 10% faster would make a step shorter by as much as 0.1%"
        return
    then = f", then {listed([_told(gain) for gain in worth[1:3]])}" if len(worth) > 1 else ""
    yield f"10% faster, by what it takes off a step: optimise {_told(worth[0])} first{then}"
    if hidden:
        names = listed([gain.name for gain in hidden])
        yield f"do not bother with {names}: 10% faster, {_each(hidden)} less than {percent(NOTHING)} off a step"


def _each(gains: Sequence[Gain]) -> str:
    return "it takes" if len(gains) == 1 else "each of them takes"


def _told(gain: Gain) -> str:
    return f"{gain.name} ({percent(gain.gain)})"


def _signed(gain: float) -> str:
    return f"{100 * gain:+.1f}%" if abs(gain) >= 0.0005 else "0.0%"
